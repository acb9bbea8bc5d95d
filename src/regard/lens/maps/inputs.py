"""The inputs of one attention call, which every statistic of its map is computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.validation import validate


@dataclass(frozen=True)
class OutputSample:
    """Rows of the attention output that the model itself computed; a map is verified against them."""

    batch: Int[Tensor, " n"]
    query: Int[Tensor, " n"]
    output: Tensor
    """weights @ v of these rows, or what `transform` makes of it."""
    dropout_factor: Float[Tensor, "n heads keys"] | None = None
    """The factors by which dropout multiplied the weights of these rows."""
    transform: Callable[[Tensor], Tensor] | None = None
    """(n, heads, d_value) -> like `output`; for a layer of which only a later output is known."""


class AttentionInputs:
    """The inputs of one attention call, and a cache of answers that were computed from them.

    Args:
        q: queries ``(batch, heads, queries, d_key)``, kept by reference, as k and v are.
        k: keys ``(batch, kv_heads, keys, d_key)``.
        v: values ``(batch, kv_heads, keys, d_value)``; only `AttentionMap.error` and what says so needs them.
        mask: who may attend, from `regard.mask`.
        scale: as in `regard.attend`, and so are bias, softcap, sinks and dropout.
        bias: see `regard.attend`.
        softcap: see `regard.attend`.
        sinks: see `regard.attend`.
        dropout: the model's dropout on the weights, as information for the reader.
        lse: ``(batch, heads, queries)``, the logarithm of each row's sum of exponentials, without sinks, if the
            model's kernel returned it. Some of its rows are checked before it is used.
        sample: rows of the model's own output, for `AttentionMap.error`.
        kernel: the kernel that computed the attention, as information for the reader.
        ensure_unchanged: called before anything is computed from q, k and v; raises if they were changed.

    Raises:
        TypeError: as `regard.attend` does.
        ValueError: as `regard.attend` does; q does not have four axes.
    """

    max_float64_weights = 2**22
    """Maps of at most this many weights are computed in float64, which takes no noticeable time."""
    scores_at_once = 2**21
    """About how many scores are in memory at once, for statistics that need every weight; 16 times as many on a GPU."""

    def __init__(
        self,
        q: Float[Tensor, "batch heads queries d_key"],
        k: Float[Tensor, "batch kv_heads keys d_key"],
        v: Float[Tensor, "batch kv_heads keys d_value"] | None = None,
        mask: Mask | None = None,
        *,
        scale: float | int | None = None,
        bias: Float[Tensor, "..."] | PositionBias | None = None,
        softcap: float | int | None = None,
        sinks: Float[Tensor, "..."] | None = None,
        dropout: float | int = 0.0,
        lse: Float[Tensor, "batch heads queries"] | None = None,
        sample: OutputSample | None = None,
        kernel: str = "",
        ensure_unchanged: Callable[[], None] | None = None,
    ) -> None:
        options: dict[str, Any] = {"scale": scale, "bias": bias, "softcap": softcap, "sinks": sinks, "dropout": dropout}
        validate(q, k, k if v is None else v, mask, **options)
        if q.ndim != 4:
            raise ValueError(
                f"a map wants q (batch, heads, queries, d_key); got {tuple(q.shape)}: unsqueeze the missing axes"
            )
        if lse is not None and lse.shape != q.shape[:-1]:
            raise ValueError(f"lse must be {tuple(q.shape[:-1])}, one number per row; got {tuple(lse.shape)}")
        self.q, self.k, self.v = q.detach(), k.detach(), None if v is None else v.detach()
        self.mask = mask
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.bias = bias.detach() if isinstance(bias, Tensor) else bias
        self.softcap = softcap
        self.sinks = None if sinks is None else sinks.detach()
        self.dropout = dropout
        self.kernel_lse = None if lse is None else lse.detach()
        self.sample = sample
        self.kernel = kernel
        self._ensure_unchanged = ensure_unchanged
        self.answer_cache: dict[str, Any] = {}
        """Answers that other answers need again: the rows that are empty, the lse, the error."""

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size((*self.q.shape[:3], self.k.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of q and k."""
        return self.q.dtype

    @property
    def device(self) -> torch.device:
        """The device of q and k."""
        return self.q.device

    @property
    def answer_dtype(self) -> torch.dtype:
        """The dtype of the answers: float64 where q is float64, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def score_options(self) -> dict[str, Any]:
        """Scale, bias, softcap and sinks as keyword arguments, for another map with the same ones."""
        return {"scale": self.scale, "bias": self.bias, "softcap": self.softcap, "sinks": self.sinks}

    def zeros(self, *shape: int) -> Tensor:
        """Zeros in the dtype of the answers."""
        return torch.zeros(shape, dtype=self.answer_dtype, device=self.device)

    def ensure_unchanged(self) -> None:
        """Raise if the tensors were changed since the model ran."""
        if self._ensure_unchanged is not None:
            self._ensure_unchanged()

    def finite_v(self, request: str) -> Tensor:
        """The values, for a statistic that needs them.

        Raises:
            ValueError: the map has no values, or they hold NaN or infinity.
        """
        if self.v is None:
            raise ValueError(f"{request} needs the values, and this map has none: AttentionMap(q, k, v, ...)")
        if not bool(self.v.isfinite().all()):
            raise ValueError(f"v holds NaN or infinity, so {request} is not defined")
        return self.v
