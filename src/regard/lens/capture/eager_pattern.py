"""Eager attention: a softmax between two matrix products, by PyTorch itself or by the model's own code."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

MATMUL_OPS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}
ADD_OPS = {"add", "add_", "__add__"}
SOFTMAX_OPS = {"softmax", "_softmax", "_safe_softmax", "exp", "exp_"}
DROPOUT_OPS = {"mul", "dropout", "native_dropout"}
FACTORY_OPS = {"empty_like", "zeros_like", "ones_like", "rand_like"}
"""Operations whose output depends on the shape of the input only."""


@dataclass
class EagerAttention:
    """The tensors of one eager attention."""

    q: Tensor
    """The left factor of the scores, (..., queries, width); scaled already."""
    k_transposed: Tensor
    """The right factor, (..., width, keys)."""
    bias: Tensor | None = None
    """What was added to the scores before the softmax."""
    weights: Tensor | None = None
    """The output of the softmax."""
    dropped_weights: Tensor | None = None
    """The left factor of the output, where dropout changed the weights."""
    softmax_op: str = ""
    v: Tensor | None = None
    output: Tensor | None = None


class EagerPattern:
    """Follows the result of one matrix product from operation to operation until it is multiplied again.

    The followed tensors are held by weak references; those of an `EagerAttention` live until the next product.
    """

    def __init__(self) -> None:
        self.candidate: EagerAttention | None = None
        self.followed: list[weakref.ref[Tensor]] = []
        self.has_dropout = False

    def observe(self, name: str, args: Any, output: Any) -> EagerAttention | None:
        """Follow one operation; returns the attention that it completes, if any.

        Args:
            name: the operation's name without its overload.
            args: its positional arguments.
            output: its output.
        """
        if name in MATMUL_OPS:
            return self._observe_product(name, args, output)
        candidate = self.candidate
        if candidate is None or not isinstance(output, Tensor) or name in FACTORY_OPS:
            return None
        tensors = _tensors_in(args)
        source = next((t for t in tensors if self._is_followed(t)), None)
        if source is None or not (output.numel() == source.numel() or _has_same_rows(output, source)):
            return None
        other = next((t for t in tensors if not self._is_followed(t)), None)
        if name in SOFTMAX_OPS:
            candidate.softmax_op, candidate.weights = name, output.detach()
            self.followed = []
        elif not candidate.softmax_op and name in ADD_OPS and other is not None:
            candidate.bias = other.detach()
        elif candidate.softmax_op and name in DROPOUT_OPS:
            self.has_dropout = True
        self.followed.append(weakref.ref(output))
        return None

    def _observe_product(self, name: str, args: Any, output: Any) -> EagerAttention | None:
        tensors = _tensors_in(args)
        bias = tensors.pop(0).detach() if name == "baddbmm" and tensors else None
        if len(tensors) != 2 or not isinstance(output, Tensor):
            return None
        left, right = tensors
        candidate, weights = self.candidate, next((t for t in tensors if self._is_followed(t)), None)
        has_dropout = self.has_dropout
        self.candidate, self.followed, self.has_dropout = None, [], False
        if candidate is not None and candidate.softmax_op and weights is not None:
            candidate.v = (right if weights is left else left).detach()
            candidate.output = output.detach()
            candidate.dropped_weights = weights.detach() if has_dropout else None
            return candidate
        # A product with a parameter is a projection, not a score.
        if not any(isinstance(t, nn.Parameter) for t in (left, right)) and output.ndim >= 2:
            self.candidate = EagerAttention(left.detach(), right.detach(), bias)
            self.followed = [weakref.ref(output)]
        return None

    def _is_followed(self, t: Tensor) -> bool:
        return any(ref() is t for ref in self.followed)


def _tensors_in(args: Any) -> list[Tensor]:
    """The tensors among the arguments and in lists among them."""
    flat = [item for arg in args for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
    return [item for item in flat if isinstance(item, Tensor)]


def _has_same_rows(output: Tensor, source: Tensor) -> bool:
    """Whether only the number of columns differs, as after the concatenation of scores and a sink."""
    return output.ndim > 1 and output.shape[:-1] == source.shape[:-1] and output.shape[-1] > 1
