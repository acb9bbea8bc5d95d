"""Capture of a model's Python calls, with the caller's own arguments."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext, suppress
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode

from regard.attention.hooks import hook_state
from regard.lens.capture.dispatch_mode import FUSED_KERNELS, DispatchModeCapture, SDPAInternals, op_name, sdpa_call
from regard.lens.capture.eager_pattern import MATMUL_OPS, SOFTMAX_OPS, EagerPattern
from regard.lens.capture.recorder import CallRecorder

SDPA = torch._C._nn.scaled_dot_product_attention
FLEX_FILE = flex_attention.__file__
FLEX_FIRST_CALL = "dim"
"""The first function of its tensors that FlexAttention calls."""
DISPATCHED_NAMES = {"_scaled_dot_product_attention_math", *map(op_name, FUSED_KERNELS)}
"""Kernels below ``F.scaled_dot_product_attention``, which exported programs call by their names."""
OBSERVED_NAMES = {
    SDPA.__name__,
    F.multi_head_attention_forward.__name__,
    FLEX_FIRST_CALL,
    *MATMUL_OPS,
    *SOFTMAX_OPS,
    *DISPATCHED_NAMES,
}
MIN_WEIGHTS_FOR_LSE = 2**24
"""From this number of weights on, the log-sum-exp is taken from the kernel; for fewer it is fast to compute again."""
MAX_FRAMES = 12
"""The most frames between FlexAttention and the function that it calls."""


def sdpa_arguments(
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
    """The arguments of ``F.scaled_dot_product_attention`` by name."""
    return {**locals()}


def _needs_internals(query: Any = None, key: Any = None, dropout_p: float = 0.0, **_: Any) -> bool:
    """Whether to look inside the call: for dropout, or for a log-sum-exp that is slow to compute again."""
    if not all(isinstance(t, Tensor) and t.ndim >= 2 and not t.is_nested for t in (query, key)):
        return False
    return dropout_p > 0 or query.shape[:-1].numel() * key.shape[-2] >= MIN_WEIGHTS_FOR_LSE


def _called_from(file: str) -> bool:
    """Whether a function of a file made the call, directly or within a few frames."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None or frame.f_code.co_filename == file:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == file


class FunctionModeCapture(TorchFunctionMode):
    """Captures ``F.scaled_dot_product_attention``, and eager attention.

    Args:
        recorder: receives the calls.
        stack: closes the dispatch mode that FlexAttention needs.
    """

    def __init__(self, recorder: CallRecorder, stack: ExitStack) -> None:
        super().__init__()
        self.recorder, self.stack = recorder, stack
        self.pattern = EagerPattern(is_parameter=recorder.is_parameter)
        self.flex: DispatchModeCapture | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        name = op_name(func)
        if name not in OBSERVED_NAMES and not self.pattern.followed:
            return func(*args, **kwargs)
        # While Dynamo compiles, it traces this method.
        if torch.compiler.is_compiling() or hook_state.in_attend:
            return func(*args, **kwargs)
        if name == SDPA.__name__:
            return self._record_sdpa(func, args, kwargs, sys._getframe(1))
        if func is F.multi_head_attention_forward or name in DISPATCHED_NAMES:
            # A function mode is off inside the function that it handles, so a dispatch mode takes over.
            with DispatchModeCapture(self.recorder):
                return func(*args, **kwargs)
        if name == FLEX_FIRST_CALL and self.flex is None and _called_from(FLEX_FILE):
            # Only a dispatch mode sees the kernel of FlexAttention.
            self.flex = self.stack.enter_context(DispatchModeCapture(self.recorder, only_flex=True))
        output = func(*args, **kwargs)
        try:
            eager = self.pattern.observe(name, args, kwargs, output)
        except Exception as error:
            self.recorder.add_note(f"an operation {name!r} could not be followed: {type(error).__name__}: {error}")
            return output
        if eager is not None:
            self.recorder.record_eager(eager, sys._getframe(1))
        return output

    def _record_sdpa(self, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        named: dict[str, Any] = {}
        internals = SDPAInternals()
        # Arguments that PyTorch refuses get its own message, and tensors of other kinds a note.
        with suppress(Exception):
            named = sdpa_arguments(*args, **kwargs)
        with internals if _needs_internals(**named) else nullcontext():
            output = func(*args, **kwargs)
        self.recorder.record(lambda: sdpa_call(named, output, internals), frame)
        return output
