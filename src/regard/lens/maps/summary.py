"""What is left of a map when its queries and keys are let go: the answers to the usual questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.map import AttentionMap, Distance, Tokens, TopWeights

__all__ = ["CELLS", "TOP", "AttentionSummary"]

TOP = 8
"""So many keys of each query are kept."""

CELLS = 64
"""The picture of the map that is kept has at most so many rows and columns."""

_NOT_KEPT = ("q", "k", "v", "lse", "mass", "dense", "bias", "scale", "softcap", "sinks", "dropout")


@dataclass(eq=False)
class AttentionSummary:
    """The answers of an `AttentionMap`, under the same names, without the map.

    Each is what the map said when the summary was made. What was not asked then is refused; `keep="maps"` can answer.
    """

    shape: torch.Size
    """(batch, heads, queries, keys)."""
    dtype: torch.dtype
    """Of the queries and keys."""
    mask: str
    """The map's mask, as it prints."""
    kernel: str
    """What computed the attention."""
    error: float
    """What the map's own `AttentionMap.error` was."""
    verified: bool
    answers: dict[str, Tensor]
    """Each answer by its question's name."""
    names: tuple[str, ...]
    """The kind of each head."""
    tokens: tuple[Tokens, Tokens] | None = None

    @classmethod
    def of(cls, m: AttentionMap, *, cross: bool = False) -> AttentionSummary:
        """Ask a map everything that is kept: its entropy, received, distance, top 8, a picture, the kinds of its heads.

        Args:
            m: the map. With tokens, all kinds of heads are told; without, those that need none.
            cross: whether its keys are another text, for the kinds.
        """
        queries, keys = m.shape[2:]
        far, best, kinds = m.distance(), m.top(min(TOP, keys)), detect_heads(m, cross=cross)
        answers = {
            "entropy": m.entropy(),
            "received": m.received(),
            "distance.mean": far.mean,
            "distance.spread": far.spread,
            "top.weights": best.weights,
            "top.keys": best.keys.to(torch.int32),
            "pooled": m.pooled(min(CELLS, queries), min(CELLS, keys)),
            **{f"kinds.{name}": score for name, score in kinds.scores.items() if score is not None},
        }
        mask = "none" if m.mask is None else repr(m.mask)
        return cls(m.shape, m.dtype, mask, m.kernel, m.error, m.verified, answers, kinds.names, m.tokens)

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """As `AttentionMap.entropy`."""
        return self.answers["entropy"]

    def received(self, rows: Tensor | None = None) -> Float[Tensor, "batch heads keys"]:
        """As `AttentionMap.received`, for rows that count alike.

        Raises:
            ValueError: rows.
        """
        if rows is not None:
            self._refuse("received(rows)")
        return self.answers["received"]

    def distance(self) -> Distance:
        """As `AttentionMap.distance`."""
        return Distance(self.answers["distance.mean"], self.answers["distance.spread"])

    def top(self, k: int) -> TopWeights:
        """As `AttentionMap.top`, up to 8.

        Raises:
            ValueError: more than were kept.
        """
        kept = self.answers["top.weights"].shape[-1]
        if not 1 <= k <= kept:
            self._refuse(f"top({k}), but top({kept})")
        return TopWeights(self.answers["top.weights"][..., :k], self.answers["top.keys"][..., :k].long())

    def pooled(self, rows: int | None = None, columns: int | None = None) -> Float[Tensor, "batch heads rows columns"]:
        """As `AttentionMap.pooled`, with the cells that were kept, at most 64 x 64, or larger ones made of those.

        Args:
            rows: how many; by default as many as were kept.
            columns: likewise.

        Raises:
            ValueError: cells that are not made of those that were kept.
        """
        kept = self.answers["pooled"]
        picture = kept.double()
        for axis, count in ((2, rows), (3, columns)):
            cells, size = kept.shape[axis], self.shape[axis]
            count = cells if count is None else count
            edges = [n * size // cells for n in range(cells + 1)]
            wanted = [n * size // count for n in range(count + 1)] if count > 0 else [-1]
            if count > cells or not set(wanted) <= set(edges):
                self._refuse(f"pooled({rows}, {columns}), but pooled({kept.shape[2]}, {kept.shape[3]})")
            heights = torch.tensor(edges, device=kept.device).diff() if axis == 2 else torch.ones(1, device=kept.device)
            left = (1, 0) if axis == 3 else (0, 0, 1, 0)
            sums = torch.nn.functional.pad((picture * _along(heights, axis)).cumsum(axis), left)
            at = torch.tensor([edges.index(edge) for edge in wanted], device=kept.device)
            picture = sums.index_select(axis, at).diff(dim=axis)
            if axis == 2:
                picture = picture / _along(torch.tensor(wanted, device=kept.device).diff(), axis)
        return kept if picture.shape == kept.shape else picture.to(kept.dtype)

    def head_types(self) -> HeadTypes:
        """As `detect_heads`."""
        every = ("previous token", "attention sink", "same token", "induction", "delimiter", "uniform")
        return HeadTypes(self.names, {name: self.answers.get(f"kinds.{name}") for name in every})

    @property
    def device(self) -> torch.device:
        """Where the answers are."""
        return self.answers["entropy"].device

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """As `AttentionMap.label`. The kinds stay those that were told when the summary was made."""
        AttentionMap.label(self, queries, keys)  # type: ignore[arg-type]  # it reads the shape and nothing else

    def refusal(self, asked: str) -> str:
        """Why a question has no answer here."""
        return f'{asked}: this recording keeps summaries; watch with keep="maps"'

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse(f"m[{index!r}]")

    def __getattr__(self, name: str) -> NoReturn:
        # What a map has, and copies and pickles ask for nothing of that.
        if name in _NOT_KEPT:
            raise AttributeError(self.refusal(name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refuse(self, asked: str) -> NoReturn:
        raise ValueError(self.refusal(asked))

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        doubt = "" if self.verified else ", UNVERIFIED"
        return (
            f"AttentionSummary({batch} x {heads} heads, {queries} queries x {keys} keys, mask {self.mask}, "
            f"kernel {self.kernel or 'unknown'}, error {self.error:.1e}{doubt})"
        )


def _along(t: Tensor, axis: int) -> Tensor:
    return t[:, None] if axis == 2 else t
