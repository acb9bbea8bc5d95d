"""The classes that replace PyTorch's: the same parameters, names and call signatures, and the attention of regard."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import attend
from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.attention.validation import resolve_mask
from regard.integrations.pytorch.dense_masks import numbers_are_known, read_masks


class Replacement(nn.Module):
    """A class that stands in for another one on the same objects."""

    replaced_class: ClassVar[type[nn.Module]]
    """The class that the objects had, and have after `Replaced.restore`."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class for somebody's subclass is made at run time, so copies and files name the class that it replaces.
        reduced: Any = super().__reduce_ex__(protocol)
        return _empty, (self.replaced_class,), *reduced[2:]


class RegardMultiheadAttention(Replacement, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` on `regard.attend`."""

    replaced_class = nn.MultiheadAttention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The call of ``nn.MultiheadAttention``.

        Three things differ. A query that may attend to nothing gets zeros, where PyTorch gives NaN or zeros. The output
        is computed by a fast kernel also where weights are asked for; they are computed beside it. And
        ``is_causal=True`` without an ``attn_mask`` is always an error; PyTorch's inference path ignores it.

        Args:
            query: ``(batch, queries, embed_dim)`` with ``batch_first``, ``(queries, batch, embed_dim)`` without it, or
                ``(queries, embed_dim)``.
            key: in the same layout, kdim wide.
            value: in the same layout, vdim wide.
            key_padding_mask: ``(batch, keys)``, or ``(keys,)`` without a batch; True = may NOT be attended to, or
                numbers that are added to the scores.
            need_weights: whether to return the weights, too.
            attn_mask: ``(queries, keys)`` or ``(batch * num_heads, queries, keys)``; True = may NOT attend, or numbers.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: says that attn_mask is causal, from the first query and key on.

        Returns:
            The output in the layout of query, and the weights ``(batch, queries, keys)`` or ``(batch, num_heads,
            queries, keys)``, or None.

        Raises:
            TypeError: a mask that is neither boolean nor floating point.
            ValueError: shapes that do not fit; is_causal without an attn_mask; nested tensors with masks or weights.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            return self._attend_nested(query, key, value, key_padding_mask, need_weights, attn_mask), None
        self._validate(query, key, value, key_padding_mask, attn_mask)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True says that attn_mask is causal: give the attn_mask, too")
        batched = query.ndim == 3
        tokens_first = batched and not self.batch_first
        q, k, v = (self._split(t, tokens_first) for t in self._project(query, key, value))
        k, v, extra_keys = self._append_keys(k, v)
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        mask: Mask | None
        bias: Tensor | None
        if is_causal and key_padding_mask is None and not need_weights:
            # As in PyTorch: elsewhere attn_mask itself is read.
            mask, bias = masks.causal(offset=0), None
        else:
            mask, bias = read_masks(
                attn_mask, key_padding_mask, num_heads=self.num_heads, extra_keys=extra_keys, dtype=q.dtype
            )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights and dropout:
            # The weights that are returned are those that the values were multiplied with.
            weights = F.dropout(_weights(q, k, mask, bias), dropout)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = attend(q, k, v, mask, bias=bias, dropout=dropout)
            if need_weights:
                weights = (_average_weights if average_attn_weights else _weights)(q, k, mask, bias)
        joined = (heads.permute(2, 0, 1, 3) if tokens_first else heads.transpose(1, 2)).flatten(-2)
        output = F.linear(joined, self.out_proj.weight, self.out_proj.bias)
        if batched:
            return output, weights
        return output[0], None if weights is None else weights[0]

    def _validate(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> None:
        """Refuse tensors that do not fit one another."""
        got = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise ValueError(f"query, key and value must all have 3 axes, or all 2 (no batch); got {got}")
        for name, t, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if t.shape[-1] != width:
                raise ValueError(f"{name} must be {width} wide; got {got}")
        token_axis = 1 if self.batch_first and query.ndim == 3 else 0
        batch = query.shape[1 - token_axis] if query.ndim == 3 else 1
        queries, keys = query.shape[token_axis], key.shape[token_axis]
        if key.shape[:-1] != value.shape[:-1] or (query.ndim == 3 and key.shape[1 - token_axis] != batch):
            order = "(batch, tokens, width)" if self.batch_first else "(tokens, batch, width)"
            raise ValueError(
                f"every key needs one value, and every batch row its keys, in the order {order}; got {got}"
            )
        for name, mask, shapes in (
            ("attn_mask", attn_mask, [(queries, keys), (batch * self.num_heads, queries, keys)]),
            ("key_padding_mask", key_padding_mask, [(batch, keys) if query.ndim == 3 else (keys,)]),
        ):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise TypeError(f"{name} must be boolean, True = may NOT attend, or floating point; got {mask.dtype}")
            if tuple(mask.shape) not in shapes:
                wanted = " or ".join(map(str, shapes))
                raise ValueError(f"{name} must have the shape {wanted}; got {tuple(mask.shape)}, with {got}")

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each embed_dim wide; one product for those that are the same tensor."""
        width = self.embed_dim
        bias = self.in_proj_bias
        if not self._qkv_same_embed_dim:
            projections = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = (F.linear(*args) for args in zip((query, key, value), projections, biases, strict=True))
            return q, k, v
        weight = self.in_proj_weight
        if query is key and key is value:
            q, k, v = F.linear(query, weight, bias).chunk(3, dim=-1)
            return q, k, v
        parts = [width, 2 * width] if key is value else [width] * 3
        weights, biases = torch.split(weight, parts), (None,) * 3 if bias is None else torch.split(bias, parts)
        projected = [F.linear(*args) for args in zip((query, key, value), weights, biases, strict=False)]
        k, v = projected[1].chunk(2, dim=-1) if key is value else projected[1:]
        return projected[0], k, v

    def _split(self, t: Tensor, tokens_first: bool) -> Tensor:
        """(batch, heads, tokens, head_dim) of projected tokens in the layout of the input."""
        t = t.view(*t.shape[:-1], self.num_heads, self.head_dim)
        if t.ndim == 3:
            t = t[None]
        return t.permute(1, 2, 0, 3) if tokens_first else t.transpose(1, 2)

    def _append_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with the learned one of ``add_bias_kv`` and the zeros of ``add_zero_attn``; how many came."""
        batch, heads, _, width = k.shape
        pairs = []
        if self.bias_k is not None and self.bias_v is not None:
            pairs.append([t.view(1, heads, 1, width).to(k.dtype) for t in (self.bias_k, self.bias_v)])
        if self.add_zero_attn:
            pairs.append([k.new_zeros(1, heads, 1, width)] * 2)
        for more_k, more_v in pairs:
            k = torch.cat([k, more_k.expand(batch, -1, -1, -1)], dim=2)
            v = torch.cat([v, more_v.expand(batch, -1, -1, -1)], dim=2)
        return k, v, len(pairs)

    def _attend_nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
    ) -> Tensor:
        """Self-attention of a nested tensor: its texts are packed into one row, and nothing is padded."""
        unsupported = {
            "another key or value than the query": not (query is key and key is value),
            "key_padding_mask": key_padding_mask is not None,
            "attn_mask": attn_mask is not None,
            "need_weights=True": need_weights,
            "batch_first=False": not self.batch_first,
            "add_bias_kv": self.bias_k is not None,
            "add_zero_attn": self.add_zero_attn,
            "kdim or vdim": not self._qkv_same_embed_dim,
        }
        given = [name for name, is_given in unsupported.items() if is_given]
        if given:
            raise ValueError(f"a nested tensor is not supported together with {', '.join(given)}: pad it, with a mask")
        texts = query.unbind()
        lengths = [len(text) for text in texts]
        packed = torch.cat(texts)
        q, k, v = (self._split(t, False) for t in self._project(packed, packed, packed))
        ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        dropout = self.dropout if self.training else 0.0
        heads = attend(q, k, v, masks.documents(ids.to(packed.device)), dropout=dropout)
        output = F.linear(heads[0].transpose(0, 1).flatten(-2), self.out_proj.weight, self.out_proj.bias)
        return torch.nested.as_nested_tensor(list(torch.split(output, lengths)), layout=query.layout)


class RegardTransformerEncoderLayer(Replacement, nn.TransformerEncoderLayer):
    """``nn.TransformerEncoderLayer`` that calls its modules in inference too, where PyTorch has one fused kernel."""

    replaced_class = nn.TransformerEncoderLayer

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The call of ``nn.TransformerEncoderLayer``.

        "Attention Is All You Need", section 3.1, or with ``norm_first`` Xiong et al. 2020, figure 1 (b).

        Args:
            src: ``(batch, tokens, d_model)`` with ``batch_first``, ``(tokens, batch, d_model)`` without it, or
                ``(tokens, d_model)``.
            src_mask: ``attn_mask`` of `RegardMultiheadAttention.forward`.
            src_key_padding_mask: ``key_padding_mask`` of `RegardMultiheadAttention.forward`.
            is_causal: says that src_mask is causal.

        Returns:
            As src.

        Raises:
            TypeError: as the attention does.
            ValueError: as the attention does.
        """
        masks_and_hint = src_mask, src_key_padding_mask, is_causal
        if self.norm_first:
            x = src + self._sa_block(self.norm1(src), *masks_and_hint)
            y: Tensor = x + self._ff_block(self.norm2(x))
            return y
        x = self.norm1(src + self._sa_block(src, *masks_and_hint))
        y = self.norm2(x + self._ff_block(x))
        return y


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    cls.replaced_class: cls for cls in (RegardMultiheadAttention, RegardTransformerEncoderLayer)
}


def replacement_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The class that replaces one of PyTorch's, or a subclass of one that has PyTorch's own forward."""
    if cls not in _CLASSES:
        base = RegardMultiheadAttention if issubclass(cls, nn.MultiheadAttention) else RegardTransformerEncoderLayer
        body = {"replaced_class": cls, "__doc__": base.__doc__, "__module__": __name__}
        _CLASSES[cls] = type(f"Regard{cls.__name__}", (base, cls), body)
    return _CLASSES[cls]


def _empty(cls: type[nn.Module]) -> nn.Module:
    """An object of the class that replaces another one, without its state."""
    replacement = replacement_class(cls)
    return replacement.__new__(replacement)


def _weights(q: Tensor, k: Tensor, mask: Mask | None, bias: Tensor | None) -> Tensor:
    """The attention weights by the definition, (batch, heads, queries, keys)."""
    batch, heads = q.shape[:2]
    added, empty = _added_scores(q, k, mask, bias)
    flat = [None if t is None else t.expand(batch, heads, *t.shape[-2:]).flatten(0, 1) for t in (added, empty)]
    weights = _softmax_weights(q.flatten(0, 1), k.flatten(0, 1), *flat)
    return weights.view(batch, heads, *weights.shape[1:])


def _average_weights(q: Tensor, k: Tensor, mask: Mask | None, bias: Tensor | None) -> Tensor:
    """The mean of the weights over the heads, (batch, queries, keys), with the weights of one head at a time."""
    batch, heads = q.shape[:2]
    added, empty = (None if t is None else t.expand(batch, heads, -1, -1) for t in _added_scores(q, k, mask, bias))
    total = None
    for head in range(heads):
        parts = (None if t is None else t[:, head] for t in (added, empty))
        weights = _softmax_weights(q[:, head], k[:, head], *parts)
        if total is None:
            total = weights / heads
        else:
            total = (
                total.add(weights, alpha=1 / heads) if weights.requires_grad else total.add_(weights, alpha=1 / heads)
            )
    assert total is not None
    return total


def _added_scores(q: Tensor, k: Tensor, mask: Mask | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, -inf where blocked, and the queries that may attend to nothing, with four axes each.

    Either is None where there is no such thing.
    """
    added = bias
    if mask is not None:
        blocked = ~resolve_mask(mask, q, k)
        zeros = q.new_zeros(()) if bias is None else bias
        added = torch.where(blocked, -torch.inf, zeros)
    if added is None:
        return None, None
    added = added.expand(*(1,) * (4 - added.ndim), *added.shape[:-2], q.shape[-2], k.shape[-2])
    empty = (added == -torch.inf).all(-1, keepdim=True)
    return added, None if numbers_are_known() and not bool(empty.any()) else empty


def _softmax_weights(q: Tensor, k: Tensor, added: Tensor | None, empty: Tensor | None) -> Tensor:
    """The weights of ``(batch, queries, d_key)`` and ``(batch, keys, d_key)``."""
    scale, k = q.shape[-1] ** -0.5, k.transpose(-2, -1)
    scores = torch.bmm(q * scale, k) if added is None else torch.baddbmm(added, q, k, alpha=scale)
    if empty is None:
        return torch.softmax(scores, -1)
    # A row of -inf enters as zeros and leaves as zeros, which also keeps NaN out of its gradient.
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
