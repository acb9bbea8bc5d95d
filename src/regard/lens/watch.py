"""Watching: the exact attention of any PyTorch model while it runs, without changing it."""

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
from regard.lens.capture.call import Seen, four_axes, sampled
from regard.lens.capture.dispatch_mode import KernelEye
from regard.lens.capture.function_mode import FunctionEye
from regard.lens.capture.recorder import Report
from regard.lens.capture.sequence import Track
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.recording import Recording

__all__ = ["watch"]

KEPT = ("maps", "summary")
FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Layers that PyTorch computes by fused kernels in inference, unless somebody looks from above."""


OURS = "torch.nn.modules.", "regard.transformer.", "regard.attention.multihead", "regard.attention.positions."
"""Where modules come from whose every attention is a call of `attend`, which tells of itself."""


class _Watching(threading.local):
    """What this thread watches."""

    models: tuple[nn.Module, ...] = ()


_here = _Watching()


@contextmanager
def watch(
    model: nn.Module,
    *,
    keep: str = "maps",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """See what a model attends to: any model, on whatever kernel it runs, with the bits it would compute anyway.

    ::

        with regard.watch(model) as seen:
            model(x)
        print(seen)
        seen["encoder.layers.0.self_attn"].entropy()

    Seen are calls of ``F.scaled_dot_product_attention``, FlexAttention and `regard.attend`, and
    PyTorch's own layers with all their fast paths. Nothing is registered, and nothing of the model or of PyTorch is
    patched; other threads are not looked at. Steps of a generation with a cache become one map for each attention (each
    step a summary of its own, with ``keep="summary"``). A forward pass that follows another becomes a map of its own,
    ``path#1``, and so does a module that several layers share.

    The recording is filled when the block ends. A map whose tensors were changed since says so. Tensors of inference
    mode count no changes: what somebody else holds of them is copied when the block ends, and some rows of each map
    are computed again before it answers.

    Args:
        model: whose attention to keep.
        keep: "maps" holds queries, keys and values by reference and computes when asked, exactly, anything;
            "summary" answers the usual questions while the model runs, and holds nothing of tokens x width.
        layers: keep these only, counted from 0 among the attentions of a kind (an encoder's, a decoder's, cross).
        heads: show these only, counted from 0. The map's own heads then count from 0 in this order.

    Raises:
        TypeError: not a module.
        ValueError: a model that is watched already, or compiled; an unknown keep; a layer or head that is not there;
            no attention was seen. Attention that the model computes by hand is no error: ``recording.notes`` tells
            of it.
    """
    modules = _check(model, keep, layers, heads)
    recording = Recording()
    recording.has_all_layers = layers is None
    fold = None
    if keep == "summary":

        def fold(track: Track, seen: Seen) -> None:
            summary = AttentionSummary.from_map(track.map(), cross=track.kind == "cross")
            facts: dict[str, Any] = {"mask": seen.mask_in_words, "kernel": seen.kernel, "heads": track.heads}
            recording.add(track.path, summary, shape=track.shape, kind=track.kind, layer=track.layer, **facts)

    report = Report(modules, layers, heads, fold)
    _here.models = (*_here.models, model)
    try:
        with ExitStack() as stack:
            stack.enter_context(register_hook(partial(_of_attend, report)))
            fast = any(isinstance(module, FAST) for _, module in modules)
            if fast:
                stack.enter_context(KernelEye(report))
            elif not all(type(module).__module__.startswith(OURS) for _, module in modules):
                stack.enter_context(FunctionEye(report, stack))
            yield recording
    finally:
        _here.models = tuple(other for other in _here.models if other is not model)
        _fill(recording, report)
    _complain(model, recording, report)


def _check(
    model: Any, keep: str, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> list[tuple[str, nn.Module]]:
    """The model's modules, each with its path."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch(model) wants a torch.nn.Module; got {type(model).__name__}")
    if keep not in KEPT:
        raise ValueError(f'keep={keep!r}: it is "maps" or "summary"')
    for name, numbers in (("layers", layers), ("heads", heads)):
        if numbers is None:
            continue
        listed = not isinstance(numbers, (int, str)) and len(numbers) > 0
        if not listed or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            raise ValueError(f"{name}={numbers!r}: a list of numbers counted from 0, such as [0, 3]")
    if any(model is other for other in _here.models):
        raise ValueError(
            f"this {type(model).__name__} is watched already in this thread: one watch sees everything it does"
        )
    modules = list(model.named_modules())
    for path, module in modules:
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
            raise ValueError(
                f"{path or type(module).__name__} is compiled, and what runs inside compiled code cannot be seen: "
                "watch the model as it was before torch.compile (its _orig_mod)"
            )
    return modules


def _of_attend(
    report: Report, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *, output: Tensor, **options: Any
) -> None:
    """A call of `regard.attend`."""

    def make() -> Seen:
        dropout, bias = options.pop("dropout"), options.pop("bias")
        table = isinstance(bias, Tensor)
        by_head = [_heads(t.detach()) for t in (q, k, v)]
        return Seen(
            by_head[0],
            by_head[1],
            by_head[2],
            "regard.attend",
            mask=mask,
            bias=None if table else bias,
            attn_mask=bias.detach()[(None,) * (4 - bias.ndim)] if table else None,
            dropout=dropout,
            sample=None if dropout else sampled(_heads(output)),
            **options,
        )

    report.saw(make, sys._getframe(2))


def _heads(t: Tensor) -> Tensor:
    """As `attend` reads its axes: the one before the tokens is heads."""
    return t[None] if t.ndim == 3 else four_axes(t)


def _fill(recording: Recording, report: Report) -> None:
    for text in report.notes:
        recording.add_note(text)
    if report.fold is not None:
        return
    _own(report.tracks)
    for track in report.tracks:
        recording.add(
            track.path,
            track.map,
            shape=track.shape,
            mask=track.mask,
            kernel=track.calls[0].kernel,
            kind=track.kind,
            layer=track.layer,
            heads=track.heads,
        )


def _own(tracks: list[Track]) -> None:
    """Copy the tensors of inference mode that somebody else holds too: they may be changed, and nobody would know."""
    kept = {id(t): t for track in tracks for t in track.held() if t.is_inference() and not t.is_nested}
    ours = Counter(t.untyped_storage().data_ptr() for t in kept.values())
    copies = {}
    for name, t in kept.items():
        storage = t.untyped_storage()
        # One use is this variable's own.
        if torch._C._storage_Use_Count(storage._cdata) - 1 > ours[storage.data_ptr()]:
            copies[name] = t.clone()
    if copies:
        for track in tracks:
            track.swap(copies)


def _complain(model: nn.Module, recording: Recording, report: Report) -> None:
    """What was asked for and is not there."""
    name = type(model).__name__
    if not report.found:
        if report.notes:
            return
        raise ValueError(
            f"no attention was seen in {name}. Either it was not called in this block and this thread, or it has none "
            "that calls torch.nn.functional.scaled_dot_product_attention, FlexAttention or regard.attend (a compiled "
            "function hides what it calls)"
        )
    last = max(layer for _, layer in report.found.values())
    for layer in report.layers or ():
        if layer > last:
            raise ValueError(f"layers={list(report.layers or ())}: {name} has {last + 1} layers, 0 to {last}")
    for head in report.heads or ():
        if head >= report.most_heads:
            raise ValueError(
                f"heads={list(report.heads or ())}: {name} has {report.most_heads} heads, 0 to {report.most_heads - 1}"
            )
