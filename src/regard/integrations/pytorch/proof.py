"""Equality of a module and its replacement: of one call, in float64 and in the module's own dtype."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.integrations.pytorch.modules import Replacement, replacement_class

EXACT = 1e-9
"""The largest difference in float64 that counts as rounding, as a share of the largest number."""
ROUNDING = 64
"""In the module's dtype a replacement may be this many steps of rounding of the largest number farther from float64
than four times PyTorch's own result is."""
INPUTS = ("query", "key", "value", "src")
"""The arguments that a gradient is compared of."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def prove_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Prove that a module and its replacement return the same for one call, gradients included.

    In float64 the outputs, the weights and the gradients of inputs and parameters must be equal but for rounding; in
    the module's own dtype the replacement must be about as near to the numbers of float64 as PyTorch is. Numbers that
    PyTorch makes NaN, because a query may attend to nothing, are not compared. The module itself does not run, so no
    hook of it is called; dropout is off.

    Args:
        module: PyTorch's module, not replaced.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.

    Returns:
        The largest difference of the outputs in the module's dtype.

    Raises:
        ValueError: they differ; the message says in what and by how much.
    """
    nested = any(isinstance(t, Tensor) and t.is_nested for t in tree_leaves((args, kwargs)))
    device = next(module.parameters()).device.type
    with torch.inference_mode(False), torch.autocast(device, enabled=False):
        exact, *exact_other = _both(module, args, kwargs, torch.float64, gradients=not nested)
        theirs, *others = _both(module, args, kwargs, None, gradients=False)
    for name, expected in exact.items():
        difference, scale = largest_difference(expected, exact_other[0][name])
        if not difference <= EXACT * scale:
            raise ValueError(f"{name} differ by {difference:.2g} in float64, where the largest number is {scale:.2g}")
    largest = 0.0
    for name, t in theirs.items():
        expected, ours = exact[name], others[0][name]
        error, scale = largest_difference(expected, ours)
        allowed = 4 * largest_difference(expected, t, skip_nan=True)[0] + ROUNDING * torch.finfo(t.dtype).eps * scale
        if not error <= allowed:
            raise ValueError(
                f"{name} in {t.dtype} differ by {error:.2g} from those in float64; PyTorch's rounding "
                f"explains {allowed:.2g}"
            )
        largest = max(largest, largest_difference(t, ours)[0])
    return largest


def largest_difference(expected: Tensor, actual: Tensor, *, skip_nan: bool = False) -> tuple[float, float]:
    """The largest difference of two tensors where the expected one is finite, and its largest number there.

    Args:
        expected: a tensor.
        actual: a tensor of the same shape; another shape has an infinite difference.
        skip_nan: whether NaN of the actual tensor is left out; otherwise its difference is infinite.
    """
    if expected.shape != actual.shape:
        return float("inf"), 0.0
    expected, actual = expected.detach().double(), actual.detach().double()
    compared = expected.isfinite() & (~actual.isnan() if skip_nan else True)
    if not bool(compared.any()):
        return 0.0, 0.0
    difference = float((expected - actual).abs()[compared].nan_to_num(nan=torch.inf).max())
    return difference, float(expected.abs()[compared].max())


def _both(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype | None, *, gradients: bool
) -> list[dict[str, Tensor]]:
    """What PyTorch's module and its replacement give for the same call, by name."""
    results: list[dict[str, Tensor]] = []
    for replaced in (False, True):
        memo: dict[int, Any] = {}
        twin = _twin(module, _converter(dtype, memo))
        if replaced:
            _replace_classes(twin)
        inputs = tree_map(_converter(dtype, memo), (args, kwargs))
        with torch.set_grad_enabled(gradients):
            results.append(_run(twin, *inputs, gradients=gradients, compared=results[0] if results else None))
    return results


def _run(
    twin: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    gradients: bool,
    compared: dict[str, Tensor] | None,
) -> dict[str, Tensor]:
    """The outputs of a call and their gradients, by name; no gradient comes from where PyTorch's outputs are NaN.

    Args:
        twin: the module.
        args: positional arguments.
        kwargs: keyword arguments.
        gradients: whether to compute gradients.
        compared: PyTorch's outputs; None if these are they.
    """
    named = inspect.signature(twin.forward).bind(*args, **kwargs).arguments
    leaves = {f"the gradients of {name}": p for name, p in twin.named_parameters() if gradients and p.requires_grad}
    for name in INPUTS:
        if gradients and name in named:
            leaves[f"the gradients of {name}"] = named[name].requires_grad_()
    outputs = [t for t in tree_leaves(twin(*args, **kwargs)) if isinstance(t, Tensor)]
    results = {
        name: t.to_padded_tensor(0.0) if t.is_nested else t
        for name, t in zip(("the outputs", "the weights"), outputs, strict=False)
    }
    if leaves:
        cotangents = [_cotangent(t) for t in (results if compared is None else compared).values()][: len(outputs)]
        found = torch.autograd.grad(outputs, list(leaves.values()), cotangents, materialize_grads=True)
        results.update(zip(leaves, found, strict=True))
    return results


def _cotangent(t: Tensor) -> Tensor:
    numbers = torch.arange(t.numel(), device=t.device).cos().reshape(t.shape)
    return numbers.to(t.dtype).masked_fill(~t.detach().isfinite(), 0.0)


def _converter(dtype: torch.dtype | None, memo: dict[int, Any]) -> Callable[[Any], Any]:
    """A function that copies floating-point tensors to a dtype, the same tensor only once; other values stay."""

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in memo:
            t = value.detach()
            t = t.clone() if dtype is None or not t.is_floating_point() else t.to(dtype, copy=True)
            memo[id(value)] = value, t.requires_grad_(value.requires_grad)
        return memo[id(value)][1]

    return convert


def _twin(module: nn.Module, convert: Callable[[Any], Any]) -> nn.Module:
    """A module with converted parameters and buffers, in evaluation mode, without hooks."""
    twin = type(module).__new__(type(module))
    for name, value in vars(module).items():
        twin.__dict__[name] = convert(value)
    twin.__dict__.update({name: OrderedDict() for name in HOOKS}, training=False)
    for tensors in ("_parameters", "_buffers"):
        twin.__dict__[tensors] = {name: convert(t) for name, t in vars(module)[tensors].items()}
    twin.__dict__["_modules"] = {
        name: None if part is None else _twin(part, convert) for name, part in vars(module)["_modules"].items()
    }
    return twin


def _replace_classes(twin: nn.Module) -> None:
    """Replace a module and, in a layer, its attention."""
    attention = twin.self_attn if isinstance(twin, nn.TransformerEncoderLayer) else twin
    for module in {id(m): m for m in (twin, attention)}.values():
        if isinstance(module, nn.Module) and not isinstance(module, Replacement):
            module.__class__ = replacement_class(type(module))
