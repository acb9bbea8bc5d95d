"""The recorder of captured calls: it finds the module of each call, and joins calls that belong together."""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import torch
from torch import Tensor, nn

from regard.attention.hooks import disable_hooks
from regard.lens.capture.call import CapturedCall, MaskAndBias, MaskParser, memory_address, parse_attn_mask
from regard.lens.capture.eager_pattern import EagerAttention
from regard.lens.capture.eager_weights import eager_weights_call
from regard.lens.capture.kind import attention_kind
from regard.lens.capture.module_finder import ModuleFinder
from regard.lens.capture.patches import PatchFinder
from regard.lens.capture.sequence import CallSequence
from regard.lens.capture.unseen import unseen_attentions
from regard.lens.maps.paths import stack_of

MAX_OPEN_SEQUENCES = 8
"""How many sequences of one module a call may continue: beside the latest, those of other answers to one prompt."""


class _ActiveRecorders(threading.local):
    """The recorders of one thread that are recording."""

    recorders: tuple[CallRecorder, ...] = ()


_active = _ActiveRecorders()


def note_edit(path: str) -> None:
    """Note in every recording of this thread that an attention is edited, in whatever order the two were opened.

    Args:
        path: the attention.
    """
    for recorder in _active.recorders:
        recorder.note_module(
            path,
            "regard.intervene edits it: its map is the attention before the edit, on what the edited model gave it",
        )


def folds_heads(module: nn.Module, call: CapturedCall) -> bool:
    """Whether the heads of a group stand on the axis of queries, where transformers puts them for one token."""
    group = getattr(module, "num_key_value_groups", 1)
    num_kv_heads = getattr(getattr(module, "config", None), "num_key_value_heads", None)
    return group > 1 and call.q.shape[2] == group and call.q.shape[1] == call.k.shape[1] == num_kv_heads


def in_backward() -> bool:
    """Whether this is a backward pass, in which activation checkpointing repeats calls that are recorded already."""
    return torch._C._current_graph_task_id() != -1


class _MaskParserCache:
    """A `MaskParser` that reads a mask once if several layers got it."""

    def __init__(self) -> None:
        self.parsed: dict[tuple[object, ...], tuple[Tensor, MaskAndBias]] = {}

    def __call__(self, t: Tensor, queries: int, keys: int) -> MaskAndBias:
        version = 0 if t.is_inference() else t._version
        key = (t.data_ptr(), t.shape, t.stride(), t.dtype, version, queries, keys)
        if key not in self.parsed:
            self.parsed[key] = t, parse_attn_mask(t, queries, keys)
        return self.parsed[key][1]


class CallRecorder:
    """Sorts captured calls by module.

    Args:
        modules: the modules of the model, each with its path. A call of another model inside one of them belongs to
            that module; other calls of other models are not recorded.
        layers: the layers to record, numbered among the attentions of one kind; None for all.
        heads: the heads to record; None for all.
        on_call: handles each call at once; then no call is kept.
        budget: the most bytes of eager attention's weights to keep; None for any number. Beyond it the common answers
            are computed at once.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, nn.Module]],
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        on_call: Callable[[CallSequence, CapturedCall], None] | None,
        budget: int | None = None,
    ) -> None:
        self.modules = ModuleFinder(modules)
        self.layers, self.heads, self.on_call, self.budget = layers, heads, on_call, budget
        self.weights_size = 0
        """The bytes of the weights of eager attention that are kept."""
        self.kinds_and_layers: dict[str, tuple[str, int]] = {}
        """The kind and the layer of each path that had a call."""
        self.sequences: list[CallSequence] = []
        """In the order of their first calls."""
        self.open_sequences: defaultdict[str, list[CallSequence]] = defaultdict(list)
        """The sequences of each path that later calls may continue, the latest last."""
        self.continues: bool | None = None
        """Whether the latest self-attention continued a sequence; None before the first one."""
        self.order: Tensor | None = None
        """How the batch rows changed places at the latest self-attention."""
        self.names: set[str] = set()
        self.open_softmaxes: Counter[str] = Counter()
        """For each path, how many softmaxes over scores have not multiplied values yet."""
        self.notes: dict[str, None] = {}
        self.noted_paths: set[str] = set()
        """The modules that notes are about."""
        self.parameters: set[int] | None = None
        """The memory of each parameter of the model, once it is asked for."""
        self.max_heads = 0
        self.patch_finder = PatchFinder()
        # With `on_call` nothing of a mask's size may be kept.
        self.parse: MaskParser = _MaskParserCache() if on_call is None else parse_attn_mask

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Receive the notes on edits, until the context ends."""
        _active.recorders = (*_active.recorders, self)
        try:
            yield
        finally:
            _active.recorders = tuple(other for other in _active.recorders if other is not self)

    def is_parameter(self, t: Tensor) -> bool:
        """Whether a tensor is a parameter of the model, or a part of one."""
        if self.parameters is None:
            own = (p for _, module in self.modules.values() for p in module.parameters(recurse=False))
            self.parameters = {memory_address(p) for p in own} - {0}
        return memory_address(t) in self.parameters

    def record(self, make_call: Callable[[], CapturedCall], frame: FrameType) -> None:
        """Record one attention. An error here becomes a note and does not stop the model.

        Args:
            make_call: makes the call, if it belongs to the model.
            frame: the frame of the code that called it.
        """
        owner = self.modules.find(frame)
        if owner is not None and not in_backward():
            self._record(owner, make_call, frame)

    def _record(self, owner: tuple[str, nn.Module], make_call: Callable[[], CapturedCall], frame: FrameType) -> None:
        path, module = owner
        try:
            with torch.no_grad(), disable_hooks():
                call = make_call().detach()
                inner = ".".join(name for name in (path, call.submodule) if name)
                computing = module.get_submodule(call.submodule) if call.submodule else module
                self._add(inner, computing, call, frame)
        except Exception as error:
            self.note_module(path, f"an attention was not recorded: {error}")

    def record_eager(self, eager: EagerAttention, frame: FrameType) -> None:
        """Record an attention in the model's own code, when its softmax ran and again when it is complete."""
        owner = eager.owner or self.modules.find(frame)
        if owner is None or in_backward():
            return
        if eager.output is None:
            eager.owner = owner
            self.open_softmaxes[owner[0]] += eager.is_score
        elif eager.q is not None:
            self.open_softmaxes[owner[0]] -= eager.is_score
            self._record(owner, lambda: eager_weights_call(eager, owner[1]), frame)
        else:
            with suppress(NotImplementedError), torch.no_grad(), disable_hooks():
                eager_weights_call(eager, owner[1])  # raises where it is no attention, but a router of experts
                self.note_module(
                    owner[0],
                    "a softmax multiplied values, but not over products of queries and keys (additive or linear "
                    "attention): it is not in the recording",
                )

    def note_open_softmaxes(self) -> None:
        """Note each module whose softmax over scores was not followed to a product with values."""
        for path, count in self.open_softmaxes.items():
            if count > 0:
                self.note_module(
                    path,
                    "the weights of its attention (a softmax over products of queries and keys) did not multiply "
                    "values in a way that can be followed, so it is not in the recording. Let it call regard.attend or "
                    "torch.nn.functional.scaled_dot_product_attention",
                )

    def unseen_attentions(self) -> list[str]:
        """Modules that are named as attentions, and neither recorded nor noted."""
        return unseen_attentions(self.modules.values(), {*self.kinds_and_layers, *self.noted_paths})

    def note_module(self, path: str, text: str) -> None:
        """Add a note about a module of the model, once."""
        self.noted_paths.add(path)
        self.add_note(f"{path or 'the model itself'}: {text}")

    def add_note(self, text: str) -> None:
        """Add a note about the model, once."""
        self.notes.setdefault(text)

    def _add(self, path: str, module: nn.Module, call: CapturedCall, frame: FrameType) -> None:
        if torch._C._functorch.is_functorch_wrapped_tensor(call.q):
            raise NotImplementedError("its tensors are those of vmap or of another transform of torch.func")
        if folds_heads(module, call):
            call = call.unfold_heads()
        if path not in self.kinds_and_layers:
            self.kinds_and_layers[path] = attention_kind(path, module, call, frame), self._layer_number(path, module)
        kind, layer = self.kinds_and_layers[path]
        self.max_heads = max(self.max_heads, call.shape[1])
        # Also of layers that are not recorded: their tokens may be the keys of those that are.
        patches = self.patch_finder.find(stack_of(path), kind, module, call, frame)
        if self.layers is not None and layer not in self.layers:
            return
        if self.heads is not None and min(self.heads) >= call.shape[1]:
            raise ValueError(f"it has {call.shape[1]} heads, none of heads={list(self.heads)}")
        fits = self._fits_budget(call)
        if fits and self._continue(path, kind, call):
            return
        name, count = path, 0
        while name in self.names:
            count += 1
            name = f"{path}#{count}"
        self.names.add(name)
        sequence = CallSequence(name, kind, layer, call, self.parse, self.heads, patches)
        if self.on_call is not None:
            self.on_call(sequence, call)
        else:
            if not fits:
                sequence.summarize()
            self.open_sequences[path] = [*self.open_sequences[path][1 - MAX_OPEN_SEQUENCES :], sequence]
            self.sequences.append(sequence)

    def _continue(self, path: str, kind: str, call: CapturedCall) -> bool:
        """Append a call to the sequence that it continues; returns whether there is one."""
        if kind == "self":
            self.order = None
            extended = next((s for s in reversed(self.open_sequences[path]) if s.extend(call)), None)
            self.continues = extended is not None
            if extended is not None:
                self.order = extended.last_order
            elif any(s.resembles(call) for s in self.open_sequences[path]):
                self.add_note(
                    "a cache gave back keys a little different from those that the model computed (a quantized cache): "
                    "each part of the generation with the same keys is a map of its own, such as path#1"
                )
            return self.continues
        # The keys of a source are the same in each step of a generation, and may be in another pass as well.
        is_step = call.shape[2] == 1 if self.continues is None else self.continues
        return is_step and any(s.extend(call, self.order) for s in reversed(self.open_sequences[path]))

    def _fits_budget(self, call: CapturedCall) -> bool:
        """Whether the weights that a call holds can be kept; they count from now on."""
        if self.budget is None or self.on_call is not None or not call.weights_size:
            return True
        if self.weights_size + call.weights_size <= self.budget:
            self.weights_size += call.weights_size
            return True
        self.add_note(
            f"weights of eager attention take {self.weights_size:,} bytes, and the next {call.weights_size:,} would "
            f"exceed the budget of {self.budget:,}: from there on only summaries are kept. watch(budget=...) sets it; "
            "an attention that calls torch.nn.functional.scaled_dot_product_attention needs none"
        )
        return False

    def _layer_number(self, path: str, module: nn.Module) -> int:
        """The module's index among those of its type whose paths differ from its own in numbers of layers only."""
        pattern = _without_layer_numbers(path)
        same_type = (p for p, other in self.modules.values() if type(other) is type(module))
        alike = [p for p in same_type if _without_layer_numbers(p) == pattern]
        return alike.index(path) if path in alike else 0


def _without_layer_numbers(path: str) -> str:
    """A path with a mark in place of each number that counts layers.

    Inside a numbered block, ``attn1`` and ``attn2`` are two attentions of one layer; in a model they are two layers.
    """
    block, dot, name = path.rpartition(".")
    is_name_in_block = not name.isdecimal() and re.search(r"\d", block) is not None
    return re.sub(r"\d+", "#", block) + dot + (name if is_name_in_block else re.sub(r"\d+", "#", name))
