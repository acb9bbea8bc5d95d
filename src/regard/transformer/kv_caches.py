"""The caches of a whole decoder: what it keeps of the tokens that it has read."""

from __future__ import annotations

from torch import Tensor

from regard._shapes import Int
from regard.attention.cache import Cache, CrossAttentionCache, Dynamic, Sliding, Static
from regard.transformer.config import Config

__all__ = ["KVCaches"]


class KVCaches:
    """One cache for the self-attention of each layer, and one for its cross-attention where there is one.

    Args:
        config: of the decoder. A layer with a window gets a `Sliding` cache.
        length: if given, how many tokens there will be at most: layers without a window get a `Static` cache, whose
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
        """How many tokens at the left of each row are padding, as the first call said."""
        self.num_tokens = 0
        """How many tokens were read so far, padding included."""

    @property
    def has_context(self) -> bool:
        """Whether the sources of cross-attention are known."""
        return all(source.k is not None for source in self.cross_attention)

    def check(self, config: Config) -> None:
        """Refuse caches that a decoder of this config cannot go on with.

        Raises:
            ValueError: caches of another config; caches that a call left half filled because it failed.
        """
        if self.config is not config and self.config != config:
            raise ValueError(f"{self!r} belong to a decoder of another config; make them with this one's caches()")
        if any(layer.num_tokens != self.num_tokens for layer in self.self_attention):
            raise ValueError(f"{self!r}: a call failed halfway, and some layers have its tokens; make new caches")

    def reorder(
        self, rows: Int[Tensor, " rows"], sources: Int[Tensor, " sources"] | None = None, *, common_prefix: int = 0
    ) -> None:
        """Make row i what row ``rows[i]`` was: beams that fork, rows that repeat, rows that are dropped.

        Args:
            rows: for each row that follows, the row it continues.
            sources: the same for the sources of cross-attention, where they change too. Beams of one sentence share
                its source, which then stays where it is.
            common_prefix: the first so many tokens are the same in row i and row ``rows[i]``, and need not move.
        """
        for layer in self.self_attention:
            layer.reorder(rows, common_prefix=common_prefix)
        if self.left_padding is not None:
            self.left_padding = self.left_padding[rows]
        if sources is not None:
            for source in self.cross_attention:
                source.reorder(sources)

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in self.self_attention))
        return f"KVCaches({len(self.self_attention)} layers, {kinds}, num_tokens={self.num_tokens})"
