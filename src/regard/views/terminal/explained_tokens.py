"""Which tokens of an explanation are listed: all of a short text, the word and its strongest keys of a long one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard._shapes import Float
from regard.lens import Explanation


@dataclass(frozen=True)
class ShownTokens:
    """The positions of the tokens that are listed, in the order of the text."""

    keys: list[int]
    queries: list[int]
    num_keys: int
    """Of the text."""

    @classmethod
    def of(cls, e: Explanation, max_keys: int | None) -> ShownTokens:
        """The tokens of an explanation.

        Args:
            e: the explanation.
            max_keys: of a text with more keys, so many are listed: those with the largest weights.
        """
        keys, queries = list(range(len(e.keys.tokens))), list(range(len(e.queries.tokens)))
        if max_keys is None:
            return cls(keys, queries, len(keys))
        if len(keys) > max_keys:
            keys = sorted(e.row.weights.mean(dim=0).topk(max_keys).indices.tolist())
        if len(queries) > max_keys:
            # In cross-attention the keys belong to another text: of the word's own text those around it are listed.
            first = e.word.token_index[0]
            around = set(range(first - max_keys // 2, first + max_keys // 2)) if e.attention == "cross" else set(keys)
            queries = [query for query in queries if query in around | set(e.word.token_index)]
        return cls(keys, queries, len(e.keys.tokens))

    @property
    def is_part(self) -> bool:
        """Whether keys are left out."""
        return len(self.keys) < self.num_keys

    @property
    def others(self) -> str:
        """The name of the row for the keys that are left out."""
        return f"the other {self.num_keys - len(self.keys):,}"

    def by_weight(self, weights: Float[Tensor, " keys"]) -> list[int]:
        """The keys in the order in which they are listed: of a part, the largest weight first."""
        return sorted(self.keys, key=lambda key: -weights[key].item()) if self.is_part else self.keys

    def rest(self, weights: Float[Tensor, " keys"]) -> float:
        """The weight of all keys that are left out together."""
        return float(weights.sum() - weights[self.keys].sum())
