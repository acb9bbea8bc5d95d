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
from regard.attention.plan import MAX_DENSE_PAIRS
from regard.attention.positions import ALiBi, Rotary, T5Relative
from regard.transformer.block import Block, BlockInputs
from regard.transformer.config import Config
from regard.transformer.embeddings import Embeddings
from regard.transformer.kv_caches import KVCaches
from regard.transformer.norm import make_norm

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
            rotary = Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling)
        self.blocks = nn.ModuleList(Block(config, rotary=rotary, d_context=d_context) for _ in range(config.num_layers))
        self.rotary = rotary
        # T5's numbers are learned once and added in every layer, ALiBi's are the same in every layer.
        self.bias: PositionBias | None = None
        if config.positions == "alibi":
            self.bias = ALiBi(config.num_heads)
        elif config.positions == "t5":
            self.bias = T5Relative(
                config.num_heads,
                num_buckets=config.t5_buckets,
                max_distance=config.t5_max_distance,
                bidirectional=not causal,
            )
        self.norm = None if config.norm_position == "post" else make_norm(config)

    def hidden_states(
        self,
        ids: Int[Tensor, "*batch tokens"],
        token_type_ids: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        left_padding: Int[Tensor, " batch"] | None = None,
        caches: KVCaches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
    ) -> Iterator[Float[Tensor, "*batch tokens d_model"]]:
        """The input of each block, then the result: num_layers + 1 tensors, one at a time.

        The result is what the last block returns, normed where the config's norms stand before the sub-layers.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            token_type_ids: the segment of each token, 0 by default.
            mask: who may attend to whom in self-attention, beside what the stack itself says: `causal` in a decoder,
                the layers' windows.
            positions: where each token stands, ``(tokens,)`` or as ids; 0, 1, 2, ... by default. Packed documents begin
                anew at 0, each. ALiBi and T5's bias go by how far apart two tokens lie in the row, which within a
                document is the same.
            left_padding: how many tokens at the left of each row are padding. They get no position, and no token
                attends to them. For padding on the right: ``mask=regard.mask.padding(lengths)``.
            caches: keys and values of the tokens before; the new ones join them.
            context: an encoder's output, for cross-attention.
            context_mask: which of its tokens may be attended to.

        Raises:
            TypeError: ids that are not whole numbers.
            ValueError: more tokens than positions; positions, left_padding, a mask or caches that do not fit.
            IndexError: an id outside the vocabulary.
        """
        x, every = self.embed_inputs(
            ids,
            token_type_ids,
            mask,
            positions=positions,
            left_padding=left_padding,
            caches=caches,
            context=context,
            context_mask=context_mask,
        )
        for block, reads in zip(self.blocks, every, strict=True):
            yield x
            x = block(x, reads)
        if caches is not None:
            caches.num_tokens += ids.shape[-1]
        yield x if self.norm is None else self.norm(x)

    def embed_inputs(
        self,
        ids: Int[Tensor, "*batch tokens"],
        token_type_ids: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        left_padding: Int[Tensor, " batch"] | None = None,
        caches: KVCaches | None = None,
        context: Float[Tensor, "*sources context_tokens d_context"] | None = None,
        context_mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "*batch tokens d_model"], list[BlockInputs]]:
        """The input of the first block, and the other inputs of each block; arguments as in `hidden_states`."""
        if ids.ndim < 1 or ids.shape[-1] == 0:
            raise ValueError(f"ids of shape {tuple(ids.shape)} hold no token; a transformer reads at least one")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"ids are whole numbers, the tokens' places in the vocabulary; got {ids.dtype}")
        if caches is not None:
            caches.check(self.config)
        seen = 0 if caches is None else caches.num_tokens
        tokens = ids.shape[-1]
        left_padding = _checked_left_padding(left_padding, caches, ids)
        if positions is None:
            positions, last = self._positions(seen, ids, left_padding)
        else:
            positions, last = self._checked_positions(positions, ids, left_padding, caches)
        x: Tensor = self.embeddings(ids, token_type_ids, positions)
        cos_sin = None
        if self.rotary is not None:
            dtype = torch.promote_types(x.dtype, torch.float32)
            cos_sin = self.rotary.cos_sin(positions, length=last, dtype=dtype)
        # Layers of one kind share their mask and bias.
        known: dict[tuple[int, int | None], tuple[Mask | None, Tensor | PositionBias | None]] = {}
        every = []
        for layer in range(self.config.num_layers):
            cache = None if caches is None else caches.self_attention[layer]
            source = None if caches is None else caches.cross_attention[layer]
            keys = tokens if cache is None else cache.kv_length(tokens)
            window = self.config.window(layer)
            if (keys, window) not in known:
                own = self._mask(tokens, keys, window, mask, left_padding, seen + tokens - keys)
                known[keys, window] = own, self._bias(tokens, keys, x)
            own, bias = known[keys, window]
            every.append(BlockInputs(own, cos_sin, bias, cache, context, context_mask, source))
        return x, every

    def _positions(self, seen: int, ids: Tensor, left_padding: Tensor | None) -> tuple[Tensor, int]:
        """Where each token stands, and how long the longest text is."""
        tokens, limit = ids.shape[-1], self.config.max_positions
        positions = torch.arange(seen, seen + tokens, device=ids.device)
        last = seen + tokens
        if left_padding is not None:
            positions = (positions - left_padding[:, None]).clamp(min=0)
            last -= int(left_padding.min())
        if limit is not None and last > limit:
            raise ValueError(f"{last} tokens, but this model has positions for {limit}: shorten the text or split it")
        return positions, last

    def _checked_positions(
        self, positions: Tensor, ids: Tensor, left_padding: Tensor | None, caches: KVCaches | None
    ) -> tuple[Tensor, int]:
        """Where each token stands as somebody said, and how long the longest text is."""
        if left_padding is not None or caches is not None:
            raise ValueError(
                "positions are for texts that are read at once: with left_padding or caches they follow from these"
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
        self, queries: int, keys: int, window: int | None, mask: Mask | None, left_padding: Tensor | None, dropped: int
    ) -> Mask | None:
        """Who may attend to whom in a layer, by its window and by what was asked for."""
        parts = []
        if window is not None and (keys > window or queries > 1):
            parts.append(masks.window(window) if self.causal else masks.window(window, window - 1))
        elif self.causal and queries > 1:
            parts.append(masks.causal())
        if left_padding is not None:
            parts.append(~masks.padding((left_padding - dropped).clamp(0, keys)))
        if mask is not None:
            if dropped:
                raise ValueError(
                    f"mask={mask!r} speaks of every token, and a sliding cache has dropped {dropped} of them; a cache "
                    "knows causal and windows by itself, and padding on the left by left_padding"
                )
            parts.append(mask)
        return reduce(and_, parts) if parts else None

    def _bias(self, queries: int, keys: int, x: Tensor) -> Tensor | PositionBias | None:
        if self.bias is None or queries * keys > MAX_DENSE_PAIRS:
            return self.bias
        return self.bias.dense(queries, keys, device=x.device).to(x.dtype)


def _checked_left_padding(left_padding: Tensor | None, caches: KVCaches | None, ids: Tensor) -> Tensor | None:
    """How much padding there is on the left, None for none; a cache remembers it."""
    if caches is not None and caches.num_tokens:
        if left_padding is not None:
            raise ValueError("left_padding belongs to the first call of a cache, which remembers it")
        left_padding = caches.left_padding
    if left_padding is not None:
        if left_padding.ndim != 1 or ids.ndim != 2 or len(left_padding) != len(ids):
            raise ValueError(
                f"left_padding needs one number per row of ids {tuple(ids.shape)}; it has {tuple(left_padding.shape)}"
            )
        if left_padding.is_floating_point() or left_padding.dtype == torch.bool:
            raise ValueError(f"left_padding says how many tokens, in whole numbers; got {left_padding.dtype}")
        if caches is None or not caches.num_tokens:
            if bool(((left_padding < 0) | (left_padding > ids.shape[-1])).any()):
                raise ValueError(
                    f"left_padding={left_padding.tolist()} must be 0 to {ids.shape[-1]}, the number of tokens"
                )
            left_padding = left_padding if bool(left_padding.any()) else None
    if caches is not None:
        caches.left_padding = left_padding
    return left_padding
