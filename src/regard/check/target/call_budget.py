"""How many calls of a target are tried before none is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.check.target.preparation import modules_in

__all__ = ["Budget", "cost_of"]

MANY_PARTS = 50
"""Modules in a target, a call of which takes twice as long as one of a small target: each is copied."""


@dataclass(eq=False)
class Budget:
    """How many calls may still be tried."""

    left: int
    cost: int = 1
    """As how many of them each one counts."""

    def granted(self, wanted: int) -> int:
        """As many as are wanted, or left."""
        return max(0, min(wanted, self.left // self.cost))

    def spend(self) -> None:
        """Count a call that is tried."""
        self.left -= self.cost


def cost_of(target: Any) -> int:
    """As how many calls of a small target one call of this one counts."""
    return 1 + sum(1 for module in modules_in(target) for _ in module.modules()) // MANY_PARTS
