"""A softmax between two products: attention that is written out, by PyTorch itself or by the model's own code."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["PRODUCTS", "Chain", "WrittenOut"]

PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}
SUMS = {"add", "add_", "__add__"}
SOFTMAXES = {"softmax", "_softmax", "_safe_softmax", "exp", "exp_"}
DROPOUTS = {"mul", "dropout", "native_dropout"}
NEW = {"empty_like", "zeros_like", "ones_like", "rand_like"}
"""Whose output has nothing of its input but the shape."""


@dataclass
class WrittenOut:
    """The tensors of such an attention."""

    left: Tensor
    """What the scores are a product of: queries, (..., queries, width)."""
    right: Tensor
    """Keys, turned: (..., width, keys)."""
    added: Tensor | None = None
    """What was added to the product before the softmax."""
    softened: Tensor | None = None
    """What came out of the softmax."""
    used: Tensor | None = None
    """What the values were multiplied by, where dropout made that something else."""
    softmax: str = ""
    """Its name."""
    v: Tensor | None = None
    output: Tensor | None = None


class Chain:
    """Follows one product through what happens to it, operation by operation, until it is multiplied again.

    What is followed is held weakly; the tensors of a `WrittenOut` live until the next product.
    """

    def __init__(self) -> None:
        self.found: WrittenOut | None = None
        self.followed: list[weakref.ref[Tensor]] = []
        self.dropped = False

    def step(self, name: str, args: Any, output: Any) -> WrittenOut | None:
        """Tell of one operation; gives the attention that it completes.

        Args:
            name: of the operation, without its overload.
            args: what it was called with, in order.
            output: what came out.
        """
        if name in PRODUCTS:
            return self._product(name, args, output)
        found = self.found
        if found is None or not isinstance(output, Tensor) or name in NEW:
            return None
        tensors = _tensors(args)
        source = next((t for t in tensors if self._follows(t)), None)
        if source is None or not (output.numel() == source.numel() or _is_beside(output, source)):
            return None
        other = next((t for t in tensors if not self._follows(t)), None)
        if name in SOFTMAXES:
            found.softmax, found.softened = name, output.detach()
            self.followed = []
        elif not found.softmax and name in SUMS and other is not None:
            found.added = other.detach()
        elif found.softmax and name in DROPOUTS:
            self.dropped = True
        self.followed.append(weakref.ref(output))
        return None

    def _product(self, name: str, args: Any, output: Any) -> WrittenOut | None:
        tensors = _tensors(args)
        added = tensors.pop(0).detach() if name == "baddbmm" and tensors else None
        if len(tensors) != 2 or not isinstance(output, Tensor):
            return None
        left, right = tensors
        found, weights = self.found, next((t for t in tensors if self._follows(t)), None)
        dropped = self.dropped
        self.forget()
        if found is not None and found.softmax and weights is not None:
            found.v = (right if weights is left else left).detach()
            found.output = output.detach()
            found.used = weights.detach() if dropped else None
            return found
        # A weight of the model is no key: that product is a projection.
        if not any(isinstance(t, nn.Parameter) for t in (left, right)) and output.ndim >= 2:
            self.found = WrittenOut(left.detach(), right.detach(), added)
            self.followed = [weakref.ref(output)]
        return None

    def _follows(self, t: Tensor) -> bool:
        return any(ref() is t for ref in self.followed)

    def forget(self) -> None:
        """Follow nothing."""
        self.found, self.followed, self.dropped = None, [], False


def _tensors(args: Any) -> list[Tensor]:
    """The tensors among arguments, and in lists among them."""
    every = [a for given in args for a in (given if isinstance(given, (list, tuple)) else [given])]
    return [a for a in every if isinstance(a, Tensor)]


def _is_beside(output: Tensor, source: Tensor) -> bool:
    """Whether it is the same rows with columns more or less, as where a sink is joined to the scores."""
    return output.ndim > 1 and output.shape[:-1] == source.shape[:-1] and output.shape[-1] > 1
