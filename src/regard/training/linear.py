"""Linear layers of an update in float32 on x86: their products by oneDNN, where PyTorch takes MKL's.

On an AMD EPYC with AVX-512, which MKL's log does not name there, oneDNN multiplies most sizes faster, some twice, and
the products are nine tenths of an update of GPT-2's size (BENCHMARKS.md, "Training"). The results differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from regard._shapes import Float

MIN_MULTIPLICATIONS = 2**27
"""Smaller products are left to PyTorch: a call of oneDNN takes longer to begin."""


class OneDNNLinear(TorchFunctionMode):
    """While this mode is active, `torch.nn.functional.linear` multiplies by oneDNN, forward and backward.

    It stands aside for other dtypes, other devices, autocast, and products that are small.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch."""
        if func is F.linear and not kwargs and is_supported(*args[:2]):
            x, weight, *bias = args
            return _Linear.apply(x, weight, bias[0] if bias else None)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def is_supported(x: Float[Tensor, "*batch d_in"], weight: Float[Tensor, "d_out d_in"]) -> bool:
    """Whether oneDNN multiplies these two as exactly as PyTorch, and sooner."""
    return (
        _has_both_libraries()
        and x.numel() * len(weight) >= MIN_MULTIPLICATIONS
        and x.dtype == weight.dtype == torch.float32
        and x.is_cpu
        and weight.is_cpu
        and type(x) in (Tensor, nn.Parameter)  # a subclass, as DTensor, has products of its own
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _has_both_libraries() -> bool:
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and has_onednn


def multiply(
    x: Float[Tensor, "*batch d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None = None
) -> Float[Tensor, "*batch d_out"]:
    """X W^T + b by oneDNN, without gradients."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, len(weight)).contiguous()  # a gradient may be one number, expanded
        # oneDNN reads transposed matrices where they are.
        dx = multiply(rows, weight.t()).view_as(x) if needs_x else None
        dweight = multiply(rows.t(), x.reshape(-1, x.shape[-1]).t()) if needs_weight else None
        return dx, dweight, rows.sum(0) if needs_bias else None
