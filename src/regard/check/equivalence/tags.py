"""A number of its own for every number of a module's parameters, and linear maps written in them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

__all__ = [
    "CONSTANT",
    "FIRST_TAG",
    "NOTHING",
    "ProjectionTags",
    "Projections",
    "flat_parameters",
    "tagged_parameters",
]

NOTHING = 0
"""The tag of a place without a number: a bias that is not there."""
CONSTANT = 1
"""The tag of a place whose number no parameter decides: an output that is not projected."""
FIRST_TAG = 2
"""The tag of the first number of the first parameter; the others follow in their order."""


@dataclass(frozen=True, eq=False)
class ProjectionTags:
    """A linear map, by tags."""

    weight: Tensor
    """(heads, width of a head, d_model); of the output projection (1, d_out, heads * width)."""
    bias: Tensor
    """The same without the last axis."""


@dataclass(frozen=True, eq=False)
class Projections:
    """The four maps of a module; keys and values that several heads share stand at each of them."""

    q: ProjectionTags
    k: ProjectionTags
    v: ProjectionTags
    out: ProjectionTags
    turn: Tensor | None = None
    """(width, width): what positions make of a query one token later; None where they leave it."""

    @property
    def heads(self) -> int:
        """How many query heads there are."""
        return self.q.weight.shape[0]


def flat_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that have tags, in their order; those shared between modules once."""
    return [(name, each) for name, each in module.named_parameters() if each.is_floating_point()]


def tagged_parameters(module: nn.Module) -> list[tuple[str, int, int]]:
    """Each parameter with its first tag and the one after its last."""
    found, at = [], FIRST_TAG
    for name, each in flat_parameters(module):
        found.append((name, at, at + each.numel()))
        at += each.numel()
    return found
