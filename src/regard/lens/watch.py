"""`regard.watch`: record the exact attention of any PyTorch model while it runs, without changing it."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.hooks import register_hook
from regard.attention.mask import Mask
from regard.errors import short_repr
from regard.lens.capture.call import CapturedCall, attend_call
from regard.lens.capture.dispatch_mode import DispatchModeCapture
from regard.lens.capture.function_mode import FunctionModeCapture
from regard.lens.capture.module_finder import has_fused_layers, list_modules, uses_attend_only
from regard.lens.capture.recorder import CallRecorder
from regard.lens.capture.sequence import CallSequence
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.recording import Recording

KEEP_OPTIONS = ("maps", "summary")


class _ThreadState(threading.local):
    """The models that this thread watches."""

    models: tuple[nn.Module, ...] = ()


_state = _ThreadState()


@contextmanager
def watch(
    model: nn.Module,
    *,
    keep: str = "maps",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    budget: int | None = 2**30,
) -> Iterator[Recording]:
    """Record what a model attends to: any model, on the kernels that it uses, with the same output bits.

    ::

        with regard.watch(model) as recording:
            model(x)
        print(recording)
        recording["encoder.layers.0.self_attn"].entropy()

    It records calls of ``F.scaled_dot_product_attention``, FlexAttention and `regard.attend`, and PyTorch's own layers
    with all their fast paths. Of eager attention, a softmax of scores that multiplies values in the model's own code,
    it keeps the weights themselves, queries x keys numbers; a weight of 0 counts as blocked there. It patches nothing
    of the model or of PyTorch, and records no other thread. All steps of a generation with a cache become one map per
    attention (with ``keep="summary"`` each step becomes a summary). Another forward pass becomes another map,
    ``path#1``, and so does a module that several layers share.

    The recording is filled when the block ends. A map raises an error if its tensors were changed in place. Tensors of
    inference mode do not count changes: those that somebody else holds too are copied when the block ends, and each map
    is verified on some rows before it answers.

    Args:
        model: the model to record.
        keep: "maps" keeps queries, keys and values by reference and computes any answer later, exactly; "summary"
            computes the common answers while the model runs, and keeps no tensor of tokens x width.
        layers: record these layers only, counted from 0 among the attentions of a kind (an encoder's, a decoder's,
            cross).
        heads: show these heads only, counted from 0. The map's own heads then count from 0 in this order.
        budget: the most bytes of weights of eager attention to keep, 1 GiB by default; None for any number. Beyond it,
            summaries are kept, as with keep="summary", and a note tells so.

    Yields:
        The `Recording` of what runs inside the ``with`` block.

    Raises:
        TypeError: not a module.
        ValueError: a model that is watched already, or compiled; an unknown keep; no such layer or head; no attention
            was seen. An attention that cannot be recorded is no error: ``recording.notes`` names it.
    """
    modules = _validate(model, keep, layers, heads, budget)
    recording = Recording()
    recording.has_all_layers, recording.model_class = layers is None, type(model).__name__
    recorder = CallRecorder(
        modules, layers, heads, partial(_add_summary, recording) if keep == "summary" else None, budget
    )
    _state.models = (*_state.models, model)
    try:
        with ExitStack() as stack:
            stack.enter_context(recorder.recording())
            stack.enter_context(register_hook(partial(_record_attend, recorder)))
            if has_fused_layers(modules):
                stack.enter_context(DispatchModeCapture(recorder))
            elif not uses_attend_only(modules):
                stack.enter_context(FunctionModeCapture(recorder, stack))
            yield recording
    finally:
        _state.models = tuple(other for other in _state.models if other is not model)
        _fill_recording(recording, recorder)
    _raise_if_missing(model, recorder)


def _validate(
    model: Any, keep: str, layers: Sequence[int] | None, heads: Sequence[int] | None, budget: int | None
) -> list[tuple[str, nn.Module]]:
    """The model's modules, each with its path."""
    if isinstance(model, str):
        raise TypeError(
            f"watch(model) records a torch.nn.Module while it runs; got the text {short_repr(model)}: for a text "
            "regard.see(text) or regard.explain(text), in a shell also regard watch TEXT"
        )
    modules = list_modules(model, "watch")
    if keep not in KEEP_OPTIONS:
        raise ValueError(f'keep={keep!r}: it is "maps" or "summary"')
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
        raise ValueError(f"budget={budget!r}: a number of bytes, such as 2**30, or None for any number")
    for name, numbers in (("layers", layers), ("heads", heads)):
        if numbers is None:
            continue
        is_list = not isinstance(numbers, (int, str)) and len(numbers) > 0
        if not is_list or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            raise ValueError(f"{name}={numbers!r}: a list of numbers counted from 0, such as [0, 3]")
    if any(model is other for other in _state.models):
        raise ValueError(
            f"this {type(model).__name__} is watched already in this thread: one watch sees everything it does"
        )
    return modules


def _record_attend(
    recorder: CallRecorder, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *, output: Tensor, **options: Any
) -> None:
    """The hook of `regard.attend`."""
    recorder.record(lambda: attend_call(q, k, v, mask, output, **options), sys._getframe(2))


def _add_summary(recording: Recording, sequence: CallSequence, call: CapturedCall) -> None:
    recording.add(
        sequence.path,
        AttentionSummary.from_map(sequence.map(), cross=sequence.kind == "cross"),
        shape=sequence.shape,
        mask=call.mask_label,
        kernel=call.kernel,
        kind=sequence.kind,
        layer=sequence.layer,
        heads=sequence.heads,
        patches=sequence.patches,
    )


def _fill_recording(recording: Recording, recorder: CallRecorder) -> None:
    recorder.note_open_softmaxes()
    unseen = recorder.unseen_attentions()
    if unseen and (recorder.kinds_and_layers or recorder.notes):
        recorder.add_note(
            f"no attention was seen in {_shortened(unseen)}: not called in this block, or without a softmax over "
            "products of queries and keys that can be followed"
        )
    for text in recorder.notes:
        recording.add_note(text)
    _copy_shared_tensors(recorder.sequences)
    for sequence in recorder.sequences:
        recording.add(
            sequence.path,
            sequence.summary or sequence.map,
            shape=sequence.shape,
            mask=sequence.mask_label,
            kernel=sequence.first_call.kernel,
            kind=sequence.kind,
            layer=sequence.layer,
            heads=sequence.heads,
            patches=sequence.patches,
        )


def _copy_shared_tensors(sequences: list[CallSequence]) -> None:
    """Copy the tensors of inference mode that somebody else holds too: a change of them would not be noticed."""
    tensors = {id(t): t for sequence in sequences for t in sequence.tensors() if t.is_inference() and not t.is_nested}
    own_uses = Counter(t.untyped_storage().data_ptr() for t in tensors.values())
    copies = {}
    for name, t in tensors.items():
        storage = t.untyped_storage()
        # This variable is one of the uses.
        if torch._C._storage_Use_Count(storage._cdata) - 1 > own_uses[storage.data_ptr()]:
            copies[name] = t.clone()
    if copies:
        for sequence in sequences:
            sequence.replace_tensors(copies)


def _shortened(modules: Sequence[str]) -> str:
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{modules[0]}{more}"


def _raise_if_missing(model: nn.Module, recorder: CallRecorder) -> None:
    """Raise if there is no attention, or no such layer or head."""
    name = type(model).__name__
    if not recorder.kinds_and_layers:
        if recorder.notes:
            return
        unseen = recorder.unseen_attentions()
        has = f"its {_shortened(unseen)} take no softmax over products of queries and keys" if unseen else "it has none"
        raise ValueError(
            f"no attention was seen in {name}: it was not called in this block and this thread, or {has}, or it "
            "hides its calls, as a compiled function does"
        )
    last = max(layer for _, layer in recorder.kinds_and_layers.values())
    for layer in recorder.layers or ():
        if layer > last:
            raise ValueError(f"layers={list(recorder.layers or ())}: {name} has {last + 1} layers, 0 to {last}")
    for head in recorder.heads or ():
        if head >= recorder.max_heads:
            raise ValueError(
                f"heads={list(recorder.heads or ())}: {name} has {recorder.max_heads} heads, 0 to "
                f"{recorder.max_heads - 1}"
            )
