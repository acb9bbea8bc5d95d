"""The eye below: every operation that PyTorch runs, fused layers and FlexAttention among them."""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from regard.attention.hooks import hook_state
from regard.attention.mask.interop import from_flex
from regard.lens.capture import fast_path
from regard.lens.capture.call import Seen, four_axes, sampled
from regard.lens.capture.eager_pattern import Chain, WrittenOut
from regard.lens.capture.recorder import Report, backward

__all__ = ["Inside", "KernelEye", "of_sdpa"]

aten = torch.ops.aten
COMPOSITE = aten.scaled_dot_product_attention.default
"""What a model calls. It shows in inference mode only; elsewhere what it comes to does."""
MATH = aten._scaled_dot_product_attention_math.default
"""What it comes to where no fused kernel will do; likewise."""
CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
FUSED = {
    CPU: "flash",
    aten._scaled_dot_product_flash_attention.default: "flash",
    aten._scaled_dot_product_efficient_attention.default: "efficient",
    aten._scaled_dot_product_cudnn_attention.default: "cudnn",
}
LAYER = aten._transformer_encoder_layer_fwd.default
MULTI_HEAD = aten._native_multi_head_attention.default
FLEX = torch.ops.higher_order.flex_attention


class Eye(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode of one thread that compiled code does not see."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Otherwise `torch.compile`, and with it FlexAttention, would run another way while this is on."""
        return True

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation, as PyTorch would run it if nobody looked."""
        if not (torch.is_inference_mode_enabled() and _is_composite(func)):
            return func(*args, **kwargs)
        # In inference mode an operation made of others shows whole. Below a dispatch mode its views of a parameter lose
        # `requires_grad`, and `matmul` goes another way for such; this key is what makes the difference.
        include = torch._C._dispatch_tls_local_include_set()
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
        with torch._C._ForceDispatchKeyGuard(include, exclude):
            return func(*args, **kwargs)

    # PyTorch's own also writes flags that belong to the whole process, which two threads would leave behind wrong.
    def __enter__(self) -> Any:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode()


class Inside(Eye):  # type: ignore[no-untyped-call]
    """Looks into one call of ``F.scaled_dot_product_attention``: which kernel, its lse, and what dropout did."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel, self.lse = "", None
        self.written: WrittenOut | None = None
        self.chain = Chain()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func in (COMPOSITE, MATH):
            with self:
                return func.decompose(*args, **kwargs)
        output = self.run(func, args, kwargs)
        if func in FUSED:
            self.kernel, self.lse = FUSED[func], output[1] if func is CPU else None
        elif not self.kernel:
            self.written = self.chain.step(_name(func), args, output)
            if self.written is not None:
                self.kernel = "math"
        return output


def of_sdpa(given: dict[str, Any], output: Tensor, inside: Inside) -> Seen:
    """A call of ``F.scaled_dot_product_attention``.

    Args:
        given: its arguments by name.
        output: what came out.
        inside: what was seen within.
    """
    # Under autocast the caller's tensors are not those that were multiplied.
    q, k, v = (given[name].detach().to(output.dtype) for name in ("query", "key", "value"))
    attn_mask = given.get("attn_mask")
    if attn_mask is not None:
        attn_mask = attn_mask.detach()
        attn_mask = (attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(output.dtype))[
            (None,) * (q.ndim - attn_mask.ndim)
        ]
        attn_mask = attn_mask.expand(*q.shape[:-3], *attn_mask.shape[-3:]) if q.ndim > 4 else attn_mask
        attn_mask = four_axes(attn_mask)
    dropout = given.get("dropout_p") or 0.0
    sample = None
    if not dropout or inside.written is not None:
        # Its rows are taken now: what they stand in may live much longer.
        sample = sampled(four_axes(output), inside.written, k.shape[-2])
    q, k, v = (four_axes(t) for t in (q, k, v))
    return Seen(
        q,
        k if len(k) == len(q) else k.expand(len(q), -1, -1, -1),
        v if len(v) == len(q) else v.expand(len(q), -1, -1, -1),
        f"sdpa, {inside.kernel}" if inside.kernel else "sdpa",
        scale=given.get("scale"),
        attn_mask=attn_mask,
        causal=bool(given.get("is_causal", False)),
        dropout=dropout,
        lse=None if inside.lse is None else inside.lse.detach(),
        sample=sample,
    )


class KernelEye(Eye):  # type: ignore[no-untyped-call]
    """Sees attention in a model with PyTorch's own transformer layers, or with FlexAttention."""

    def __init__(self, report: Report, *, only_flex: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.report, self.only_flex = report, only_flex
        self.chain = Chain()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func is COMPOSITE and not self.only_flex and not hook_state.in_attend:
            with Inside() as inside:
                output = func.decompose(*args, **kwargs)
            self.report.saw(lambda: of_sdpa(_by_name(func, args, kwargs), output, inside), sys._getframe(1))
            return output
        output = self.run(func, args, kwargs)
        if not (hook_state.in_attend or backward()):
            self._look(func, args, kwargs, output)
        return output

    def _look(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        frame = sys._getframe(2)
        if func is FLEX:
            self.report.saw(lambda: _of_flex(args, output, frame), frame)
        elif self.only_flex:
            return
        elif func in FUSED:
            inside = Inside()
            inside.kernel, inside.lse = FUSED[func], output[1] if func is CPU else None
            self.report.saw(lambda: of_sdpa(_by_name(func, args, kwargs), output[0], inside), frame)
        elif func is LAYER:
            self.report.saw(lambda: fast_path.encoder_layer(_by_name(func, args, kwargs), output), frame)
        elif func is MULTI_HEAD:
            self.report.saw(lambda: fast_path.multi_head(_by_name(func, args, kwargs), output[0]), frame)
        else:
            written = self.chain.step(_name(func), args, output)
            if written is not None and written.softened is not None:
                self._written_out(written, written.softened.shape, frame)

    def _written_out(self, written: WrittenOut, shape: torch.Size, frame: FrameType) -> None:
        heads = _local(frame, F.multi_head_attention_forward.__code__, "num_heads")
        if written.softmax == "_safe_softmax":
            self.report.saw(lambda: _of_math(written, tuple(shape)), frame)
        elif heads is not None:
            self.report.saw(lambda: _of_math(written, (-1, heads, *shape[-2:])), frame)
        else:
            self.report.by_hand(frame)


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operation is made of others, and gives a tensor of its own."""
    if not isinstance(func, OpOverload) or any(returned.alias_info for returned in func._schema.returns):
        return False
    name = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _name(func: Any) -> str:
    """Of an operation, without its overload."""
    return func.__name__.split(".")[0]  # type: ignore[no-any-return]


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the operation's schema; attn_bias is what others call attn_mask."""
    names = [argument.name.replace("attn_bias", "attn_mask") for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False))
    return {**given, **{name.replace("attn_bias", "attn_mask"): value for name, value in kwargs.items()}}


def _local(frame: FrameType | None, code: Any, name: str) -> Any:
    """A variable of the innermost running call of a function; None if it is not running."""
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None


def _of_math(written: WrittenOut, shape: tuple[int, ...]) -> Seen:
    """PyTorch's own attention written out: in ``F.scaled_dot_product_attention``, or where weights are asked for.

    Its queries are scaled already.
    """
    assert written.v is not None
    assert written.output is not None
    *lead, queries, keys = shape
    while len(lead) < 2:
        lead.append(1)
    lead = [-1, lead[-1]] if len(lead) > 2 else lead
    q, k, v = (
        t.reshape(*lead, rows, t.shape[-1])
        for t, rows in ((written.left, queries), (written.right.transpose(-2, -1), keys), (written.v, keys))
    )
    added = written.added
    if added is not None:
        of_each = written.softmax != "_safe_softmax" and added.ndim == 3 and len(added) > 1  # (batch * heads, ...)
        added = added.reshape(*lead, *added.shape[-2:]) if of_each else added[(None,) * (4 - added.ndim)]
    sample = sampled(written.output.reshape(*lead, queries, v.shape[-1]), written, keys)
    factor = sample.dropout_factor
    return Seen(
        q,
        k,
        v,
        "written out by PyTorch",
        scale=1.0,
        attn_mask=added,
        # All that dropout leaves is multiplied by 1 / (1 - p).
        dropout=0.0 if factor is None else round(1 - 1 / max(1.0, float(factor.max())), 6),
        sample=sample,
    )


def _of_flex(args: Any, output: Any, frame: FrameType) -> Seen:
    """A call of FlexAttention; its caller's own arguments are in the frame of the function."""
    code = flex_attention.__code__
    score_mod, block_mask = (_local(frame, code, name) for name in ("score_mod", "block_mask"))
    if score_mod is not None and getattr(score_mod, "__name__", "") != "_identity":
        name = getattr(score_mod, "__qualname__", repr(score_mod))
        raise NotImplementedError(f"a score_mod of FlexAttention ({name}) cannot be asked for single scores")
    q, k, v = (t.detach() for t in args[:3])
    closure = getattr(getattr(block_mask, "mask_mod", None), "__closure__", None) or ()
    mask = None
    if isinstance(block_mask, BlockMask) and getattr(block_mask.mask_mod, "__name__", "") != "noop_mask":
        mask = from_flex(block_mask)
    return Seen(
        q,
        k,
        v,
        "flex_attention",
        scale=args[5],
        mask=mask,
        sample=sampled(output[0]),
        also=tuple(cell.cell_contents for cell in closure if isinstance(cell.cell_contents, Tensor)),
    )
