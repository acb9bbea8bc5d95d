"""A linear layer in inference, by oneDNN where PyTorch leaves the product to MKL."""

from __future__ import annotations

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
        module: its hooks, a replaced forward, or another class than `nn.Linear`, are honoured.
        x: ``(..., tokens, features)``.
    """
    if torch.is_grad_enabled() or not _suits_onednn(module, x):
        result: Tensor = module(x)
        return result
    weight: Tensor = module.weight  # type: ignore[assignment]
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, module.bias, "none", [], "")
    return product


def _suits_onednn(module: nn.Module, x: Tensor) -> bool:
    """Whether oneDNN's product is that of the module, and nobody looks for PyTorch's."""
    if type(module) is not nn.Linear or type(x) is not Tensor:
        return False
    weight = module.weight
    return (
        x.dtype is torch.float32
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
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._is_any_autocast_enabled()
        and torch._C._get_mkldnn_enabled()
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )
