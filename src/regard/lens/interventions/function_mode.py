"""The function mode that gives every attention call of a thread to an `Editor`.

It lies above autograd, so gradients flow through edited attention. While it is on, PyTorch's own layers leave their
fused inference path by themselves, as they do under every function mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.hooks import hook_state
from regard.lens.capture.call import CapturedCall
from regard.lens.capture.dispatch_mode import (
    FLEX_ATTENTION,
    SDPAInternals,
    flex_call,
    op_name,
    schema_arguments,
    sdpa_call,
)
from regard.lens.capture.eager_pattern import EagerAttention, EagerPattern, product_factors
from regard.lens.capture.eager_weights import eager_output_places, eager_weights_call
from regard.lens.capture.function_mode import DISPATCHED_NAMES, SDPA, sdpa_arguments
from regard.lens.interventions.editor import Editor


def _transparent(function: Any) -> FunctionType:
    """A function of PyTorch that does not give itself to a function mode as a whole: the mode sees the calls in it."""
    names = {**function.__globals__, "has_torch_function": lambda _: False, "has_torch_function_unary": lambda _: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


TRANSPARENT = {
    function: _transparent(function)
    for function in (
        F.multi_head_attention_forward,
        torch.Tensor.backward,
        torch.autograd.backward,
        torch.autograd.grad,
    )
}
"""Functions in which attention runs: PyTorch's layer, and backward passes with activation checkpointing."""

FAST_PATH_NOTE = (
    "PyTorch's own layers leave their fused inference path while they are edited: their numbers may differ in the last "
    "digits"
)


class InterventionMode(TorchFunctionMode):
    """Gives each attention call to an editor, and returns what the editor makes of its output.

    Args:
        editor: the editor.
    """

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.editor = editor
        self.pattern = EagerPattern()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or hook_state.in_attend:
            return func(*args, **kwargs)
        if func in TRANSPARENT:
            if func is F.multi_head_attention_forward:
                self.editor.notes.setdefault(FAST_PATH_NOTE)
            with self:
                return TRANSPARENT[func](*args, **kwargs)
        name = op_name(func)
        output = func(*args, **kwargs)
        frame = sys._getframe(1)
        if func is FLEX_ATTENTION:
            return self._edit(output, lambda out: flex_call(args, (out,), frame), frame)
        if name == SDPA.__name__ or name in DISPATCHED_NAMES:
            named = _named_arguments(func, args, kwargs)
            return self._edit(output, lambda out: sdpa_call(named, out, SDPAInternals()), frame)
        eager = self.pattern.observe(name, args, kwargs, output)
        if eager is None or eager.output is None:
            return output
        return self._edit_eager(
            replace(eager, factors=tuple(product_factors(name, args, kwargs)), output=output), frame
        )

    def _edit(self, output: Any, make_call: Callable[[Tensor], CapturedCall], frame: FrameType) -> Any:
        """Edit an output, or the first of several."""
        first, *others = output if isinstance(output, tuple) else (output,)
        edited = self.editor.edit(lambda _: (make_call(first), first), frame)
        if edited is None:
            return output
        edited = edited.view(first.shape)
        return (edited, *others) if isinstance(output, tuple) else edited

    def _edit_eager(self, eager: EagerAttention, frame: FrameType) -> Tensor:
        output = eager.output
        assert output is not None
        flat, places = output.reshape(-1), torch.empty(0)

        def make_call(module: nn.Module) -> tuple[CapturedCall, Tensor]:
            nonlocal places
            places = eager_output_places(eager, module)
            return eager_weights_call(eager, module), flat[places]

        edited = self.editor.edit(make_call, frame)
        if edited is None:
            return output
        return flat.index_put((places.reshape(-1),), edited.reshape(-1)).view(output.shape)


def _named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of the function or of an operation below it by name."""
    return sdpa_arguments(*args, **kwargs) if func is SDPA else schema_arguments(func, args, kwargs)
