"""The attention function: what the models of transformers call in place of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionMaskInterface
from transformers.utils import output_capturing

from regard.attention.attend import attend
from regard.attention.mask import Mask, allowed, causal, documents, from_flex
from regard.attention.mask.base import Combined
from regard.attention.mask.documents import Documents
from regard.attention.mask.kinds import Band
from regard.integrations.transformers.model_mask import ModelMask

UNSERVED = {
    "block_indices": "the blocks of keys that an indexer selects",
    "cache": "the paged cache of continuous batching",
    "head_mask": "a factor for each head; regard.intervene removes heads",
    "sinks": "one sink per query",
}
"""Arguments that change what an attention computes and that this one does not have."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Mask | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`regard.attend` with the arguments of an attention function of transformers.

    Args:
        module: the model's module, whose ``is_causal`` counts where it has no mask.
        query: ``(batch, heads, queries, d_key)``.
        key: ``(batch, kv_heads, keys, d_key)``.
        value: ``(batch, kv_heads, keys, d_value)``.
        attention_mask: the mask of `attention_mask`. Or one handed to the model, which is taken as it is:
            ``(batch, heads, queries, keys)``, boolean with True = may attend, or floating point, added to the scores;
            or a BlockMask. None blocks nothing, or is causal by ``is_causal``, as with ``sdpa``.
        dropout: see `regard.attend`.
        scaling: what the scores are multiplied by; 1 / sqrt(d_key) by default.
        is_causal: in place of the module's.
        softcap: see `regard.attend`.
        s_aux: the sinks, one score per head ``(heads,)``.
        position_bias: added to the scaled scores; it broadcasts to ``(batch, heads, queries, keys)``.
        indices: ``(batch, queries, count)``: the keys that each query selects, and the only ones that it may see.
        kwargs: what other implementations take. Those that change the result are refused.

    Returns:
        The output ``(batch, queries, heads, d_value)``, and None in place of weights.

    Raises:
        ValueError: the model asks for weights, for something that is not served, or has a mask of other sizes; no mask
            function is registered for its implementation.
    """
    _refuse_unserved(module, kwargs)
    mask, bias = _mask_and_bias(module, query, key, attention_mask, is_causal)
    if indices is not None:
        mask = _joined(mask, _selected(indices, key.shape[2]))
    if kwargs.get("cu_seq_lens_q") is not None and not _has_documents(mask):
        mask = _joined(_flash_documents(kwargs["cu_seq_lens_q"], kwargs.get("cu_seq_lens_k"), query, key), mask)
    if isinstance(mask, Band):
        mask, key, value = _without_room(mask, query, key, value)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    # Models pass the default scale too; without it `attend` sees sooner that a call is a plain one.
    is_default = scaling is None or scaling == query.shape[-1] ** -0.5
    output = attend(
        query,
        key,
        value,
        mask,
        scale=None if is_default else scaling,
        bias=None if bias is None else bias.to(query.dtype),
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.to(query.dtype),
        dropout=dropout,
    )
    return output.transpose(1, 2).contiguous(), None


def _refuse_unserved(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, meaning in UNSERVED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f'{type(module).__name__} passes {name} ({meaning}), which attn_implementation="regard" does not '
                'serve. Load the model with attn_implementation="eager"'
            )
    if kwargs.get("output_attentions") or _captures_weights():
        raise ValueError(
            'output_attentions=True: attn_implementation="regard" makes no matrix of weights. Record the call: '
            "`with regard.watch(model) as recording: model(...)`, then recording[path].dense() are the weights of one "
            'attention; or load the model with attn_implementation="eager"'
        )


def _captures_weights() -> bool:
    """Whether a model of transformers is collecting attention weights from the modules it runs."""
    if torch.compiler.is_compiling():
        return False  # the graph has no context variable
    collector = getattr(output_capturing, "_active_collector", None)
    collected = collector.get() if collector is not None else None
    return any(name.endswith("attentions") for name in collected or ())


def _mask_and_bias(
    module: nn.Module, query: Tensor, key: Tensor, given: Tensor | Mask | BlockMask | None, is_causal: bool | None
) -> tuple[Mask | None, Tensor | None]:
    """What the mask of a model blocks, and what it adds to the scores."""
    queries, keys = query.shape[2], key.shape[2]
    if given is None:
        _require_mask_function(module)
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # As with sdpa, the first query is then the first position.
        return causal(None if queries == keys else 0) if is_causal and queries > 1 else None, None
    if isinstance(given, ModelMask):
        given.validate(queries, keys)
        return given.mask, None
    if isinstance(given, Mask):
        return given, None
    if isinstance(given, BlockMask):
        return from_flex(given), None
    if given.ndim != 4 or not (given.dtype == torch.bool or given.is_floating_point()):
        raise ValueError(
            f"{type(module).__name__} has a mask {given.dtype} {tuple(given.shape)}; a mask is "
            "(batch, heads, queries, keys), boolean with True = may attend, or floating point and added to the scores"
        )
    given = given[..., :keys]  # a mask may be made for the whole room of a static cache
    return (allowed(given), None) if given.dtype == torch.bool else (None, given)


def _require_mask_function(module: nn.Module) -> None:
    """Refuse a model whose implementation has this attention and no mask function: transformers gives it no mask.

    See huggingface/transformers#45811: such a decoder sees the tokens that it is to predict.
    """
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if name is not None and name not in AttentionMaskInterface._global_mapping:
        raise ValueError(
            f"{type(module).__name__} has no mask: no mask function is registered for attn_implementation={name!r}, so "
            "transformers makes none and a decoder would see later tokens. Register it beside the attention: "
            f"AttentionMaskInterface.register({name!r}, regard.integrations.transformers.attention_mask)"
        )


def _selected(indices: Tensor, keys: int) -> Mask:
    """The mask of the keys that each query selects."""
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    return allowed(chosen.scatter(-1, indices.long(), True)[:, None])


def _joined(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a & b


def _has_documents(mask: Mask | None) -> bool:
    if isinstance(mask, Combined):
        return _has_documents(mask.left) or _has_documents(mask.right)
    return isinstance(mask, Documents)


def _flash_documents(starts: Tensor, key_starts: Tensor | None, query: Tensor, key: Tensor) -> Mask:
    """The packed documents of the arguments of flash attention: where each begins, and the end of the last."""
    queries, keys = (
        torch.searchsorted(at, torch.arange(t.shape[2], device=t.device, dtype=at.dtype), right=True)
        for at, t in ((starts, query), (starts if key_starts is None else key_starts, key))
    )
    return documents(queries, queries if key_starts is None else keys)


def _without_room(mask: Band, query: Tensor, key: Tensor, value: Tensor) -> tuple[Mask | None, Tensor, Tensor]:
    """The mask, keys and values without the keys behind the last one that a query may see: a static cache has such."""
    queries, keys = query.shape[2], key.shape[2]
    last = mask.query_offset(queries, keys) + queries + mask.after
    if mask.offset is None or not 0 < last < keys:
        return mask, key, value
    offset = None if mask.offset == last - queries else mask.offset
    return replace(mask, offset=offset), key[:, :, :last], value[:, :, :last]
