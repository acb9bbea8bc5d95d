"""Norms in float16: squares of numbers above 255 are infinite there, and a vector that is divided by them is 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.check.properties.code import code_of
from regard.check.properties.documentation import documentation_of, works_in_low_precision
from regard.check.properties.finding import Finding
from regard.check.properties.half_runs import run_in_half
from regard.check.target import Invocation
from regard.check.target.preparation import began_in_half

__all__ = ["half_norm_findings"]

_HALF = re.compile(r"\bfloat16\b|\bfp16\b|\bhalf\b", re.I)
_MADE_HALF = re.compile(r"\bself\.(?:half\(\)|to\(\s*(?:dtype\s*=\s*)?torch\.(?:float16|half)\s*\))")
"""In the constructor of a module: its parameters are of float16."""
LARGEST = 400.0
"""Of the numbers of a sequence: streams of residuals have such, and float16 has them up to 65504."""
_SUMS = frozenset({"mean", "sum"})
_SPREADS = frozenset({"var", "var_mean"})
_GO_ON = frozenset({"add", "clamp", "clamp_min", "maximum", "mul", "div", "unsqueeze", "view", "expand"})
_ROOTS = frozenset({"rsqrt", "sqrt"})


def half_norm_findings(invocation: Invocation) -> Iterator[Finding]:
    """A root of a mean of squares that is infinite, of finite numbers, in a module of float16, or said to run in it.

    PyTorch's own norms compute in float32 inside.

    Args:
        invocation: a call of a module with vectors.
    """
    target, text = invocation.target, documentation_of(invocation.target)
    if not isinstance(target, nn.Module) or invocation.arrays or invocation.packed:
        return
    said = _HALF.search(text) is not None and works_in_low_precision(text)
    if not said and not began_in_half(target) and _MADE_HALF.search(code_of(target)) is None:
        return
    watch = _Squares()
    run_in_half(invocation, watch, lambda each: each * (LARGEST / float(each.abs().max().clamp(min=1e-12))))
    if watch.found:
        message = (
            f"it runs in float16, and a norm squares in it: of numbers up to {LARGEST:g} the mean of the squares is "
            "infinite, and what the norm returns is 0"
        )
        yield Finding("violation", "norm-in-float32", "block", message)


class _Squares(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices the root of a mean of squares of float16 that is infinite, where what is squared is finite."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        self.squares: dict[int, Tensor] = {}
        self.means: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        taken = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.is_floating_point()]
        made = [each for each in tree_leaves(returned) if isinstance(each, Tensor) and each.dtype == torch.float16]
        if not taken or not made or bool(made[0].isfinite().all()):
            self.found |= name in _ROOTS | {"pow"} and any(id(each) in self.means for each in taken)
            return returned
        is_finite = all(bool(each.isfinite().all()) for each in taken)
        is_square = (name == "pow" and args[1:2] == (2,)) or name == "square"
        is_square = is_square or (name == "mul" and len(taken) == 2 and taken[0] is taken[1])
        if is_finite and is_square:
            self.squares[id(made[0])] = made[0]
        elif (name in _SUMS and id(taken[0]) in self.squares and made[0].numel() < taken[0].numel()) or (
            name in _SPREADS and is_finite
        ):
            self.means[id(made[0])] = made[0]
        elif any(id(each) in self.means for each in taken):
            self.found |= name in _ROOTS
            if name in _GO_ON:
                self.means[id(made[0])] = made[0]
        return returned
