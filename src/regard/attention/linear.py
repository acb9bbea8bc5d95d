"""A linear layer in inference, by oneDNN where PyTorch leaves the product to MKL."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

MIN_TOKENS = 4
"""Products of fewer rows take as long by either. The batch does not count: it moves no row to another kernel."""

MIN_ONEDNN_SIZE = 2**16
"""Smaller weights (256 x 256) are left to PyTorch: a call of oneDNN takes 10 microseconds longer to begin."""


def apply_linear(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``, for a module that usually is an `nn.Linear`.

    PyTorch multiplies float32 on the CPU by MKL, which takes up to twice as long as oneDNN on an AMD CPU: 768 to 2,304
    and 768 to 768 features of 16 rows in 1.07 against 0.61 ms, of 256 rows in 11.9 against 5.6 ms (PyTorch 2.13, one
    thread of an EPYC). The roundings differ. oneDNN's operator has no gradient, so that training keeps PyTorch's.

    Args:
        module: its hooks run as in a call, and change no bit; a replaced forward and another class than `nn.Linear`
            are called.
        x: ``(..., tokens, features)``.
    """
    if torch.is_grad_enabled() or not _is_usual(module):
        result: Tensor = module(x)
        return result
    arguments: tuple[Any, ...] = (x,)
    for hook in module._forward_pre_hooks.values():
        changed = hook(module, arguments)
        if changed is not None:
            arguments = changed if isinstance(changed, tuple) else (changed,)
    output: Tensor = (_product if len(arguments) == 1 else nn.Linear.forward)(module, *arguments)
    for hook in module._forward_hooks.values():
        changed = hook(module, arguments, output)
        output = output if changed is None else changed
    return output


def _is_usual(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a call of the module would run its hooks, each of the simple kind, and `nn.Linear.forward`."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and not (module._forward_hooks_with_kwargs or module._forward_pre_hooks_with_kwargs)
        and not (module._forward_hooks_always_called or module._backward_hooks or module._backward_pre_hooks)
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
    )


def _product(module: nn.Linear, x: Tensor) -> Tensor:
    if not _suits_onednn(module, x):
        return module.forward(x)
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, module.weight, module.bias, "none", [], "")
    return product


def _suits_onednn(module: nn.Linear, x: Tensor) -> bool:
    """Whether oneDNN's product is that of the layer, and is at least as fast."""
    weight = module.weight
    return (
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.is_cpu
        and type(weight) is nn.Parameter
        and weight.dtype is torch.float32
        and weight.is_cpu
        and weight.layout is torch.strided
        and weight.is_contiguous()
        and weight.numel() >= MIN_ONEDNN_SIZE
        and x.ndim > 1
        and x.shape[-1] == weight.shape[1]
        and x.shape[-2] >= MIN_TOKENS
        and x.numel() > 0
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._is_any_autocast_enabled()
        and torch._C._get_mkldnn_enabled()
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )
