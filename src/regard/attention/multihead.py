"""Multi-head attention as a module: project, attend in each head, join the heads, project back."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.attention.attend import attend
from regard.attention.bias import PositionBias
from regard.attention.cache import Cache, CrossAttentionCache
from regard.attention.mask import Mask
from regard.attention.mask.geometry import Tile
from regard.attention.mask.kinds import Padding
from regard.attention.positions import Rotary
from regard.attention.steps import Steps, steps


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    "Attention Is All You Need", section 3.2.2. Self-attention when it is called with x alone; cross-attention
    (section 3.2.3, encoder-decoder attention) when it is called with a context, from which keys and values come.

    One projection holds the weights of all heads, in the order [queries of every head, keys of every head, values of
    every head]. They are initialized head by head (query, key, value), each with the default of `nn.Linear`, so that a
    seed gives the same numbers as for separate heads.

    Args:
        d_model: width of x and of the result.
        num_heads: number of query heads.
        num_kv_heads: number of key and value heads, a divisor of num_heads (grouped-query attention, Ainslie et al.
            2023; 1 is multi-query attention). num_heads by default.
        d_key: width of a head's queries and keys; d_model / num_heads by default.
        d_value: width of a head's values; d_key by default.
        d_context: width of the context, if it is not d_model. Such a module always needs a context.
        bias: whether the projections have a bias. In the paper they have none.
        out_proj: whether the joined heads are projected back to d_model (W^O). Without it the result is
            num_heads * d_value wide.
        positions: positions inside attention: a `regard.positions.Rotary` of width d_key, which rotates queries and
            keys, or a bias such as `regard.positions.ALiBi` or `T5Relative`. They compare the tokens of one sequence,
            so such a module takes no context.
        dropout: share of the attention weights that are dropped in training.
        out_bias: whether the output projection has a bias; by default as the others (Qwen2: only the others have one).
        scale: factor of the scores; 1 / sqrt(d_key) by default (T5: 1).
        softcap: if given, scaled scores become softcap * tanh(scaled / softcap) (Gemma 2).
        sinks: whether each head learns one more score, which takes part in the softmax and has no value (gpt-oss).
        qk_norm: if given, the epsilon of an RMS norm with a learned weight, which is applied to the query and key of
            each head before rotary positions (Qwen3).

    Raises:
        ValueError: sizes that do not divide or are not positive; positions of another width or number of heads.
        TypeError: positions of another class.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        d_context: int | None = None,
        bias: bool = False,
        out_proj: bool = True,
        positions: Rotary | PositionBias | None = None,
        dropout: float | int = 0.0,
        out_bias: bool | None = None,
        scale: float | int | None = None,
        softcap: float | int | None = None,
        sinks: bool = False,
        qk_norm: float | None = None,
    ) -> None:
        super().__init__()
        if min(d_model, num_heads) < 1:
            raise ValueError(f"d_model={d_model} and num_heads={num_heads} must be at least 1")
        if d_key is None and d_model % num_heads:
            raise ValueError(
                f"d_model={d_model} does not divide into num_heads={num_heads}; give d_key, the width of a head"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.d_key = d_model // num_heads if d_key is None else d_key
        self.d_value = self.d_key if d_value is None else d_value
        self.d_context = d_context
        self.dropout = dropout
        self.scale = scale
        self.softcap = softcap
        for name in ("num_kv_heads", "d_key", "d_value", "d_context"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name}={size} must be at least 1")
        if num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={num_heads} cannot share num_kv_heads={self.num_kv_heads} evenly")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout={dropout}: a share between 0 and 1")

        if positions is not None:
            _validate_positions(positions, num_heads, self.d_key, d_context)
        self.positions = positions

        q_width = num_heads * self.d_key
        kv_width = self.num_kv_heads * (self.d_key + self.d_value)
        # reset_parameters initializes them, in the right order.
        if d_context is None:
            self.qkv = _empty_linear(d_model, q_width + kv_width, bias=bias)
        else:
            self.q = _empty_linear(d_model, q_width, bias=bias)
            self.kv = _empty_linear(d_context, kv_width, bias=bias)
        out_bias = bias if out_bias is None else out_bias
        self.out_proj = _empty_linear(num_heads * self.d_value, d_model, bias=out_bias) if out_proj else nn.Identity()
        self.sinks = nn.Parameter(torch.empty(num_heads)) if sinks else None
        self.q_norm = None if qk_norm is None else nn.RMSNorm(self.d_key, eps=qk_norm)
        self.k_norm = None if qk_norm is None else nn.RMSNorm(self.d_key, eps=qk_norm)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize every weight: query, key and value head by head, then the output projection.

        On the meta device, where weights have no numbers, nothing is done.
        """
        (q_weight, q_bias), (k_weight, k_bias), (v_weight, v_bias) = self._projection_weights()
        if q_weight.is_meta:
            return
        queries_per_key = self.num_heads // self.num_kv_heads
        for head in range(self.num_heads):
            _init_head(q_weight, q_bias, head, self.d_key)
            if head % queries_per_key == 0:
                _init_head(k_weight, k_bias, head // queries_per_key, self.d_key)
                _init_head(v_weight, v_bias, head // queries_per_key, self.d_value)
        if isinstance(self.out_proj, nn.Linear):
            self.out_proj.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "*batch tokens d_model"],
        context: Float[Tensor, "*batch context_tokens d_context"] | None = None,
        mask: Mask | None = None,
        cache: Cache | CrossAttentionCache | None = None,
        *,
        cos_sin: tuple[Tensor, Tensor] | None = None,
        bias: Float[Tensor, "..."] | PositionBias | None = None,
    ) -> Float[Tensor, "*batch tokens width"]:
        """Attention of every token of x over x itself, or over the context.

        Args:
            x: ``(batch, tokens, d_model)`` or ``(tokens, d_model)``; queries come from it.
            context: ``(batch, context_tokens, d_context)``; keys and values come from it. x by default.
            mask: who may attend, from `regard.mask`.
            cache: from `regard.cache`. In self-attention it holds the keys and values of the tokens before x and
                stores those of x; the mask is for all keys that the cache returns. In cross-attention it is a
                `CrossAttentionCache`: the first call fills it from the context, the following calls read it, and the
                context may then be left out. Several rows of x may share a source; the mask then has one
                row per source.
            cos_sin: cos and sin of the positions of x, from `Rotary.cos_sin`. By default the positions follow those in
                the cache. A stack of layers computes them once for all its layers.
            bias: added to the scaled scores, in place of this module's own positions; a stack of layers may share it.

        Returns:
            ``(batch, tokens, d_model)``, or num_heads * d_value wide without an output projection.

        Raises:
            TypeError: a bare tensor as mask; a cache of another class.
            ValueError: shapes that do not fit; a cos_sin without rotary positions.
        """
        q, k, v = self._project(x, context, cache, cos_sin)
        shared = isinstance(cache, CrossAttentionCache) and q.ndim == 4 and len(q) != len(k)
        if shared:
            rows, sources = len(q), len(k)
            q = _group_by_source(q, sources)
            if mask is not None and not _same_for_every_query(mask, q.shape[-2], k.shape[-2]):
                raise ValueError(
                    f"mask={mask!r} differs by query, and {rows} rows of queries share {sources} sources: there a mask "
                    "may differ by the tokens of the source only, as regard.mask.padding does"
                )
        output = attend(
            q,
            k,
            v,
            mask,
            scale=self.scale,
            bias=self._bias() if bias is None else bias,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
        )
        if shared:
            output = _ungroup(output, rows)
        projected: Tensor = self.out_proj(_join(output))
        return projected

    def steps(
        self,
        x: Float[Tensor, "*batch tokens d_model"],
        context: Float[Tensor, "*batch context_tokens d_context"] | None = None,
        mask: Mask | None = None,
        *,
        cos_sin: tuple[Tensor, Tensor] | None = None,
        bias: Float[Tensor, "..."] | PositionBias | None = None,
    ) -> Steps:
        """The same calculation by the definition, with every intermediate result by head; no dropout.

        Args:
            x: as in a call of the module.
            context: as in a call of the module.
            mask: as in a call of the module.
            cos_sin: as in a call of the module.
            bias: as in a call of the module.

        Returns:
            `Steps` with q, k and v ``(batch, heads, tokens, width)``, q and k after rotary positions; heads (the
            outputs joined) and projected (what the module returns).
        """
        q, k, v = self._project(x, context, None, cos_sin)
        bias = self._bias() if bias is None else bias
        by_head = steps(q, k, v, mask, scale=self.scale, bias=bias, softcap=self.softcap, sinks=self.sinks)
        heads = _join(by_head.output)
        return replace(by_head, q=q, k=k, v=v, heads=heads, projected=self.out_proj(heads))

    def extra_repr(self) -> str:
        """What ``print(module)`` shows in addition to the projections."""
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, d_key={self.d_key}, d_value={self.d_value}"
        )

    def _bias(self) -> PositionBias | None:
        return self.positions if isinstance(self.positions, PositionBias) else None

    def _project(
        self,
        x: Tensor,
        context: Tensor | None,
        cache: Cache | CrossAttentionCache | None,
        cos_sin: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head, each (..., heads, tokens, width), k and v with those of the cache."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor (..., tokens, d_model={self.d_model}); got {type(x).__name__}")
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"x must be (..., tokens, d_model={self.d_model}); got {tuple(x.shape)}")
        if cache is not None:
            self._validate_cache(cache, context)
        if cos_sin is not None and (context is not None or not isinstance(self.positions, Rotary)):
            raise ValueError(f"cos_sin rotates queries and keys of rotary positions; here positions={self.positions!r}")
        if context is None and not isinstance(cache, CrossAttentionCache):
            return self._project_self(x, cache, cos_sin)
        q, k, v = self._project_cross(x, context, cache)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
        return q, k, v

    def _project_self(
        self, x: Tensor, cache: Cache | None, cos_sin: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.d_context is not None:
            raise ValueError(f"this attention needs a context of width d_context={self.d_context}; none was given")
        packed, heads = self.qkv(x), (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        if self.d_key == self.d_value:  # one view of all heads: on short sequences every operation counts
            q, k, v = _split(packed, sum(heads)).split_with_sizes(heads, dim=-3)
        else:
            parts = zip(torch.split(packed, self._widths(), dim=-1), heads, strict=True)
            q, k, v = (_split(part, count) for part, count in parts)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if isinstance(self.positions, Rotary):
            if cos_sin is None:
                first = 0 if cache is None else cache.num_tokens
                positions = torch.arange(first, first + x.shape[-2], device=x.device)
                cos_sin = self.positions.cos_sin(positions, dtype=torch.promote_types(q.dtype, torch.float32))
            q, k = self.positions.rotate(q, *cos_sin), self.positions.rotate(k, *cos_sin)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _project_cross(
        self, x: Tensor, context: Tensor | None, source: Cache | CrossAttentionCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.num_heads * self.d_key
        if self.d_context is not None:
            q = self.q(x)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            q = nn.functional.linear(x, weight[:rows], None if bias is None else bias[:rows])
        q = _split(q, self.num_heads)
        if isinstance(source, CrossAttentionCache) and source.k is not None and source.v is not None:
            if source.k.ndim != q.ndim or (q.ndim == 4 and len(q) % len(source.k)):
                raise ValueError(f"x {tuple(x.shape)} does not share {source!r} evenly")
            return q, source.k, source.v
        k, v = self._project_context(x, context, rows)
        if isinstance(source, CrossAttentionCache):
            source.k, source.v = k, v
        return q, k, v

    def _project_context(self, x: Tensor, context: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the context, by head."""
        if context is None:
            raise ValueError("cache=CrossAttentionCache() is empty: its first call needs the context")
        if not isinstance(context, Tensor):
            raise TypeError(
                f"context must be a tensor; got {type(context).__name__}. Pass a mask by its name: mask=..."
            )
        if self.positions is not None:
            raise ValueError(
                f"positions={self.positions!r} compare tokens of one sequence; attention over a context needs an "
                "attention without positions"
            )
        width = self.d_model if self.d_context is None else self.d_context
        if context.ndim < 2 or context.shape[-1] != width or context.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"context must be (..., tokens, {width}) with the batch of x {tuple(x.shape)}; "
                f"got {tuple(context.shape)}"
            )
        if self.d_context is not None:
            packed = self.kv(context)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            packed = nn.functional.linear(context, weight[rows:], None if bias is None else bias[rows:])
        k, v = torch.split(packed, self._widths()[1:], dim=-1)
        k, v = _split(k, self.num_kv_heads), _split(v, self.num_kv_heads)
        return k if self.k_norm is None else self.k_norm(k), v

    def _validate_cache(self, cache: object, context: Tensor | None) -> None:
        if not isinstance(cache, (Cache, CrossAttentionCache)):
            raise TypeError(
                f"cache={type(cache).__name__}: it must be a Dynamic, Static or Sliding of regard.cache, or a "
                "CrossAttentionCache for attention over a context"
            )
        if isinstance(cache, Cache) and context is not None:
            raise ValueError(
                f"cache={cache!r} holds tokens of x; the keys of a context belong in a regard.cache.CrossAttentionCache"
            )

    def _widths(self) -> list[int]:
        return [
            self.num_heads * self.d_key,
            self.num_kv_heads * self.d_key,
            self.num_kv_heads * self.d_value,
        ]

    def _projection_weights(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of the query, key and value projections, as views of the packed ones."""
        widths = self._widths()
        if self.d_context is None:
            weights = list(torch.split(self.qkv.weight, widths))
            biases = [None] * 3 if self.qkv.bias is None else list(torch.split(self.qkv.bias, widths))
        else:
            weights = [self.q.weight, *torch.split(self.kv.weight, widths[1:])]
            biases = [None] * 3 if self.q.bias is None else [self.q.bias, *torch.split(self.kv.bias, widths[1:])]
        return list(zip(weights, biases, strict=True))


def _validate_positions(positions: object, num_heads: int, d_key: int, d_context: int | None) -> None:
    if not isinstance(positions, (Rotary, PositionBias)):
        raise TypeError(
            f"positions={positions!r}: inside attention they are a Rotary, ALiBi or T5Relative of regard.positions. "
            "Sinusoidal and Learned positions are added to x before the first layer"
        )
    if d_context is not None:
        raise ValueError(
            f"positions={positions!r} compare tokens of one sequence; d_context={d_context} is another one"
        )
    if isinstance(positions, Rotary) and positions.width != d_key:
        raise ValueError(f"positions={positions!r} rotate heads of width {positions.width}; here d_key={d_key}")
    if isinstance(positions, PositionBias) and positions.num_heads != num_heads:
        raise ValueError(f"positions={positions!r} have {positions.num_heads} heads; here num_heads={num_heads}")


def _split(packed: Tensor, heads: int) -> Tensor:
    """(..., tokens, heads * width) as (..., heads, tokens, width)."""
    *batch_tokens, width = packed.shape
    return packed.view(*batch_tokens, heads, width // heads).transpose(-3, -2)


def _same_for_every_query(mask: Mask, queries: int, keys: int) -> bool:
    return isinstance(mask, Padding) or mask.evaluate(Tile.full(queries, keys)).shape[-2] == 1


def _group_by_source(q: Tensor, sources: int) -> Tensor:
    """The queries of all rows of a source as one row: (rows, heads, tokens, width) as (sources, heads, ..., width)."""
    rows, heads, tokens, width = q.shape
    return q.view(sources, rows // sources, heads, tokens, width).transpose(1, 2).flatten(2, 3)


def _ungroup(output: Tensor, rows: int) -> Tensor:
    """The inverse of `_group_by_source`."""
    sources, heads, grouped_tokens, width = output.shape
    tokens = grouped_tokens * sources // rows
    return output.view(sources, heads, rows // sources, tokens, width).transpose(1, 2).flatten(0, 1)


def _join(by_head: Tensor) -> Tensor:
    """Concat(head_1, ..., head_h): (..., heads, tokens, width) as (..., tokens, heads * width)."""
    return by_head.transpose(-3, -2).flatten(-2)


def _empty_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """A linear layer with uninitialized weights, made without a draw from the random generator."""
    linear = nn.Linear(inputs, outputs, bias=bias, device="meta")
    # linear.to_empty would do it too; of tensors on the meta device, PyTorch imports sympy for it.
    linear.weight = nn.Parameter(torch.empty(outputs, inputs))
    if bias:
        linear.bias = nn.Parameter(torch.empty(outputs))
    return linear


def _init_head(weight: Tensor, bias: Tensor | None, head: int, width: int) -> None:
    """Initialize the rows of one head with the calls of `nn.Linear.reset_parameters`."""
    rows = slice(head * width, (head + 1) * width)
    nn.init.kaiming_uniform_(weight[rows], a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(weight.shape[1])
        nn.init.uniform_(bias[rows], -bound, bound)
