"""What encoder and decoder share: token vectors in, block after block, token vectors out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.plan import DENSE
from regard.attention.positions import ALiBi, Rotary, T5Relative
from regard.transformer.block import Block, Reads
from regard.transformer.caches import Caches
from regard.transformer.config import Config
from regard.transformer.embeddings import Embeddings
from regard.transformer.norm import norm_of

__all__ = ["Stack"]


class Stack(nn.Module):
    """Embeddings and a stack of N blocks (paper, figure 1, one of its two halves).

    Args:
        config: sizes and choices.
        causal: whether a token sees only those before it and itself (a decoder; paper, section 3.2.3).
        d_context: width of an encoder's output that every block attends to; None for no cross-attention.
        token: token vectors that another stack has too.
    """

    def __init__(
        self, config: Config, *, causal: bool, d_context: int | None = None, token: nn.Embedding | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.embeddings = Embeddings(config, token)
        rotary = None
        if config.positions == "rotary":
            rotary = Rotary(config.width, base=config.rotary_base, scaling=config.rotary_scaling)
        self.blocks = nn.ModuleList(Block(config, rotary=rotary, d_context=d_context) for _ in range(config.num_layers))
        self.rotary = rotary
        # T5's numbers are learned once and added in every layer, ALiBi's are the same in every layer.
        self.bias: PositionBias | None = None
        if config.positions == "alibi":
            self.bias = ALiBi(config.num_heads)
        elif config.positions == "t5":
            self.bias = T5Relative(
                config.num_heads,
                buckets=config.t5_buckets,
                max_distance=config.t5_max_distance,
                bidirectional=not causal,
            )
        self.norm = None if config.norm_place == "post" else norm_of(config)

    def states(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        pads: Int[Tensor, " batch"] | None = None,
        caches: Caches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
    ) -> Iterator[Float[Tensor, "*batch tokens d_model"]]:
        """The input of each block, then the result: num_layers + 1 tensors, one at a time.

        The result is what the last block returns, normed where the config's norms stand before the sub-layers.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            segments: the segment of each token, 0 by default.
            mask: who may attend to whom in self-attention, beside what the stack itself says: `causal` in a decoder,
                the layers' windows.
            positions: where each token stands, ``(tokens,)`` or as ids; 0, 1, 2, ... by default. Packed documents begin
                anew at 0, each. ALiBi and T5's bias go by how far apart two tokens lie in the row, which within a
                document is the same.
            pads: how many tokens at the left of each row are padding. They get no position, and nobody attends to
                them. For padding on the right: ``mask=regard.mask.padding(lengths)``.
            caches: keys and values of the tokens before; the new ones join them.
            context: an encoder's output, for cross-attention.
            context_mask: which of its tokens may be attended to.

        Raises:
            TypeError: ids that are not whole numbers.
            ValueError: more tokens than positions; positions, pads, a mask or caches that do not fit.
            IndexError: an id outside the vocabulary.
        """
        x, every = self.prepare(
            ids,
            segments,
            mask,
            positions=positions,
            pads=pads,
            caches=caches,
            context=context,
            context_mask=context_mask,
        )
        for block, reads in zip(self.blocks, every, strict=True):
            yield x
            x = block(x, reads)
        if caches is not None:
            caches.seen += ids.shape[-1]
        yield x if self.norm is None else self.norm(x)

    def prepare(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        pads: Int[Tensor, " batch"] | None = None,
        caches: Caches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "*batch tokens d_model"], list[Reads]]:
        """The vectors that the first block reads, and what each block reads beside them; arguments as in `states`."""
        if ids.ndim < 1 or ids.shape[-1] == 0:
            raise ValueError(f"ids of shape {tuple(ids.shape)} hold no token; a transformer reads at least one")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"ids are whole numbers, the tokens' places in the vocabulary; got {ids.dtype}")
        if caches is not None:
            caches.check(self.config)
        seen = 0 if caches is None else caches.seen
        tokens = ids.shape[-1]
        pads = _checked(pads, caches, ids)
        if positions is None:
            positions, last = self._positions(seen, ids, pads)
        else:
            positions, last = self._given(positions, ids, pads, caches)
        x: Tensor = self.embeddings(ids, segments, positions)
        table = None
        if self.rotary is not None:
            dtype = torch.promote_types(x.dtype, torch.float32)
            table = self.rotary.table(positions, length=last, dtype=dtype)
        # Layers of one kind share their mask and bias.
        known: dict[tuple[int, int | None], tuple[Mask | None, Tensor | PositionBias | None]] = {}
        every = []
        for layer in range(self.config.num_layers):
            cache = None if caches is None else caches.layers[layer]
            source = None if caches is None else caches.sources[layer]
            keys = tokens if cache is None else cache.returns(tokens)
            window = self.config.window(layer)
            if (keys, window) not in known:
                own = self._mask(tokens, keys, window, mask, pads, seen + tokens - keys)
                known[keys, window] = own, self._bias(tokens, keys, x)
            own, bias = known[keys, window]
            every.append(Reads(own, table, bias, cache, context, context_mask, source))
        return x, every

    def _positions(self, seen: int, ids: Tensor, pads: Tensor | None) -> tuple[Tensor, int]:
        """Where each token stands, and how long the longest text is."""
        tokens, limit = ids.shape[-1], self.config.max_positions
        positions = torch.arange(seen, seen + tokens, device=ids.device)
        last = seen + tokens
        if pads is not None:
            positions = (positions - pads[:, None]).clamp(min=0)
            last -= int(pads.min())
        if limit is not None and last > limit:
            raise ValueError(f"{last} tokens, but this model has positions for {limit}: shorten the text or split it")
        return positions, last

    def _given(self, positions: Tensor, ids: Tensor, pads: Tensor | None, caches: Caches | None) -> tuple[Tensor, int]:
        """Where each token stands as somebody said, and how long the longest text is."""
        if pads is not None or caches is not None:
            raise ValueError(
                "positions are for texts that are read at once: with pads or caches they follow from these"
            )
        if positions.shape not in (ids.shape, ids.shape[-1:]):
            raise ValueError(f"positions of shape {tuple(positions.shape)} do not fit ids of shape {tuple(ids.shape)}")
        if positions.is_floating_point() or positions.dtype == torch.bool:
            raise TypeError(f"positions are whole numbers from 0; got {positions.dtype}")
        positions = positions.long()  # narrower integers would wrap around in sums
        low, high = (int(end) for end in positions.aminmax()) if len(ids) else (0, 0)
        limit = self.config.max_positions
        if low < 0 or (limit is not None and high >= limit):
            most = "" if limit is None else f" to {limit - 1}"
            raise ValueError(f"positions are 0{most} in this model; got {low} to {high}")
        return positions, high + 1

    def _mask(
        self, queries: int, keys: int, window: int | None, mask: Mask | None, pads: Tensor | None, dropped: int
    ) -> Mask | None:
        """Who may attend to whom in a layer, by its window and by what was asked for."""
        parts = []
        if window is not None and (keys > window or queries > 1):
            parts.append(masks.window(window) if self.causal else masks.window(window, window - 1))
        elif self.causal and queries > 1:
            parts.append(masks.causal())
        if pads is not None:
            parts.append(~masks.padding((pads - dropped).clamp(0, keys)))
        if mask is not None:
            if dropped:
                raise ValueError(
                    f"mask={mask!r} speaks of every token, and a sliding cache has dropped {dropped} of them; a cache "
                    "knows causal and windows by itself, and padding on the left by pads"
                )
            parts.append(mask)
        return reduce(and_, parts) if parts else None

    def _bias(self, queries: int, keys: int, x: Tensor) -> Tensor | PositionBias | None:
        if self.bias is None or queries * keys > DENSE:
            return self.bias
        return self.bias.dense(queries, keys, device=x.device).to(x.dtype)


def _checked(pads: Tensor | None, caches: Caches | None, ids: Tensor) -> Tensor | None:
    """How much padding there is on the left, None for none; a cache remembers it."""
    if caches is not None and caches.seen:
        if pads is not None:
            raise ValueError("pads belong to the first call of a cache, which remembers them")
        pads = caches.pads
    if pads is not None:
        if pads.ndim != 1 or ids.ndim != 2 or len(pads) != len(ids):
            raise ValueError(f"pads wants one number per row of ids {tuple(ids.shape)}; got shape {tuple(pads.shape)}")
        if pads.is_floating_point() or pads.dtype == torch.bool:
            raise ValueError(f"pads says how many tokens, in whole numbers; got {pads.dtype}")
        if caches is None or not caches.seen:
            if bool(((pads < 0) | (pads > ids.shape[-1])).any()):
                raise ValueError(f"pads={pads.tolist()} must be 0 to {ids.shape[-1]}, the number of tokens")
            pads = pads if bool(pads.any()) else None
    if caches is not None:
        caches.pads = pads
    return pads
