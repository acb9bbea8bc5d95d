"""What the eyes report to: which module of the model it was, and what is kept of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FrameType

import torch
from torch import Tensor, nn

from regard.attention.hooks import disable_hooks
from regard.lens.capture.call import Masked, Seen, Spoken, masked
from regard.lens.capture.sequence import Track

__all__ = ["Report", "backward"]

CROSS = re.compile(r"cross|enc_?dec|encoder_attn|context_att|\bmultihead_attn$", re.IGNORECASE)
"""How models call an attention whose keys come from another sequence."""


def _kv_heads(module: nn.Module) -> int | None:
    """How many heads of keys a module of transformers has."""
    return getattr(getattr(module, "config", None), "num_key_value_heads", None)


def backward() -> bool:
    """Whether this is a backward pass: what a checkpoint computes again there was seen before."""
    return torch._C._current_graph_task_id() != -1


class _Masks:
    """What an ``attn_mask`` says; one that every layer was given is taken apart once."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], tuple[Tensor, Spoken]] = {}

    def __call__(self, t: Tensor, queries: int, keys: int) -> Spoken:
        version = 0 if t.is_inference() else t._version
        key = (t.data_ptr(), t.shape, t.stride(), t.dtype, version, queries, keys)
        if key not in self.known:
            self.known[key] = t, masked(t, queries, keys)
        return self.known[key][1]


class Report:
    """Sorts what is seen by module.

    Args:
        modules: the model's, each with its path. What another model computes inside one of them counts as its own;
            other models are not reported.
        layers: running numbers of attentions to keep, among those of their kind; None for all.
        heads: which heads to keep; None for all.
        fold: what to do with a call at once, instead of keeping it.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, nn.Module]],
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        fold: Callable[[Track, Seen], None] | None,
    ) -> None:
        self.modules = {id(module): (path, module) for path, module in modules}
        self.layers, self.heads, self.fold = layers, heads, fold
        self.found: dict[str, tuple[str, int]] = {}
        """The kind and the layer of each path that was seen."""
        self.tracks: list[Track] = []
        """What is kept, in the order in which it began."""
        self.last: dict[str, Track] = {}
        """The last of them at each path."""
        self.names: set[str] = set()
        self.notes: dict[str, None] = {}
        self.most_heads = 0
        # Answers are made at once from a mask, and nothing of its size is to stay.
        self.masks: Masked = _Masks() if fold is None else masked

    def saw(self, make: Callable[[], Seen], frame: FrameType) -> None:
        """One attention was computed. Nothing that goes wrong here stops the model.

        Args:
            make: makes the record of it, if it counts.
            frame: whose code called it.
        """
        found = self._where(frame)
        if found is None or backward():
            return
        path, module = found
        try:
            with torch.no_grad(), disable_hooks():
                seen = make()
                inside = ".".join(name for name in (path, seen.within) if name)
                self._keep(inside, module.get_submodule(seen.within), seen)
        except Exception as error:
            self.note(f"{path or 'the model itself'}: an attention was seen and not kept: {error}")

    def by_hand(self, frame: FrameType) -> None:
        """The model computed attention with operations of its own."""
        found = self._where(frame)
        if found is not None and not backward():
            path, module = found
            self.note(
                f"{path or 'the model itself'} ({type(module).__name__}) computes attention by hand, a softmax between "
                "two products: there is no call to be seen. Let it call regard.attend or "
                "torch.nn.functional.scaled_dot_product_attention; a model of transformers does with "
                'attn_implementation="sdpa"'
            )

    def note(self, text: str) -> None:
        """Say something once."""
        self.notes.setdefault(text)

    def _keep(self, path: str, module: nn.Module, seen: Seen) -> None:
        if torch._C._functorch.is_functorch_wrapped_tensor(seen.q):
            raise NotImplementedError("its tensors are those of vmap or of another transform of torch.func")
        groups = getattr(module, "num_key_value_groups", 1)
        if groups > 1 and seen.q.shape[2] == groups and seen.q.shape[1] == seen.k.shape[1] == _kv_heads(module):
            # One token, whose heads with keys in common stand on the axis of queries: so transformers does it.
            seen = seen.unfolded()
        if path not in self.found:
            self.found[path] = self._kind(path, module, seen), self._number(path, module)
        kind, number = self.found[path]
        self.most_heads = max(self.most_heads, seen.shape[1])
        if self.layers is not None and number not in self.layers:
            return
        if self.heads is not None and min(self.heads) >= seen.shape[1]:
            raise ValueError(f"it has {seen.shape[1]} heads, none of heads={list(self.heads)}")
        last = self.last.get(path)
        if last is not None and last.goes_on(seen):
            return
        name, again = path, 0
        while name in self.names:
            again += 1
            name = f"{path}#{again}"
        self.names.add(name)
        track = Track(name, kind, number, seen, self.masks, self.heads)
        if self.fold is not None:
            self.fold(track, seen)
        else:
            self.last[path] = track
            self.tracks.append(track)

    def _number(self, path: str, module: nn.Module) -> int:
        """Which layer it is: its place among modules of its type whose paths differ in numbers only."""
        pattern = re.sub(r"\d+", "#", path)
        alike = [p for p, m in self.modules.values() if type(m) is type(module) and re.sub(r"\d+", "#", p) == pattern]
        return alike.index(path) if path in alike else 0

    @staticmethod
    def _kind(path: str, module: nn.Module, seen: Seen) -> str:
        said = getattr(module, "is_cross_attention", None)
        if isinstance(said, bool):
            return "cross" if said else "self"
        if seen.cross is not None:
            return "cross" if seen.cross else "self"
        queries, keys = seen.shape[2:]
        # Fewer queries than keys, or a mask, may come from a cache.
        other = queries > keys or (
            1 < queries < keys and not seen.causal and seen.attn_mask is None and seen.mask is None
        )
        return "cross" if CROSS.search(path) or (other and "self" not in path.lower()) else "self"

    def _where(self, frame: FrameType | None) -> tuple[str, nn.Module] | None:
        """The innermost module of the model that is running: a function's first argument, or its ``module``."""
        while frame is not None:
            code = frame.f_code
            names = (*code.co_varnames[: min(1, code.co_argcount)], "module")
            variables = frame.f_locals
            for name in names:
                found = self.modules.get(id(variables.get(name)))
                if found is not None:
                    return found
            frame = frame.f_back
        return None
