"""The checks on the arguments of `attend`, `steps` and `plan`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.bias import PositionBias
from regard.attention.mask.base import POLARITY_HINT, Mask
from regard.attention.mask.geometry import Tile

MAX_FLOAT32 = torch.finfo(torch.float32).max
MAX_INT64 = torch.iinfo(torch.int64).max


def validate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    *,
    scale: float | int | None,
    bias: Tensor | PositionBias | None,
    softcap: float | int | None,
    sinks: Tensor | None,
    dropout: float | int = 0.0,
) -> None:
    """Refuse arguments that do not fit one another.

    Raises:
        TypeError: dtypes that differ or are not floating point; a bare tensor as mask.
        ValueError: shapes or devices that do not fit; a number out of its range. The message names them.
    """
    bias_tensor = None if isinstance(bias, PositionBias) else bias
    for name, t in (("q", q), ("k", k), ("v", v), ("bias", bias_tensor), ("sinks", sinks)):
        if not isinstance(t, Tensor) and (t is not None or name in "qkv"):
            raise TypeError(f"{name} must be a tensor; got {type(t).__name__}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise TypeError(f"q, k and v must share one floating-point dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device; got {q.device}, {k.device}, {v.device}")
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"q, k and v must all be (..., heads, tokens, width), or all (tokens, width); got {shapes}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"q and k must have one width d_key, at least 1; got {shapes}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"every key needs one value; got {shapes}")
    if q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"q, k and v must have the same batch dimensions; got {shapes}")
    if q.ndim > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise ValueError(f"{q.shape[-3]} query heads cannot share {k.shape[-3]} key heads evenly; got {shapes}")
    if isinstance(mask, Tensor):
        raise TypeError(f"a bare {mask.dtype} tensor is not a mask. {POLARITY_HINT}")
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask must be made by regard.mask, or None; got {type(mask).__name__}")
    for name, t in (("bias", bias_tensor), ("sinks", sinks)):
        if t is not None and t.dtype != q.dtype:
            hint = f" A mask is not a bias. {POLARITY_HINT}" if name == "bias" else ""
            raise TypeError(f"{name} joins scores of {q.dtype}; got {t.dtype}.{hint}")
        if t is not None and t.device != q.device:
            raise ValueError(f"q and {name} must be on one device; got {q.device} and {t.device}")
    if bias_tensor is not None:
        _validate_broadcast("bias", bias_tensor, q, k)
    if isinstance(bias, PositionBias):
        _validate_position_bias(bias, q)
    for name, number in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
        if number is not None and not isinstance(number, (int, float)):
            raise TypeError(f"{name} is a number; got {type(number).__name__}")
        if isinstance(number, int) and not -MAX_INT64 <= number <= MAX_INT64:
            raise ValueError(f"{name}={number} is a whole number beyond int64: write it as a float")
    if scale is not None and not -MAX_FLOAT32 <= scale <= MAX_FLOAT32:
        raise ValueError(f"scale={scale} must be finite, and a number of float32")
    if softcap is not None and not 0 < softcap <= MAX_FLOAT32:
        raise ValueError(f"softcap={softcap} must be above 0, and a number of float32")
    if dropout is None or not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout}: a share between 0 and 1")
    if sinks is not None and sinks.shape != q.shape[-3:-2]:
        raise ValueError(f"sinks must hold one score per head, shape {tuple(q.shape[-3:-2])}; got {tuple(sinks.shape)}")
    if mask is not None:
        _validate_mask(mask, q, k)


def _validate_position_bias(bias: PositionBias, q: Tensor) -> None:
    """Compute the bias of one pair, and refuse a result that attention could not use or train."""
    heads = q.shape[-3] if q.ndim > 2 else 1
    if bias.num_heads != heads:
        raise ValueError(f"{bias!r} has {bias.num_heads} heads; q of shape {tuple(q.shape)} does not")
    position = torch.zeros(1, dtype=torch.long, device=q.device)
    value = bias(position, position)
    if value.shape != (heads, 1, 1) or not value.is_floating_point() or value.device != q.device:
        raise ValueError(
            f"{bias!r} must return floating-point numbers (heads={heads}, queries, keys) on {q.device}; for one query "
            f"and one key it returned {value.dtype}, {tuple(value.shape)}, on {value.device}"
        )
    if value.requires_grad and not any(t.requires_grad for t in bias.parameters()):
        raise ValueError(
            f"{bias!r} computes with a tensor that needs a gradient and is no nn.Parameter of it: no gradient would "
            "reach that tensor. Pass bias.dense(queries, keys) as a tensor"
        )


def _validate_mask(mask: Mask, q: Tensor, k: Tensor) -> None:
    """Refuse a mask that is made for other numbers of queries, keys or batch rows."""
    try:
        mask.validate(q.shape[-2], k.shape[-2])
    except ValueError as error:
        raise ValueError(f"{error}; the mask is {mask!r}, for q {tuple(q.shape)}, k {tuple(k.shape)}") from error
    batch = q.shape[-4] if q.ndim > 3 else 1
    if mask.batch_size not in (None, batch):
        raise ValueError(
            f"{mask!r} is for {mask.batch_size} batch rows, but q of shape {tuple(q.shape)} has {batch}, and so has "
            f"k of shape {tuple(k.shape)}"
        )


def resolve_mask(mask: Mask, q: Tensor, k: Tensor, tile: Tile | None = None) -> Bool[Tensor, "..."]:
    """The mask as a tensor that broadcasts to the scores of q and k, or to a tile of the scores."""
    tile = tile or Tile.full(q.shape[-2], k.shape[-2], q.device)
    small = mask.evaluate(tile)
    while small.ndim > q.ndim and small.shape[0] == 1:
        small = small[0]  # padding([n]) has a batch of one, which q may leave out
    _validate_broadcast(mask, small, q, k, tile)
    return small


def _validate_broadcast(name: object, t: Tensor, q: Tensor, k: Tensor, tile: Tile | None = None) -> None:
    scores = (*q.shape[:-1], k.shape[-2])
    if tile is not None:
        scores = (*q.shape[:-2], tile.rows[1] - tile.rows[0], tile.columns[1] - tile.columns[0])
    # `size in (1, expected)` would be False in a graph where both are symbols: `in` asks whether they are one object.
    fits = t.ndim <= len(scores) and all(
        size == 1 or size == expected for size, expected in zip(t.shape[::-1], scores[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"{name} of shape {tuple(t.shape)} does not broadcast to the scores, shape {scores}")
