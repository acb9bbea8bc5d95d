"""Eager attention: a softmax between two matrix products, by PyTorch itself or by the model's own code."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

MATMUL_OPS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "baddbmm", "einsum"}
ADD_OPS = {"add", "add_", "__add__", "__iadd__"}
SOFTMAX_OPS = {"softmax", "_softmax", "_safe_softmax"}
EXP_OPS = {"exp", "exp_"}
"""A softmax that is written out begins with one of them."""
DROPOUT_OPS = {"dropout", "dropout_", "native_dropout", "alpha_dropout", "feature_dropout"}
LAYER_OPS = {"linear", "addmm", "conv1d", "conv2d", "conv3d", "convolution", "layer_norm", "native_layer_norm"}
LAYER_OPS |= {"rms_norm", "group_norm", "native_group_norm", "batch_norm", "embedding"}
"""Operations of other layers: what they return is no longer a product of queries and keys."""
FACTORY_OPS = {"empty_like", "zeros_like", "ones_like", "rand_like", "full_like", "randn_like"}
"""Operations whose output depends on the shape of the input only."""


@dataclass(eq=False)
class EagerAttention:
    """The tensors of one eager attention, as far as it has come."""

    q: Tensor | None = None
    """The left factor of the scores, (..., queries, width); scaled already. None if the scores are no product."""
    k_transposed: Tensor | None = None
    """The right factor, (..., width, keys)."""
    has_parameter: bool = False
    """Whether a factor is a parameter: a learned query, or the weight of a layer, whose output is no score."""
    bias: Tensor | None = None
    """What was added to the scores before the softmax."""
    softmax_op: str = ""
    weights: Tensor | None = None
    """The output of the softmax."""
    dropout_input: Tensor | None = None
    """The weights before dropout, where it may have changed them."""
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """The shapes of four axes and more that scores and weights had between the two products."""
    product: str = ""
    """The name of the second product."""
    factors: tuple[Tensor, ...] = ()
    """The factors of the second product, in its order."""
    equation: str = ""
    """Of an einsum."""
    weights_index: int = 0
    """Which of the factors are the weights; the other one is v."""
    output: Tensor | None = None
    owner: tuple[str, nn.Module] | None = None
    """The path and the module that computed it, where they are known."""

    @property
    def is_score(self) -> bool:
        """Whether the softmax is over products of two tensors that depend on the model's input."""
        return self.q is not None and not self.has_parameter

    @property
    def v(self) -> Tensor:
        """The other factor of the second product."""
        return self.factors[1 - self.weights_index]

    @property
    def used_weights(self) -> Tensor:
        """The factor that the values were multiplied by: after dropout, a cast, a cut."""
        return self.factors[self.weights_index]

    @property
    def dropped_weights(self) -> Tensor | None:
        """The weights that the values were multiplied by, where dropout may have changed them."""
        return None if self.dropout_input is None else self.used_weights


class EagerPattern:
    """Follows products of matrices from operation to operation, through a softmax, until they multiply values.

    The followed tensors are held by weak references.

    Args:
        mul_is_dropout: whether the weights are multiplied by dropout only, as inside PyTorch's own attention.
        is_parameter: whether a tensor is a parameter of the model, or a part of one.
    """

    def __init__(
        self, *, mul_is_dropout: bool = False, is_parameter: Callable[[Tensor], bool] = lambda _: False
    ) -> None:
        self.dropout_ops = {*DROPOUT_OPS, "mul"} if mul_is_dropout else DROPOUT_OPS
        self.is_parameter = is_parameter
        self.followed: dict[int, tuple[weakref.ref[Tensor], EagerAttention]] = {}

    def observe(self, name: str, args: Iterable[Any], kwargs: Mapping[str, Any], output: Any) -> EagerAttention | None:
        """Follow one operation.

        Args:
            name: the operation's name without its overload.
            args: its positional arguments.
            kwargs: its arguments by name.
            output: its output.

        Returns:
            The attention that this operation begins with a softmax, or completes with a product; else None.
        """
        if name in MATMUL_OPS:
            return self._observe_product(name, args, kwargs, output)
        if not self.followed and name not in SOFTMAX_OPS:
            return None
        tensors = list(_tensors_in([*args, *kwargs.values()]))
        source, attention = self._find(tensors)
        if name in SOFTMAX_OPS and isinstance(output, Tensor):
            if attention is None or attention.weights is not None:
                attention = EagerAttention()
            return self._begin_weights(name, attention, output)
        if source is None or attention is None or name in FACTORY_OPS or name in LAYER_OPS:
            return None
        if attention.weights is None and name in EXP_OPS:
            return self._begin_weights(name, attention, output)
        for result in _tensors_in([output]):
            if attention.weights is not None:
                if not _holds_same_rows(result, source):
                    continue
                if name in self.dropout_ops:
                    attention.dropout_input = source.detach()
            self._follow(result, attention)
        if attention.weights is None and name in ADD_OPS:
            other = next((t for t in tensors if t is not source), None)
            attention.bias = attention.bias if other is None else other.detach()
        return None

    def _begin_weights(self, name: str, attention: EagerAttention, output: Tensor) -> EagerAttention:
        attention.softmax_op, attention.weights = name, output.detach()
        self._follow(output, attention)
        return attention

    def _observe_product(
        self, name: str, args: Iterable[Any], kwargs: Mapping[str, Any], output: Any
    ) -> EagerAttention | None:
        tensors = product_factors(name, args, kwargs)
        if len(tensors) != 2 or not isinstance(output, Tensor):
            return None
        bias = next(_tensors_in(args)).detach() if name == "baddbmm" else None
        source, attention = self._find(tensors)
        other = next((t for t in tensors if t is not source), source)
        if attention is not None and source is not None and other is not None and self.is_parameter(other):
            if _mixes_heads(other, source):
                self._follow(output, attention)
                return None
            if attention.weights is not None and attention.q is None:
                return None  # the mean of a distribution, such as a router's or a detector's
        if attention is not None and attention.weights is not None:
            if attention.output is not None:
                return None  # the same weights, multiplied by something else as well
            attention.product, attention.output = name, output.detach()
            attention.factors = tuple(t.detach() for t in tensors)
            attention.equation = next((a for a in [*args, *kwargs.values()] if isinstance(a, str)), "")
            attention.weights_index = 0 if tensors[0] is source else 1
            return attention
        if output.ndim >= 2:
            q, k_transposed = (t.detach() for t in tensors)
            self._follow(output, EagerAttention(q, k_transposed, any(map(self.is_parameter, tensors)), bias))
        return None

    def _find(self, tensors: Iterable[Tensor]) -> tuple[Tensor | None, EagerAttention | None]:
        """The first of these tensors that is followed; one after its softmax goes before others."""
        found: tuple[Tensor | None, EagerAttention | None] = None, None
        for t in tensors:
            reference, attention = self.followed.get(id(t), (None, None))
            if reference is None or attention is None or reference() is not t:
                continue
            if attention.weights is not None:
                return t, attention
            if found[0] is None:
                found = t, attention
        return found

    def _follow(self, t: Tensor, attention: EagerAttention) -> None:
        key = id(t)
        if t.ndim >= 4 and tuple(t.shape) not in attention.shapes:
            attention.shapes.append(tuple(t.shape))

        def forget(reference: weakref.ref[Tensor]) -> None:
            if self.followed.get(key, (None,))[0] is reference:
                del self.followed[key]

        self.followed[key] = weakref.ref(t, forget), attention


def product_factors(name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation of `MATMUL_OPS` multiplies, from left to right; what baddbmm adds is left out."""
    tensors = list(_tensors_in([*args, *kwargs.values()]))
    if name == "__rmatmul__":
        tensors.reverse()
    return tensors[-2:] if name == "baddbmm" and len(tensors) == 3 else tensors


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values and in lists among them."""
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                yield item


def _mixes_heads(weight: Tensor, scores: Tensor) -> bool:
    """Whether a product with a weight makes new heads of the heads (Shazeer et al. 2020, "Talking-Heads Attention")."""
    return scores.ndim >= 3 and weight.shape == (scores.shape[-3], scores.shape[-3])


def _holds_same_rows(output: Tensor, source: Tensor) -> bool:
    """Whether the weights may stand in it: it has as many numbers, or its rows were cut, as after a sink's column.

    Rows that grow are those of chunks that are shifted against one another: their columns are no keys.
    """
    is_cut = output.ndim > 1 and output.shape[:-1] == source.shape[:-1] and 1 <= output.shape[-1] < source.shape[-1]
    return is_cut or output.numel() == source.numel()
