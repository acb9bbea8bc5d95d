"""A flag that chooses between PyTorch's fused kernel and the same steps written out: both compute the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["fused_kernel_findings"]

FUSED = "scaled_dot_product_attention"
_FLAG = re.compile(
    r"_?(?:use|is|enable|has)?_?(?:flash|sdpa?|fused|mem(?:ory)?_eff(?:icient)?)(?:_(?:attn|attention|kernel|sdpa?))?"
)
"""Names of what says whether the fused kernel computes."""
SAME = 1e-3
"""Of the largest number that is returned: less may be a constant beside which nothing is divided by 0."""


def fused_kernel_findings(invocation: Invocation) -> Iterator[Finding]:
    """A flag of its modules, named after the fused kernel, with whose other value something else is returned.

    Where the other way raises, or returns what is no number, it may be for another call.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    kinds = {type(each) for each in target.modules() if not type(each).__module__.startswith("torch.")}
    for kind in kinds:
        for name in _flags(kind, target):
            try:
                mine = invocation.outputs(invocation.run())
                with _switched(kind, name, copied(target)) as (other, value):
                    its = invocation.outputs(invocation.run(target=other))
            except Failed:
                continue
            pairs = list(zip(mine, its, strict=False))[:1]
            if pairs and (far := _distance(*pairs[0])) > SAME:
                message = (
                    f"with {name}={value} the same call returns other numbers (by {far:.2g} of the largest): the fused "
                    "kernel and what is written out beside it do not compute the same"
                )
                yield Finding("violation", "kernels-agree", "output", message)
                return


def _flags(kind: type, target: nn.Module) -> Iterator[str]:
    """The flags of a class, or of its modules, that its code asks before it calls the fused kernel."""
    try:
        source = "\n".join(map(inspect.getsource, own_classes(kind)))
    except (OSError, TypeError):
        return
    if FUSED not in source:
        return
    found: dict[str, Any] = {}
    for each in own_classes(kind):
        found |= vars(each)
    for module in target.modules():
        found |= vars(module) if type(module) is kind else {}
    for name, value in found.items():
        if type(value) is bool and _FLAG.fullmatch(name) and re.search(rf"\bif\b[^\n]*\.{name}\b", source):
            yield name


@contextmanager
def _switched(kind: type, name: str, target: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """A module in which the flag has its other value, in its class as well where it is written there; and the value."""
    owner = next((each for each in own_classes(kind) if name in vars(each)), None)
    kept: Mapping[str, bool] = {} if owner is None else {name: vars(owner)[name]}
    mine = [each for each in target.modules() if type(each) is kind]
    value = not getattr(mine[0], name)
    try:
        for each in mine:
            if name in vars(each):
                setattr(each, name, value)
        if owner is not None:
            setattr(owner, name, value)
        yield target, value
    finally:
        if owner is not None:
            setattr(owner, name, kept[name])


def _distance(one: Tensor, other: Tensor) -> float:
    """How far the numbers of two tensors are apart, as a share of the largest; 0 of others that cannot be compared."""
    if one.shape != other.shape or not bool(one.isfinite().all() & other.isfinite().all()):
        return 0.0
    mine, its = one.detach(), other.detach()
    return float((mine - its).abs().max() / mine.abs().max().clamp(min=1e-30))
