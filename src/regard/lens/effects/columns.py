"""The columns of an `Effects`: its tensors, what stands at each index, the strongest, and how columns go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.effects.statistics import correlation

OVER = ("layers", "heads", "tokens", "edges")
"""What `regard.effect` removes, one at a time."""

TENSORS = ("baseline", "values", "estimates", "looked_at", "value_weighted")
_AXES = {"heads": 3, "layers": 2, "tokens": 2, "edges": 4}


@dataclass(frozen=True)
class RankedEffect:
    """One head, layer, token or edge of an `Effects`."""

    name: str
    """Such as ``24.4`` for layer 24, head 4; a token with its position; an edge with its layers."""
    index: tuple[int, ...]
    """Its index in `Effects.values`, the text first."""
    effect: float
    """NaN where it was not computed exactly."""
    estimate: float
    """First order; NaN where there is none."""
    looked_at: float
    """Attention; NaN where there is none."""

    @property
    def best(self) -> float:
        """The exact effect, or the estimate where there is none."""
        return self.estimate if math.isnan(self.effect) else self.effect


@dataclass(frozen=True, eq=False)
class EffectColumns:
    """What an `Effects` holds; see there."""

    over: str
    """``heads``, ``layers``, ``tokens`` or ``edges``."""
    metric: str
    """The metric, as it prints."""
    ablation: str
    """``zero``, ``mean`` or ``resample``; ``block`` for tokens and edges."""
    method: str
    """``exact``, ``gradient`` or ``both``."""
    paths: tuple[str, ...]
    """The attentions, in the order of the layers."""
    tokens: tuple[tuple[str, ...], ...]
    """The tokens of each text; () where they are unknown."""
    baseline: Float[Tensor, " texts"]
    """The metric of the model as it is."""
    values: Tensor
    """The exact effects."""
    estimates: Tensor | None = None
    """First-order estimates of them, of the same shape."""
    looked_at: Tensor | None = None
    """Attention, of the same shape; `looked_at_name` says which."""
    notes: tuple[str, ...] = ()
    """What the reader must know: what was not computed, and where an estimate cannot be trusted."""
    looked_at_name: str = "attention"
    """Which attention `looked_at` is, in words."""
    value_weighted: Tensor | None = None
    """Attention times the length of what it carries (Kobayashi et al. 2020), of the same shape."""
    names: tuple[str, ...] = ()
    """A short name of each attention, such as its layer's number; by default its index in `paths`."""
    queries: tuple[int, ...] = ()
    """Edges: the positions of the queries, counted from the end where they are below 0."""
    keys: tuple[tuple[int, ...], ...] = ()
    """Edges: the positions of the keys of each group."""
    windows: tuple[tuple[int, ...], ...] = ()
    """Edges: the indices in `paths` of the attentions that each window blocks."""
    query_tokens: tuple[tuple[str, ...], ...] = ()
    """Edges: the tokens of the queries, where they are those of another text: the target of a translation."""

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise ValueError(f"over={self.over!r}: it is one of {', '.join(OVER)}")
        texts, axes = len(self.baseline), _AXES[self.over]
        if self.values.ndim != axes or len(self.values) != texts:
            raise ValueError(
                f"effects over {self.over} of {texts} texts have {axes} axes, the texts first; got the shape "
                f"{tuple(self.values.shape)}"
            )
        for name in TENSORS[2:]:
            t = getattr(self, name)
            if t is not None and t.shape != self.values.shape:
                raise ValueError(
                    f"{name} is {tuple(t.shape)}, and values is {tuple(self.values.shape)}: give one shape"
                )

    # What it says.

    def top(self, k: int = 10, *, text: int | None = None) -> list[RankedEffect]:
        """The k strongest, by the size of their effect, whatever its sign.

        Where effects were not computed exactly, their estimates rank them.

        Args:
            k: how many; fewer if there are fewer.
            text: the text; by default the mean over all texts, with index 0 for the text. Tokens and edges of several
                texts are not the same ones: then the first text.

        Raises:
            ValueError: k below 1.
            IndexError: no such text.
        """
        if k < 1:
            raise ValueError(f"top({k}): k is 1 or more")
        best = self.best(text).flatten()
        order = best.abs().nan_to_num(-1.0).argsort(descending=True, stable=True)[: int((~best.isnan()).sum())]
        return [self.ranked(at, text=text) for at in order[:k].tolist()]

    def ranked(self, at: int, *, text: int | None = None) -> RankedEffect:
        """One part, by its place in the flattened column of `of_text`."""
        shape = self.best(text).shape
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))

        def number(t: Tensor | None) -> float:
            column = self.of_text(t, text)
            return math.nan if column is None else float(column[index])

        name = self.name_of(index, text=text or 0)
        return RankedEffect(
            name, (text or 0, *index), number(self.values), number(self.estimates), number(self.looked_at)
        )

    def correlation(
        self, one: str = "looked_at", other: str = "values", *, rank: bool = False, text: int | None = None
    ) -> float:
        """How two of the columns go together: 1 together, 0 not at all, -1 opposite; NaN where that is undefined.

        Args:
            one: ``looked_at``, ``values``, ``estimates`` or ``value_weighted``.
            other: another of them.
            rank: Spearman's correlation, of the ranks, instead of Pearson's, of the numbers.
            text: see `top`.

        Raises:
            ValueError: no such column, or it was not computed.
        """
        return correlation(self._column(one, text), self._column(other, text), rank=rank)

    @overload
    def of_text(self, t: Tensor, text: int | None = None) -> Tensor: ...
    @overload
    def of_text(self, t: None, text: int | None = None) -> None: ...
    def of_text(self, t: Tensor | None, text: int | None = None) -> Tensor | None:
        """A column without the axis of texts: of one text, or the mean over all; see `top`.

        Raises:
            IndexError: no such text.
        """
        if t is None:
            return None
        if text is None and self.over in ("heads", "layers"):
            return t.nanmean(0)
        text = text or 0
        if not 0 <= text < len(t):
            raise IndexError(f"there is no text {text}: there are {len(t)}, counted from 0")
        return t[text]

    def best(self, text: int | None = None) -> Tensor:
        """The exact effects, and the estimates where there are none; see `of_text`."""
        values = self.of_text(self.values, text)
        return values if self.estimates is None else values.where(~values.isnan(), self.of_text(self.estimates, text))

    def name_of(self, index: Sequence[int], *, text: int = 0) -> str:
        """The name of a part, such as ``24.4``, by its index without the text."""
        if self.over == "heads":
            return f"{self._attention_name(index[0])}.{index[1]}"
        if self.over == "layers":
            return self._attention_name(index[0])
        if self.over == "tokens":
            return _token_name(index[0], self.tokens[text] if text < len(self.tokens) else ())
        window, query, keys = index
        first, last = self.windows[window][0], self.windows[window][-1]
        layers = self._attention_name(first) + ("" if first == last else f"-{self._attention_name(last)}")
        group = self.keys[keys] if self.keys else (keys,)
        tokens = self.tokens[text] if text < len(self.tokens) else ()
        query_tokens = self.query_tokens[text] if text < len(self.query_tokens) else tokens
        names = " ".join(_token_name(key, tokens) for key in group[:3]) + (" ..." if len(group) > 3 else "")
        return (
            f"{_token_name(self.queries[query], query_tokens)} to {names}, layer{'s' if last > first else ''} {layers}"
        )

    # Internal.

    def _column(self, name: str, text: int | None) -> Tensor:
        if name not in TENSORS[1:]:
            raise ValueError(f"there is no column {name!r}: the columns are {', '.join(TENSORS[1:])}")
        t = getattr(self, name)
        if t is None:
            raise ValueError(f"{name} was not computed for these effects over {self.over}, method {self.method!r}")
        assert isinstance(t, Tensor)
        return self.of_text(t, text)

    def _attention_name(self, number: int) -> str:
        return self.names[number] if self.names else str(number)


def _token_name(position: int, tokens: Sequence[str]) -> str:
    """A token with its position."""
    position += len(tokens) if position < 0 else 0
    return f"{tokens[position]!r}@{position}" if 0 <= position < len(tokens) else f"@{position}"
