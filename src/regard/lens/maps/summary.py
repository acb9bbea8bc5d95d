"""The usual answers of a map, kept without its queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.head_types import HEAD_TYPES, HeadTypes, detect_heads
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.moments import Distance
from regard.lens.maps.streaming import TopWeights
from regard.lens.maps.tokens import Tokens, check_tokens

SUMMARY_TOP_K = 8
"""The number of largest weights of each query that a summary keeps."""

SUMMARY_CELLS = 64
"""The largest number of rows, and of columns, of the pooled map that a summary keeps."""

_ONLY_IN_MAPS = (
    "q",
    "k",
    "v",
    "lse",
    "mass",
    "ask",
    "dense",
    "bias",
    "scale",
    "softcap",
    "sinks",
    "dropout",
    "select",
    "without_padding",
    "output",
    "attribution",
    "edge_attribution",
    "without_key",
    "value_weighted",
    "group_outputs",
)


@dataclass(eq=False)
class AttentionSummary:
    """The answers of an `AttentionMap`, under the same names, without the map.

    The answers are those of the map when the summary was made. Other statistics are refused; `keep="maps"` has them.
    """

    shape: torch.Size
    """(batch, heads, queries, keys)."""
    dtype: torch.dtype
    """Of the queries and keys."""
    mask: str
    """The map's mask, as it prints."""
    kernel: str
    """The kernel that computed the attention."""
    error: float
    """The map's `AttentionMap.error`."""
    verified: bool
    answers: dict[str, Tensor]
    """Each answer by the name of its method."""
    head_type_names: tuple[str, ...]
    """The type of each head."""
    tokens: tuple[Tokens, Tokens] | None = None

    @classmethod
    def from_map(cls, m: AttentionMap, *, cross: bool = False) -> AttentionSummary:
        """Compute entropy, received, distance, top 8, a pooled map and the head types of a map.

        Args:
            m: the map. With tokens, it has scores for all head types; without, for those that need none.
            cross: whether its keys are another text, for the head types.
        """
        queries, keys = m.shape[2:]
        cells = min(SUMMARY_CELLS, queries), min(SUMMARY_CELLS, keys)
        asked = m.ask("entropy", "received", "distance", top=min(SUMMARY_TOP_K, keys), pooled=cells)
        types = detect_heads(m, cross=cross)
        answers = {
            "entropy": asked["entropy"],
            "received": asked["received"],
            "distance.mean": asked["distance"].mean,
            "distance.spread": asked["distance"].spread,
            "top.weights": asked["top"].weights,
            "top.keys": asked["top"].keys.to(torch.int32),
            "pooled": asked["pooled"],
            **{f"head_types.{name}": score for name, score in types.scores.items() if score is not None},
        }
        mask = "none" if m.mask is None else repr(m.mask)
        return cls(m.shape, m.dtype, mask, m.kernel, m.error, m.verified, answers, types.names, m.tokens)

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """As `AttentionMap.entropy`."""
        return self.answers["entropy"]

    def received(self, rows: Tensor | None = None) -> Float[Tensor, "batch heads keys"]:
        """As `AttentionMap.received`, for equal rows.

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
            ValueError: k above the number of weights in the summary.
        """
        largest_k = self.answers["top.weights"].shape[-1]
        if not 1 <= k <= largest_k:
            self._refuse(f"top({k}), but top({largest_k})")
        return TopWeights(self.answers["top.weights"][..., :k], self.answers["top.keys"][..., :k].long())

    def pooled(self, rows: int | None = None, columns: int | None = None) -> Float[Tensor, "batch heads rows columns"]:
        """As `AttentionMap.pooled`, with the cells of the summary, at most 64 x 64, or larger cells made of them.

        Args:
            rows: number of rows; all by default.
            columns: number of columns; all by default.

        Raises:
            ValueError: cells that are not made of those of the summary.
        """
        pooled = self.answers["pooled"]
        picture = pooled.double()
        for axis, count in ((2, rows), (3, columns)):
            cells, size = pooled.shape[axis], self.shape[axis]
            count = cells if count is None else count
            edges = [n * size // cells for n in range(cells + 1)]
            new_edges = [n * size // count for n in range(count + 1)] if count > 0 else [-1]
            if count > cells or not set(new_edges) <= set(edges):
                self._refuse(f"pooled({rows}, {columns}), but pooled({pooled.shape[2]}, {pooled.shape[3]})")
            heights = (
                torch.tensor(edges, device=pooled.device).diff() if axis == 2 else torch.ones(1, device=pooled.device)
            )
            padding = (1, 0) if axis == 3 else (0, 0, 1, 0)
            sums = torch.nn.functional.pad((picture * _along(heights, axis)).cumsum(axis), padding)
            at = torch.tensor([edges.index(edge) for edge in new_edges], device=pooled.device)
            picture = sums.index_select(axis, at).diff(dim=axis)
            if axis == 2:
                picture = picture / _along(torch.tensor(new_edges, device=pooled.device).diff(), axis)
        return pooled if picture.shape == pooled.shape else picture.to(pooled.dtype)

    def head_types(self) -> HeadTypes:
        """As `detect_heads`."""
        return HeadTypes(self.head_type_names, {name: self.answers.get(f"head_types.{name}") for name in HEAD_TYPES})

    @property
    def device(self) -> torch.device:
        """The device of the answers."""
        return self.answers["entropy"].device

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """As `AttentionMap.label`. The head types stay those from when the summary was made."""
        self.tokens = check_tokens(self.shape, queries, keys)

    def refusal(self, request: str) -> str:
        """The message that a statistic is not in the summary."""
        return f'{request}: this recording keeps summaries; watch with keep="maps"'

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse(f"m[{index!r}]")

    def __getattr__(self, name: str) -> NoReturn:
        # Only the attributes of a map get this message: copy and pickle test for other ones.
        if name in _ONLY_IN_MAPS:
            raise AttributeError(self.refusal(name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refuse(self, request: str) -> NoReturn:
        raise ValueError(self.refusal(request))

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        doubt = "" if self.verified else ", UNVERIFIED"
        return (
            f"AttentionSummary({batch} x {heads} heads, {queries} queries x {keys} keys, mask {self.mask}, "
            f"kernel {self.kernel or 'unknown'}, error {self.error:.1e}{doubt})"
        )


def _along(t: Tensor, axis: int) -> Tensor:
    return t[:, None] if axis == 2 else t
