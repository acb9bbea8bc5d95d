"""The mask function: what transformers asks of an attention implementation when a model makes its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from regard.attention.mask import Mask, allowed, causal, padding, window
from regard.attention.mask.kinds import Band
from regard.integrations.transformers.model_mask import ModelMask
from regard.integrations.transformers.reading import Frame, dense_mask, read


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | ModelMask | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = False,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **kwargs: Any,
) -> ModelMask | Tensor:
    """The mask of a model call as a `regard.mask.Mask`; no tensor of queries x keys is made.

    The function that transformers has composed is read: causal, windows, chunks, packed documents, blocks of images
    and padding become the masks of the same meaning. One that cannot be read becomes a ``mask.where`` of itself.

    In a graph (`torch.compile`, `torch.export`), where no function can be read, a causal mask, a window and a mask
    that blocks nothing are known by the other arguments; every other mask is a boolean tensor of the graph.

    The arguments are those that transformers passes to every mask function (``transformers.masking_utils.sdpa_mask``).

    Args:
        batch_size: number of batch rows.
        q_length: number of queries.
        kv_length: number of keys, with the room that a static cache holds behind them.
        q_offset: the position of the first query; a static cache counts it in a tensor.
        kv_offset: the position of the first key, which a cache of a window moves on.
        mask_function: (batch row, head, query position, key position) -> may attend.
        attention_mask: ``(batch, tokens)``, True = a real token; or a mask of this function, which is returned.
        local_size: the window or chunk of the layer.
        allow_is_causal_skip: whether the mask function is causal, with the window or chunk of ``local_size``.
        allow_is_bidirectional_skip: whether the mask function is full, with the window of ``local_size``.
        use_vmap: whether the mask function may only be called for one pair.
        device: where the model computes.
        config: the configuration of the model.
        kwargs: what transformers passes to other implementations.

    Returns:
        `ModelMask`, a `regard.mask.Mask` for these sizes; in a graph, perhaps a boolean tensor
        ``(batch, 1, queries, keys)``.

    Raises:
        ValueError: an attention_mask that is neither ``(batch, tokens)`` nor of these sizes.
    """
    if isinstance(attention_mask, ModelMask):
        attention_mask.validate(q_length, kv_length)
        return attention_mask
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(
            f"attention_mask must be (batch, tokens), or (batch, heads, queries, keys); got "
            f"{tuple(attention_mask.shape)}"
        )
    sizes = batch_size, q_length, kv_length, torch.device(device)
    in_graph = torch.compiler.is_compiling()
    if in_graph and attention_mask is None and isinstance(q_offset, int):
        known = _known_in_graph(
            (q_offset - kv_offset, q_length, kv_length),
            local_size,
            allow_is_causal_skip,
            allow_is_bidirectional_skip,
            config,
        )
        if known is not None:
            return ModelMask(known[0], *sizes)
    # The step of a static cache is a tensor outside of a graph too: a compiled model takes it as it takes the cache,
    # and is not compiled anew for each position.
    if in_graph or (isinstance(q_offset, Tensor) and q_length == 1):
        tensor = dense_mask(
            mask_function,
            batch_size,
            (q_length, kv_length),
            (q_offset, kv_offset),
            attention_mask=attention_mask,
            use_vmap=use_vmap,
            device=device,
        )
        return tensor if in_graph else ModelMask(allowed(tensor), *sizes)
    frame = Frame(batch_size, q_length, kv_length, int(q_offset), kv_offset, torch.device(device), use_vmap)
    mask = read(mask_function, frame)
    real = None if attention_mask is None else _padding(attention_mask, mask, frame)
    return ModelMask(mask if real is None else real if mask is None else real & mask, *sizes)


def _known_in_graph(
    place: tuple[int, int, int],
    local_size: int | None,
    is_causal: bool,
    is_full: bool,
    config: Any,
) -> tuple[Mask | None] | None:
    """The mask that the arguments beside the mask function determine, in a tuple; None if they do not.

    Args:
        place: the position of the first query among the keys, the number of queries, the number of keys.
        local_size: the window or chunk.
        is_causal: whether the mask is causal, with that window or chunk.
        is_full: whether the mask blocks nothing but what lies outside of that window.
        config: the configuration of the model.
    """
    first, queries, keys = place
    offset = None if first == keys - queries else first
    if local_size is None:
        return (causal(offset),) if is_causal else (None,) if is_full else None
    # The chunk of a layer comes in the same argument as the window.
    is_window = getattr(config, "sliding_window", None) == local_size
    is_chunk = getattr(config, "attention_chunk_size", None) == local_size
    return (window(local_size, offset=offset),) if is_causal and is_window and not is_chunk else None


def _padding(attention_mask: Tensor, mask: Mask | None, frame: Frame) -> Mask | None:
    """Which keys are real: `padding` if the others stand on the right, None if the mask blocks the others itself."""
    real = attention_mask.to(device=frame.device, dtype=torch.bool)[:, frame.key_start : frame.key_start + frame.keys]
    if real.shape[1] < frame.keys:
        # The room behind the tokens of a static cache.
        real = torch.nn.functional.pad(real, (0, frame.keys - real.shape[1]))
    last = frame.keys
    if isinstance(mask, Band):
        last = min(last, mask.query_offset(frame.queries, frame.keys) + frame.queries + mask.after)
    if bool(real[:, :last].all()):
        return None
    lengths = real.sum(-1)
    if bool((real == (torch.arange(frame.keys, device=frame.device) < lengths[:, None])).all()):
        return padding(lengths)
    return allowed(real[:, None, None, :])
