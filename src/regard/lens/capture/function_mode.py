"""The eye above: what a model's Python code calls, with the caller's own arguments."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode

from regard.attention.hooks import hook_state
from regard.lens.capture.dispatch_mode import Inside, KernelEye, of_sdpa
from regard.lens.capture.eager_pattern import PRODUCTS, Chain
from regard.lens.capture.recorder import Report, backward

__all__ = ["FunctionEye"]

SDPA = torch._C._nn.scaled_dot_product_attention
FLEX = flex_attention.__file__
ASKED = "dim"
"""What FlexAttention asks of its tensors before it starts."""
LOOKED_AT = {SDPA.__name__, F.multi_head_attention_forward.__name__, ASKED, *PRODUCTS}
MANY = 2**24
"""From so many weights on, the lse is worth taking from the kernel; below, it is computed again in no time."""
NEAR = 12
"""So many frames away its file is looked for."""


def _by_name(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: Any = False,
) -> dict[str, Any]:
    return {**locals()}


def _needs_a_look(query: Tensor, key: Tensor, dropout_p: float, **_: Any) -> bool:
    """Whether what the call does inside matters: an lse that took long, or dropout."""
    return dropout_p > 0 or query.shape[:-1].numel() * key.shape[-2] >= MANY


def _called_from(file: str) -> bool:
    """Whether a function of a file called what the eye sees, itself or by a few steps."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(NEAR):
        if frame is None or frame.f_code.co_filename == file:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == file


class FunctionEye(TorchFunctionMode):
    """Sees calls of ``F.scaled_dot_product_attention``, and attention that is written out.

    Args:
        report: who is told.
        stack: closes what is opened on the way.
    """

    def __init__(self, report: Report, stack: ExitStack) -> None:
        super().__init__()
        self.report, self.stack = report, stack
        self.chain = Chain()
        self.flex: KernelEye | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in LOOKED_AT and self.chain.found is None:
            return func(*args, **kwargs)
        if (
            torch.compiler.is_compiling() or hook_state.in_attend
        ):  # the first is for Dynamo, which traces this very code
            return func(*args, **kwargs)
        if func is SDPA:
            given = _by_name(*args, **kwargs)
            inside = Inside()
            with inside if _needs_a_look(**given) else nullcontext():
                output = func(*args, **kwargs)
            self.report.saw(lambda: of_sdpa(given, output, inside), sys._getframe(1))
            return output
        if func is F.multi_head_attention_forward:
            # It asks for this eye first, and inside it this eye is closed.
            with KernelEye(self.report):
                return func(*args, **kwargs)
        if name == ASKED and self.flex is None and _called_from(FLEX):
            # FlexAttention shows itself by what it asks its tensors; its kernel shows to the other eye only.
            self.flex = self.stack.enter_context(KernelEye(self.report, only_flex=True))
        output = func(*args, **kwargs)
        if self.chain.step(name, args, output) is not None and not backward():
            self.report.by_hand(sys._getframe(1))
        return output
