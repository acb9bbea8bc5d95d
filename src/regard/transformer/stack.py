"""The common base of encoder and decoder: embeddings and a stack of blocks."""

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
from regard.transformer.block import Block, BlockInputs, make_norm
from regard.transformer.config import Config
from regard.transformer.embeddings import Embeddings
from regard.transformer.kv_caches import KVCaches


class Stack(nn.Module):
    """Embeddings and a stack of N blocks (one half of the paper's figure 1).

    Args:
        config: sizes and choices.
        causal: whether a token may attend only to itself and the tokens before it (a decoder; paper, section 3.2.3).
        d_context: width of the encoder's output that every block attends to; None for no cross-attention.
        token: a token embedding that another stack shares.
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
        layers = range(config.num_layers)
        self.blocks = nn.ModuleList(Block(config, layer, rotary=rotary, d_context=d_context) for layer in layers)
        self.rotary = rotary
        # All layers share the position bias, learned in T5 and fixed in ALiBi.
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

        The result is the output of the last block, with a final norm unless the config's norms follow the sub-layers.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            token_type_ids: the type of each token, 0 by default.
            mask: who may attend to whom in self-attention, in addition to the stack's own masks: `causal` in a decoder,
                the windows of the layers.
            positions: the position of each token, ``(tokens,)`` or as ids; 0, 1, 2, ... by default. Each packed
                document starts at 0. ALiBi and T5's bias use the distance of two tokens in the row, which is
                the same within a document.
            left_padding: how many tokens at the left of each row are padding. They get no position, and no token
                attends to them. For padding on the right: ``mask=regard.mask.padding(lengths)``.
            caches: keys and values of the previous tokens; the new ones are added.
            context: the encoder's output, for cross-attention.
            context_mask: which tokens of the context may be attended to.

        Raises:
            TypeError: ids that are not whole numbers.
            ValueError: more tokens than positions; positions, left_padding, a mask or caches that do not fit.
            IndexError: an id outside the vocabulary.
        """
        x, block_inputs = self.embed_inputs(
            ids,
            token_type_ids,
            mask,
            positions=positions,
            left_padding=left_padding,
            caches=caches,
            context=context,
            context_mask=context_mask,
        )
        for block, inputs in zip(self.blocks, block_inputs, strict=True):
            yield x
            x = block(x, inputs)
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
            raise TypeError(f"ids are whole numbers, the token ids of the vocabulary; got {ids.dtype}")
        if caches is not None:
            caches.validate(self.config)
        num_previous = 0 if caches is None else caches.num_tokens
        tokens = ids.shape[-1]
        left_padding = _checked_left_padding(left_padding, caches, ids)
        if positions is None:
            positions, length = self._default_positions(num_previous, ids, left_padding)
        else:
            positions, length = self._checked_positions(positions, ids, left_padding, caches)
        x: Tensor = self.embeddings(ids, token_type_ids, positions)
        cos_sin = None
        if self.rotary is not None:
            dtype = torch.promote_types(x.dtype, torch.float32)
            cos_sin = self.rotary.cos_sin(positions, length=length, dtype=dtype)
        # Layers with the same number of keys and the same window share their mask and bias.
        shared: dict[tuple[int, int | None], tuple[Mask | None, Tensor | PositionBias | None]] = {}
        block_inputs = []
        for layer in range(self.config.num_layers):
            cache = None if caches is None else caches.self_attention[layer]
            cross_cache = None if caches is None else caches.cross_attention[layer]
            keys = tokens if cache is None else cache.kv_length(tokens)
            window = self.config.window(layer)
            if (keys, window) not in shared:
                layer_mask = self._mask(tokens, keys, window, mask, left_padding, num_previous + tokens - keys)
                shared[keys, window] = layer_mask, self._bias(tokens, keys, x)
            layer_mask, bias = shared[keys, window]
            block_inputs.append(BlockInputs(layer_mask, cos_sin, bias, cache, context, context_mask, cross_cache))
        return x, block_inputs

    def _default_positions(self, num_previous: int, ids: Tensor, left_padding: Tensor | None) -> tuple[Tensor, int]:
        """The position of each token, and the length of the longest text."""
        tokens, limit = ids.shape[-1], self.config.max_positions
        positions = torch.arange(num_previous, num_previous + tokens, device=ids.device)
        length = num_previous + tokens
        if left_padding is not None:
            positions = (positions - left_padding[:, None]).clamp(min=0)
            length -= int(left_padding.min())
        if limit is not None and length > limit:
            raise ValueError(f"{length} tokens, but this model has positions for {limit}: shorten the text or split it")
        return positions, length

    def _checked_positions(
        self, positions: Tensor, ids: Tensor, left_padding: Tensor | None, caches: KVCaches | None
    ) -> tuple[Tensor, int]:
        """The caller's position of each token, and the length of the longest text."""
        if left_padding is not None or caches is not None:
            raise ValueError(
                "positions are for texts that are read at once: left_padding and caches give positions of their own"
            )
        if positions.shape not in (ids.shape, ids.shape[-1:]):
            raise ValueError(f"positions of shape {tuple(positions.shape)} do not fit ids of shape {tuple(ids.shape)}")
        if positions.is_floating_point() or positions.dtype == torch.bool:
            raise TypeError(f"positions are whole numbers from 0; got {positions.dtype}")
        positions = positions.long()  # narrower integers would wrap around in sums
        low, high = (int(end) for end in positions.aminmax()) if len(ids) else (0, 0)
        limit = self.config.max_positions
        if low < 0 or (limit is not None and high >= limit):
            highest = "" if limit is None else f" to {limit - 1}"
            raise ValueError(f"positions are 0{highest} in this model; got {low} to {high}")
        return positions, high + 1

    def _mask(
        self, queries: int, keys: int, window: int | None, mask: Mask | None, left_padding: Tensor | None, dropped: int
    ) -> Mask | None:
        """Who may attend to whom in a layer: its window or the causal mask, the padding and the caller's mask."""
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
                    f"mask={mask!r} is for all tokens, and a sliding cache has dropped {dropped} of them; with a "
                    "cache, causal masks and windows are automatic, and left_padding is for padding on the left"
                )
            parts.append(mask)
        return reduce(and_, parts) if parts else None

    def _bias(self, queries: int, keys: int, x: Tensor) -> Tensor | PositionBias | None:
        if self.bias is None or queries * keys > MAX_DENSE_PAIRS:
            return self.bias
        return self.bias.dense(queries, keys, device=x.device).to(x.dtype)


def _checked_left_padding(left_padding: Tensor | None, caches: KVCaches | None, ids: Tensor) -> Tensor | None:
    """The number of padding tokens at the left of each row, None for none; caches remember it."""
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
            raise ValueError(f"left_padding is a number of tokens, in whole numbers; got {left_padding.dtype}")
        if caches is None or not caches.num_tokens:
            if bool(((left_padding < 0) | (left_padding > ids.shape[-1])).any()):
                raise ValueError(
                    f"left_padding={left_padding.tolist()} must be 0 to {ids.shape[-1]}, the number of tokens"
                )
            left_padding = left_padding if bool(left_padding.any()) else None
    if caches is not None:
        caches.left_padding = left_padding
    return left_padding
