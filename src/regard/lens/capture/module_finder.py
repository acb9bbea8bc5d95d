"""The modules of a model, and which of them is running: whose attention a captured call is."""

from __future__ import annotations

from collections.abc import Sequence, ValuesView
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from regard.lens.capture.kind import CALL_CODE

FUSED_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, torch.jit.ScriptModule)
"""Layers whose calls a function mode cannot see, or would change: PyTorch's own, which run fused kernels in inference,
and TorchScript."""

ATTEND_ONLY = "torch.nn.modules.", "regard.transformer.", "regard.attention.multihead", "regard.attention.positions."
"""The Python modules of layers that compute attention by `regard.attend` only, if at all; its hook is enough."""


def list_modules(model: Any, function: str) -> list[tuple[str, nn.Module]]:
    """The modules of a model, each with its path.

    Args:
        model: what a user gave.
        function: the function that it was given to, for the message.

    Raises:
        TypeError: not a module.
        ValueError: a compiled model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}(model) wants a torch.nn.Module; got {type(model).__name__}")
    modules = list(model.named_modules())
    for path, module in modules:
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
            raise ValueError(
                f"{path or type(module).__name__} is compiled, and calls inside compiled code cannot be seen: "
                f"{function} the model as it was before torch.compile (its _orig_mod)"
            )
    return modules


def has_fused_layers(modules: Sequence[tuple[str, nn.Module]]) -> bool:
    """Whether a model has layers with fused kernels of their own."""
    return any(isinstance(module, FUSED_LAYERS) for _, module in modules)


def uses_attend_only(modules: Sequence[tuple[str, nn.Module]]) -> bool:
    """Whether every attention of a model is a call of `regard.attend`."""
    return all(type(module).__module__.startswith(ATTEND_ONLY) for _, module in modules) and not has_fused_layers(
        modules
    )


class ModuleFinder:
    """Finds the module that computes an attention among those of a model.

    Args:
        modules: the modules of the model, each with its path.
    """

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._modules = {id(module): (path, module) for path, module in modules}

    def values(self) -> ValuesView[tuple[str, nn.Module]]:
        """Every module with its path; a module that has several paths comes once."""
        return self._modules.values()

    def find(self, frame: FrameType | None) -> tuple[str, nn.Module] | None:
        """The innermost module of the model that is running: one that was called, or a method of one.

        Where another model was called since, as an assistant is from `generate`, a method is not enough.

        Args:
            frame: the frame of the code that computed the attention.
        """
        is_other = False
        while frame is not None:
            code = frame.f_code
            module = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            if isinstance(module, nn.Module) and _is_method(code, module):
                owner = self._modules.get(id(module))
                if owner is not None and (not is_other or code is CALL_CODE):
                    return owner
                is_other = is_other or owner is None
            frame = frame.f_back
        return None


def _is_method(code: CodeType, module: nn.Module) -> bool:
    """Whether this is the code of a method of a module, and not of a function that was given the module."""
    return any(code.co_qualname == f"{cls.__qualname__}.{code.co_name}" for cls in type(module).__mro__)
