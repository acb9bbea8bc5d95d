"""The key-value caches of a whole decoder."""

from __future__ import annotations

from torch import Tensor

from regard._shapes import Int
from regard.attention.cache import Cache, CrossAttentionCache, Dynamic, Sliding, Static
from regard.transformer.config import Config


class KVCaches:
    """The caches of each layer: one for its self-attention, and one for its cross-attention if it has any.

    Args:
        config: of the decoder. A layer with a window gets a `Sliding` cache.
        length: the most tokens that will follow, if that is known: layers without a window get a `Static` cache, whose
            buffer never moves, instead of a `Dynamic` one.
    """

    def __init__(self, config: Config, *, length: int | None = None) -> None:
        self.config = config
        windows = [config.window(layer) for layer in range(config.num_layers)]
        self.self_attention: list[Cache] = [
            Sliding(window) if window is not None else Dynamic() if length is None else Static(length)
            for window in windows
        ]
        self.cross_attention = [CrossAttentionCache() for _ in windows]
        self.left_padding: Int[Tensor, " batch"] | None = None
        """How many tokens at the left of each row are padding, from the first call."""
        self.num_tokens = 0
        """How many tokens were read so far, padding included."""

    @property
    def has_context(self) -> bool:
        """Whether the caches hold the keys and values of the context."""
        return all(cache.k is not None for cache in self.cross_attention)

    def validate(self, config: Config) -> None:
        """Refuse caches that a decoder of this config cannot continue.

        Raises:
            ValueError: caches of another config; caches that a failed call left half filled.
        """
        if self.config is not config and self.config != config:
            raise ValueError(f"{self!r} belong to a decoder of another config; make them with this one's caches()")
        if any(cache.num_tokens != self.num_tokens for cache in self.self_attention):
            raise ValueError(f"{self!r}: a call failed halfway, and some layers have its tokens; make new caches")

    def reorder(
        self, rows: Int[Tensor, " rows"], sources: Int[Tensor, " sources"] | None = None, *, common_prefix: int = 0
    ) -> None:
        """Row ``rows[i]`` becomes row i: beams that fork, rows that repeat, rows that are dropped.

        Args:
            rows: for each new row, the old row that it continues.
            sources: the same for the rows of the context, if they change too. Beams of one sentence share its context,
                which then stays.
            common_prefix: how many first tokens are the same in row i and row ``rows[i]``, and need not move.
        """
        for cache in self.self_attention:
            cache.reorder(rows, common_prefix=common_prefix)
        if self.left_padding is not None:
            self.left_padding = self.left_padding[rows]
        if sources is not None:
            for cross_cache in self.cross_attention:
                cross_cache.reorder(sources)

    def __repr__(self) -> str:
        types = ", ".join(dict.fromkeys(type(cache).__name__ for cache in self.self_attention))
        return f"KVCaches({len(self.self_attention)} layers, {types}, num_tokens={self.num_tokens})"
