"""What a mask in one form and shape did to the weights of an attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["MaskOutcome"]


@dataclass(frozen=True, eq=False)
class MaskOutcome:
    """What a mask in one form and shape did."""

    form: str
    shape: str
    value: Tensor
    """What was handed over."""
    free: Tensor
    """(scores): the weights where everything is allowed."""
    weight: Tensor
    """(scores): with the mask."""
    allowed: Tensor
    """(scores): whether mask and code allow it."""
    blocked: Tensor
    """(scores): whether the weight is zero."""
    judged: Tensor
    """(scores): whether its query is none that the same mask hides as a key: what padding reads is of no use."""
    are_scores_others: bool = False
    """Whether queries or keys change with it, as by positions that are counted by it: weights do as well, then."""
    with_itself: bool = False
    """Whether a token sees itself, whatever the mask says, as a node of a graph with loops."""

    @property
    def wrong(self) -> Tensor:
        """(scores): those that have a weight and must not, or have none and should."""
        return self.judged & (self.blocked == self.allowed)

    @property
    def leaks(self) -> Tensor:
        """(scores): those that have a weight and must not."""
        return self.wrong & ~self.blocked

    @property
    def exact(self) -> bool:
        """Whether exactly those that are not allowed have no weight."""
        return not bool(self.wrong.any())
