"""What `regard.effect` measures: one number of a model's output for one text.

::

    regard.effect(model, text, regard.metrics.logit_difference("Mary", "John"))

A token is an id or a string. A string is looked up as the next word first, " Mary", then as it is, "Mary"; it needs a
tokenizer. Any other function may be a metric, too: it gets the model's output for one text, with a batch axis of 1,
and returns a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError

Token = int | str
Encode = Callable[[str], Sequence[int]]
"""A text to ids, without special tokens."""

POOLINGS = ("mean", "first", "last")


@dataclass(frozen=True)
class TextContext:
    """What a metric may know of the text, beside the model's output for it."""

    ids: Tensor | None = None
    """``(tokens,)``: the ids that the tokens of the output have, where they are known."""
    valid: Tensor | None = None
    """``(tokens,)``: the positions of the tokens that are not padding, where they are known."""
    unedited: Any = None
    """The output of the model as it is."""


@dataclass(frozen=True)
class Metric:
    """A number of a model's output for one text; the functions of this module make it.

    ``metric(output)`` is ``(batch,)``, one number for each row: of a Tensor, a tuple, a dict or a ModelOutput.
    """

    name: str
    """As it prints in tables."""
    compute: Callable[[Tensor, TextContext], Tensor]
    """From the logits ``(rows, positions, vocabulary)`` or the vectors ``(rows, positions, width)`` to ``(rows,)``."""
    reads: str = "logits"
    """``logits``, ``vectors``, or ``output`` for a function of the whole output, which gets one row at a time."""
    position: int | None = None
    """The only position that it reads; None for all."""
    tokens: tuple[Token, ...] = ()
    """The tokens that it names, the one that it is about first."""
    make: Callable[..., Metric] | None = None
    """Makes the metric of other tokens."""
    compares: bool = False
    """Whether it needs the output of the model as it is."""

    def with_ids(self, encode: Encode | None) -> Metric:
        """The metric with ids in place of strings.

        Raises:
            InputError: a string and no tokenizer; a string that is no single token.
        """
        if self.make is None or all(isinstance(token, int) for token in self.tokens):
            return self
        return replace(self.make(*(token_id(token, encode) for token in self.tokens)), name=self.name)

    def __call__(self, output: Any, context: TextContext | None = None) -> Float[Tensor, " batch"]:
        """The number of each row of an output.

        Args:
            output: of the model.
            context: what is known of the text.

        Raises:
            TypeError: an output without the tensor that the metric reads; a function that returns no number.
            ValueError: a function that returns several numbers; tokens that were never looked up.
        """
        if self.reads == "output":
            rows = next((len(t) for t in tensors_of(output) if t.ndim), 1)
            return torch.stack(
                [self.compute(row_of(output, row, rows), context or TextContext()) for row in range(rows)]
            )
        if any(isinstance(token, str) for token in self.tokens):
            raise ValueError(f"{self.name} names tokens by strings: use ids, or with_ids(encode) first")
        return self.compute(read_tensor(output, self.reads), context or TextContext())


def logit_difference(a: Token, b: Token, position: int = -1) -> Metric:
    """The logit of token a minus the logit of token b (Wang et al. 2022, "Interpretability in the Wild", section 3).

    Args:
        a: the right token: an id, or a string.
        b: the wrong token.
        position: the position that reads them; the last by default.

    Example:
        >>> metric = logit_difference(1, 0)
        >>> metric(torch.tensor([[[0.5, 2.0, 0.0]]]))
        tensor([1.5000])
    """

    def compute(logits: Tensor, context: TextContext) -> Tensor:
        row = at_position(logits, position, context)
        return row[:, _in_range(a, row)] - row[:, _in_range(b, row)]

    name = f"logit_difference({a!r}, {b!r}{_position(position)})"
    return Metric(name, compute, "logits", position, (a, b), lambda one, other: logit_difference(one, other, position))


def log_prob(token: Token, position: int = -1) -> Metric:
    """The logarithm of a token's probability, in nats.

    Args:
        token: an id, or a string.
        position: the position that predicts it; the last by default.

    Example:
        >>> log_prob(0)(torch.zeros(1, 1, 4))
        tensor([-1.3863])
    """

    def compute(logits: Tensor, context: TextContext) -> Tensor:
        row = at_position(logits, position, context)
        return _wide(row).log_softmax(-1)[:, _in_range(token, row)]

    name = f"log_prob({token!r}{_position(position)})"
    return Metric(name, compute, "logits", position, (token,), lambda one: log_prob(one, position))


def loss(labels: Tensor | Sequence[int] | None = None) -> Metric:
    """The mean cross-entropy of the next tokens, in nats.

    It is lower for a better model: a head that helps has an effect below 0, because without it the loss rises.

    Args:
        labels: ``(tokens,)``, for each position the id that it has to predict, -100 for none; by default the ids that
            the model reads, each predicted by the position before it.

    Raises:
        ValueError: when it is computed, labels of another length, or no ids to predict.
    """
    given = None if labels is None else torch.as_tensor(labels)

    def compute(logits: Tensor, context: TextContext) -> Tensor:
        targets = _labels(logits, context, given).to(logits.device)
        if not bool((targets >= 0).any()):
            raise ValueError("loss() has nothing to predict: it needs a text of two tokens or more")
        every = F.cross_entropy(_wide(logits).flatten(0, 1), targets.repeat(len(logits)), reduction="none")
        return every.view(len(logits), -1).sum(-1) / (targets >= 0).sum()

    return Metric("loss()" if given is None else "loss(labels)", compute)


def kl(position: int | None = -1) -> Metric:
    """KL(unedited || edited), how far the distribution of the next token moves, in nats.

    It is 0 for the model as it is, and never below. So an effect, unedited minus edited, is never above 0, and the
    strongest effects are the lowest.

    Args:
        position: the position whose next token counts; None for the mean over all.
    """

    def compute(logits: Tensor, context: TextContext) -> Tensor:
        unedited = read_tensor(_required(context.unedited, "kl"), "logits")
        if position is None and logits.ndim > 2:
            positions = _valid(logits, context)
            before, after = (_wide(t)[:, positions].log_softmax(-1) for t in (unedited, logits))
            return (before.exp() * (before - after)).sum(-1).mean(-1)
        before, after = (
            _wide(at_position(t, 0 if position is None else position, context)).log_softmax(-1)
            for t in (unedited, logits)
        )
        return (before.exp() * (before - after)).sum(-1)

    return Metric(f"kl({'' if position == -1 else position})", compute, "logits", position, compares=True)


def cosine(pooling: str = "mean") -> Metric:
    """1 - cosine between the edited and the unedited vector of the text: how far it moves, for encoders.

    It is 0 for the model as it is. So an effect, unedited minus edited, is never above 0, and the strongest effects
    are the lowest.

    Args:
        pooling: the text's vector is the mean of its tokens' vectors, or that of the first or the last token.

    Raises:
        ValueError: another pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}: it is one of {', '.join(POOLINGS)}")

    def pooled(vectors: Tensor, context: TextContext) -> Tensor:
        if vectors.ndim == 2:  # one vector for each text already
            return _wide(vectors)
        kept = _wide(vectors)[:, _valid(vectors, context)]
        return kept.mean(1) if pooling == "mean" else kept[:, 0 if pooling == "first" else -1]

    def compute(vectors: Tensor, context: TextContext) -> Tensor:
        unedited = read_tensor(_required(context.unedited, "cosine"), "vectors")
        return 1 - F.cosine_similarity(pooled(vectors, context), pooled(unedited, context), dim=-1)

    return Metric(f"cosine({'' if pooling == 'mean' else repr(pooling)})", compute, "vectors", compares=True)


def as_metric(metric: Metric | Callable[[Any], Any]) -> Metric:
    """A metric of any function of the output for one text.

    Raises:
        TypeError: no function.
    """
    if isinstance(metric, Metric):
        return metric
    if not callable(metric):
        raise TypeError(
            f"metric={metric!r}: a metric of regard.metrics, such as regard.metrics.loss(), or a function of the "
            "model's output for one text that returns a number"
        )
    name = getattr(metric, "__name__", type(metric).__name__)
    if any(metric is maker for maker in (logit_difference, log_prob, loss, kl, cosine)):
        raise TypeError(f"metric={name}: call it, such as regard.metrics.{name}(...)")
    return Metric(name, lambda output, _: _one_number(metric(output), name), "output")


def token_id(token: Token, encode: Encode | None) -> int:
    """The id of a token.

    Args:
        token: an id, or a string, which is looked up as the next word first: with a space before it.
        encode: text to ids, without special tokens.

    Raises:
        InputError: a string and no tokenizer; a string that is no single token, with its pieces.
    """
    if isinstance(token, int):
        return token
    if encode is None:
        raise InputError(
            f"the metric names the token {token!r}, and there is no tokenizer to look it up: give tokenizer=, or the id"
        )
    pieces: list[list[int]] = []
    for text in (token,) if token.startswith(" ") else (f" {token}", token):
        pieces.append(list(encode(text)))
        if len(pieces[-1]) == 1:
            return pieces[-1][0]
    raise InputError(
        f"{token!r} is {len(pieces[0])} tokens of this model, the ids {', '.join(map(str, pieces[0]))}, and a metric "
        "takes a single one: name its first token by its id, or another word"
    )


# Outputs.


def read_tensor(output: Any, reads: str) -> Tensor:
    """The logits or the vectors of an output, (batch, positions, width).

    Raises:
        TypeError: there are none.
    """
    fields = ("logits",) if reads == "logits" else ("last_hidden_state", "pooler_output")
    for name in fields:
        if (found := _field(output, name)) is not None:
            return found
    if isinstance(output, Tensor):
        return output
    if type(output) in (tuple, list) and output and isinstance(output[0], Tensor):
        return output[0]
    named = ", ".join(map(str, output)) if isinstance(output, dict) else type(output).__name__
    raise TypeError(
        f"the metric reads {' or '.join(fields)}, and the model's output has none: it is {named}. Give a function of "
        "the output as the metric"
    )


def _field(output: Any, name: str) -> Tensor | None:
    found = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def row_of(value: Any, row: int, rows: int) -> Any:
    """One row of every tensor of so many rows, with a batch axis of 1; all else stays."""
    return map_tensors(value, lambda t: t[row : row + 1] if t.ndim and len(t) == rows else t)


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, lists and dicts, each tensor replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return type(value)(**{name: map_tensors(item, function) for name, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    return value


# Internal.


def at_position(t: Tensor, position: int, context: TextContext) -> Tensor:
    """(rows, width) at a position, counted among the tokens that are not padding.

    Raises:
        IndexError: no such position.
    """
    if t.ndim == 2:  # a classifier: one row of logits for each text
        return t
    positions = _valid(t, context)
    if not -len(positions) <= position < len(positions):
        raise IndexError(f"there is no position {position}: the output has {len(positions)}, counted from 0")
    return t[:, positions[position]]


def _valid(t: Tensor, context: TextContext) -> Tensor:
    """The positions of an output that are not padding."""
    if context.valid is not None and len(context.valid) and int(context.valid[-1]) < t.shape[1]:
        return context.valid.to(t.device)
    return torch.arange(t.shape[1], device=t.device)


def _labels(logits: Tensor, context: TextContext, labels: Tensor | None) -> Tensor:
    tokens = logits.shape[1]
    if labels is not None:
        if labels.shape != (tokens,):
            raise ValueError(f"loss(labels) of shape {tuple(labels.shape)}: the output has {tokens} positions")
        return labels
    ids = context.ids
    if ids is None or len(ids) != tokens:
        has = "none are known" if ids is None else f"the inputs have {len(ids)}"
        raise ValueError(f"loss() needs the ids of the {tokens} positions of the output, and {has}: give labels")
    kept = torch.zeros(tokens, dtype=torch.bool)
    kept[_valid(logits, context).cpu()] = True
    following = torch.full((tokens,), -100)
    both = kept[1:] & kept[:-1]
    following[:-1][both] = ids.cpu()[1:][both]
    return following


def _required(unedited: Any, name: str) -> Any:
    if unedited is None:
        raise ValueError(f"{name} compares with the output of the model as it is: give TextContext(unedited=output)")
    return unedited


def _in_range(token: Token, row: Tensor) -> int:
    assert isinstance(token, int)
    if not 0 <= token < row.shape[-1]:
        raise IndexError(f"there is no token {token}: the output has {row.shape[-1]}, counted from 0")
    return token


def _one_number(value: Any, name: str) -> Tensor:
    number = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if number.numel() != 1:
        raise ValueError(
            f"the metric {name} returned {number.numel()} numbers, of the shape {tuple(number.shape)}: it gets the "
            "output for one text, with a batch axis of 1, and must return one number"
        )
    return number.reshape(()) if number.is_floating_point() else number.reshape(()).double()


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


def _position(position: int) -> str:
    return "" if position == -1 else f", position={position}"
