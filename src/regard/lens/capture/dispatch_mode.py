"""Capture below PyTorch's Python functions: every operation, also in fused layers and FlexAttention."""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from regard.attention.hooks import hook_state
from regard.attention.mask import causal
from regard.attention.mask.interop import from_flex
from regard.lens.capture.call import CapturedCall, sample_output, to_four_axes
from regard.lens.capture.eager_pattern import EagerAttention, EagerPattern
from regard.lens.capture.fast_path import encoder_layer_call, multi_head_call
from regard.lens.capture.recorder import CallRecorder, in_backward

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
"""The operation of ``F.scaled_dot_product_attention``. It is visible in inference mode only; in other modes the
operations that it consists of are visible."""
SDPA_MATH = aten._scaled_dot_product_attention_math.default
"""The operation that it calls where no fused kernel can run; visible in inference mode only as well."""
FLASH_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
FUSED_KERNELS = {
    FLASH_CPU: "flash",
    aten._scaled_dot_product_flash_attention.default: "flash",
    aten._scaled_dot_product_efficient_attention.default: "efficient",
    aten._scaled_dot_product_cudnn_attention.default: "cudnn",
}
ENCODER_LAYER = aten._transformer_encoder_layer_fwd.default
NATIVE_MULTI_HEAD = aten._native_multi_head_attention.default
FLEX_ATTENTION = torch.ops.higher_order.flex_attention


class _ThreadMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode of one thread, invisible to compiled code."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: otherwise `torch.compile`, and FlexAttention with it, would run differently under this mode."""
        return True

    def run_unchanged(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation with the bits that it has without a dispatch mode."""
        if not (torch.is_inference_mode_enabled() and _is_composite(func)):
            return func(*args, **kwargs)
        # In inference mode a composite operation arrives whole. Below a dispatch mode its views of a parameter lose
        # `requires_grad`, which makes `matmul` take another path; this dispatch key keeps it.
        include = torch._C._dispatch_tls_local_include_set()
        exclude = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
        with torch._C._ForceDispatchKeyGuard(include, exclude):
            return func(*args, **kwargs)

    # PyTorch's own methods also write flags of the whole process, which two threads would leave wrong.
    def __enter__(self) -> Any:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode()


class SDPAInternals(_ThreadMode):  # type: ignore[no-untyped-call]
    """Looks inside one ``F.scaled_dot_product_attention``: its kernel, its log-sum-exp, what dropout did."""

    def __init__(self, kernel: str = "", lse: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel, self.lse = kernel, lse
        self.eager: EagerAttention | None = None
        self.pattern = EagerPattern(mul_is_dropout=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func in (SDPA, SDPA_MATH):
            with self:
                return func.decompose(*args, **kwargs)
        output = self.run_unchanged(func, args, kwargs)
        if func in FUSED_KERNELS:
            self.kernel, self.lse = FUSED_KERNELS[func], output[1] if func is FLASH_CPU else None
        elif not self.kernel:
            eager = self.pattern.observe(op_name(func), args, kwargs, output)
            if eager is not None and eager.output is not None:
                self.eager, self.kernel = eager, "math"
        return output


def sdpa_call(args: dict[str, Any], output: Tensor, internals: SDPAInternals) -> CapturedCall:
    """A call of ``F.scaled_dot_product_attention``.

    Args:
        args: its arguments by name.
        output: its output.
        internals: what happened inside.
    """
    if output.is_nested:
        raise NotImplementedError("its tensors are nested: texts of several lengths side by side")
    # Under autocast the caller's tensors have another dtype than those that were multiplied.
    q, k, v = (args[name].to(output.dtype) for name in ("query", "key", "value"))
    # One query of all texts, or one head of queries, is repeated as PyTorch repeats it.
    q = q.expand(*output.shape[:-2], *q.shape[-2:])
    k, v = (t.expand(*output.shape[:-3], *t.shape[-3:]) for t in (k, v))
    attn_mask, mask = args.get("attn_mask"), None
    if isinstance(attn_mask, CausalBias):  # a mask without numbers
        upper_left = attn_mask.variant == CausalVariant.UPPER_LEFT
        attn_mask, mask = None, causal(offset=0 if upper_left else None)
    if attn_mask is not None:
        attn_mask = (attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(output.dtype))[
            (None,) * (q.ndim - attn_mask.ndim)
        ]
        attn_mask = attn_mask.expand(*q.shape[:-3], *attn_mask.shape[-3:]) if q.ndim > 4 else attn_mask
        attn_mask = to_four_axes(attn_mask)
    dropout = args.get("dropout_p") or 0.0
    sample = None
    if not dropout or internals.eager is not None:
        # The rows are copied now: the output may live much longer than is needed.
        sample = sample_output(to_four_axes(output), internals.eager, k.shape[-2])
    q, k, v = (to_four_axes(t) for t in (q, k, v))
    return CapturedCall(
        q,
        k,
        v,
        f"sdpa, {internals.kernel}" if internals.kernel else "sdpa",
        scale=args.get("scale"),
        attn_mask=attn_mask,
        mask=mask,
        is_causal=bool(args.get("is_causal", False)),
        dropout=dropout,
        lse=None if internals.lse is None else internals.lse.detach(),
        sample=sample,
    )


class DispatchModeCapture(_ThreadMode):  # type: ignore[no-untyped-call]
    """Captures attention in a model with PyTorch's own transformer layers, or with FlexAttention.

    Args:
        recorder: receives the calls.
        only_flex: whether to capture FlexAttention only.
    """

    def __init__(self, recorder: CallRecorder, *, only_flex: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder, self.only_flex = recorder, only_flex
        self.pattern = EagerPattern(mul_is_dropout=True, is_parameter=recorder.is_parameter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func in (SDPA, SDPA_MATH) and not self.only_flex and not hook_state.in_attend:
            with SDPAInternals() as internals:
                output = func.decompose(*args, **kwargs)
            out = output if func is SDPA else output[0]
            self.recorder.record(
                lambda: sdpa_call(schema_arguments(func, args, kwargs), out, internals), sys._getframe(1)
            )
            return output
        output = self.run_unchanged(func, args, kwargs)
        if not (hook_state.in_attend or in_backward()):
            try:
                self._capture(func, args, kwargs, output)
            except Exception as error:
                self.recorder.add_note(f"{func} could not be followed: {type(error).__name__}: {error}")
        return output

    def _capture(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        frame = sys._getframe(2)
        if func is FLEX_ATTENTION:
            self.recorder.record(lambda: flex_call(args, output, frame), frame)
        elif self.only_flex:
            return
        elif func in FUSED_KERNELS:
            internals = SDPAInternals(FUSED_KERNELS[func], output[1] if func is FLASH_CPU else None)
            self.recorder.record(lambda: sdpa_call(schema_arguments(func, args, kwargs), output[0], internals), frame)
        elif func is ENCODER_LAYER:
            self.recorder.record(lambda: encoder_layer_call(schema_arguments(func, args, kwargs), output), frame)
        elif func is NATIVE_MULTI_HEAD:
            self.recorder.record(lambda: multi_head_call(schema_arguments(func, args, kwargs), output[0]), frame)
        else:
            eager = self.pattern.observe(op_name(func), args, kwargs, output)
            if eager is not None:
                self._capture_eager(eager, frame)

    def _capture_eager(self, eager: EagerAttention, frame: FrameType) -> None:
        heads = _local_variable(frame, F.multi_head_attention_forward.__code__, "num_heads")
        if eager.softmax_op != "_safe_softmax" and heads is None:
            self.recorder.record_eager(eager, frame)
        elif eager.output is not None and eager.weights is not None:
            shape = tuple(eager.weights.shape)
            if eager.softmax_op != "_safe_softmax":
                shape = (-1, heads, *shape[-2:])
            self.recorder.record(lambda: _math_call(eager, shape), frame)


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operation consists of others and returns a new tensor."""
    if not isinstance(func, OpOverload) or any(returned.alias_info for returned in func._schema.returns):
        return False
    name = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def op_name(func: Any) -> str:
    """The name of a function or of an operation, without its overload."""
    return getattr(func, "__name__", "").split(".")[0]


def schema_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operation by the names of its schema; attn_bias is called attn_mask, as in the others."""
    schema = (func.default if isinstance(func, OpOverloadPacket) else func)._schema
    names = [argument.name.replace("attn_bias", "attn_mask") for argument in schema.arguments]
    named = dict(zip(names, args, strict=False))
    return {**named, **{name.replace("attn_bias", "attn_mask"): value for name, value in kwargs.items()}}


def _local_variable(frame: FrameType | None, code: Any, name: str) -> Any:
    """A local variable of the innermost running call of a function; None if the function is not running."""
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None


def _math_call(eager: EagerAttention, shape: tuple[int, ...]) -> CapturedCall:
    """PyTorch's own eager attention, as where ``need_weights`` is asked for. Its queries are scaled already."""
    assert eager.q is not None
    assert eager.k_transposed is not None
    assert eager.output is not None
    *lead, queries, keys = shape
    while len(lead) < 2:
        lead.append(1)
    lead = [-1, lead[-1]] if len(lead) > 2 else lead
    q, k, v = (
        t.reshape(*lead, rows, t.shape[-1])
        for t, rows in ((eager.q, queries), (eager.k_transposed.transpose(-2, -1), keys), (eager.v, keys))
    )
    bias = eager.bias
    if bias is not None:
        per_head = eager.softmax_op != "_safe_softmax" and bias.ndim == 3 and len(bias) > 1  # (batch * heads, ...)
        bias = bias.reshape(*lead, *bias.shape[-2:]) if per_head else bias[(None,) * (4 - bias.ndim)]
    sample = sample_output(eager.output.reshape(*lead, queries, v.shape[-1]), eager, keys)
    factor = sample.dropout_factor
    return CapturedCall(
        q,
        k,
        v,
        "eager, by PyTorch",
        scale=1.0,
        attn_mask=bias,
        # Dropout multiplies the weights that it keeps by 1 / (1 - p).
        dropout=0.0 if factor is None else round(1 - 1 / max(1.0, float(factor.max())), 6),
        sample=sample,
    )


def flex_call(args: Any, output: Any, frame: FrameType) -> CapturedCall:
    """A call of FlexAttention; its mask is a local variable of the function that the caller called."""
    code = flex_attention.__code__
    score_mod, block_mask = (_local_variable(frame, code, name) for name in ("score_mod", "block_mask"))
    if score_mod is not None and getattr(score_mod, "__name__", "") != "_identity":
        name = getattr(score_mod, "__qualname__", repr(score_mod))
        raise NotImplementedError(f"FlexAttention with a score_mod ({name}): its scores cannot be computed one by one")
    q, k, v = args[:3]
    closure = getattr(getattr(block_mask, "mask_mod", None), "__closure__", None) or ()
    mask = None
    if isinstance(block_mask, BlockMask) and getattr(block_mask.mask_mod, "__name__", "") != "noop_mask":
        mask = from_flex(block_mask)
    return CapturedCall(
        q,
        k,
        v,
        "flex_attention",
        scale=args[5],
        mask=mask,
        sample=sample_output(output[0]),
        dependencies=tuple(cell.cell_contents for cell in closure if isinstance(cell.cell_contents, Tensor)),
    )
