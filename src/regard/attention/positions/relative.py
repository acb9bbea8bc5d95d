"""Relative positions: biases of the scores that depend on the distance between query and key."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.bias import PositionBias
from regard.attention.positions.scaling import MAX_NUMBER


class ALiBi(PositionBias):
    """-slope * |query position - key position|, one fixed slope per head.

    "Train Short, Test Long" (Press et al. 2022), section 3. The paper is about causal attention, where no key comes
    after its query. Here the bias is symmetric: a key after its query has the bias of its distance.

    The slopes of n heads, n a power of two, are 2^(-8/n), 2^(-16/n), ..., 2^-8. For another n the paper's code takes
    the slopes of the next smaller power of two, then every other slope of twice that power, from the first.

    Nothing is learned or saved. The slopes are computed in float64 and rounded to the module's dtype whenever the dtype
    changes.

    Args:
        num_heads: number of query heads.

    Raises:
        ValueError: no heads.
    """

    slopes: Float[Tensor, " heads"]
    relative = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        _validate_num_heads(num_heads)
        self.num_heads = num_heads
        self._exact = _slopes(num_heads)
        self.register_buffer("slopes", torch.tensor(self._exact), persistent=False)

    def forward(self, query: Int[Tensor, " queries"], key: Int[Tensor, " keys"]) -> Float[Tensor, "heads queries keys"]:
        """The bias of each query position and key position, in the dtype of the slopes.

        Raises:
            ValueError: positions that are not one row of whole numbers.
        """
        # Half precision rounds large distances, so they are float32 there.
        distance = _relative(query, key).abs().to(torch.promote_types(self.slopes.dtype, torch.float32))
        return (-self.slopes[:, None, None] * distance).to(self.slopes.dtype)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"{self.num_heads}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ALiBi:
        # .to(), .half() and .to_empty() call this. A cast would keep the rounding of the old dtype, and no saved number
        # would fill uninitialized memory.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.slopes = torch.tensor(self._exact, dtype=self.slopes.dtype, device=self.slopes.device)
        return self


class T5Relative(PositionBias):
    """One learned number per head and bucket of distances (Raffel et al. 2020, section 2.1).

    Each short distance has its own bucket; longer distances share buckets that grow with the logarithm of the distance,
    and all from max_distance on share the last bucket. T5 learns one such bias per stack and adds it in every layer, to
    scores that are not scaled (scale=1).

    Args:
        num_heads: number of query heads.
        num_buckets: number of buckets; an even number from 4 up, or any from 2 up for one direction.
        max_distance: distances from this one on share a bucket; more than the distances that have their own.
        bidirectional: whether half of the buckets are for keys after the query (encoder). If not, these keys share the
            bucket of distance 0 (decoder, where a causal mask blocks them).

    Raises:
        ValueError: no heads; too few buckets, or a max_distance that is too small to share a bucket.
    """

    relative = True

    def __init__(
        self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        _validate_num_heads(num_heads)
        if num_buckets < 2 or (bidirectional and (num_buckets < 4 or num_buckets % 2)):
            raise ValueError(
                f"num_buckets={num_buckets} must be at least 2, and with bidirectional=True an even number from 4 up"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self._buckets_per_side = num_buckets // 2 if bidirectional else num_buckets
        self._num_exact = self._buckets_per_side // 2
        if not self._num_exact < max_distance <= MAX_NUMBER:
            raise ValueError(
                f"max_distance={max_distance} must be above {self._num_exact}, and at most {MAX_NUMBER:.1e}: "
                f"this many distances have their own bucket with num_buckets={num_buckets}"
            )
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weight as `nn.Embedding` does."""
        nn.init.normal_(self.weight)

    def forward(self, query: Int[Tensor, " queries"], key: Int[Tensor, " keys"]) -> Float[Tensor, "heads queries keys"]:
        """The bias of each query position and key position, in the dtype of the weight.

        Raises:
            ValueError: positions that are not one row of whole numbers.
        """
        bucket = self.bucket(_relative(query, key))
        return self.weight.T.index_select(1, bucket.flatten()).reshape(self.num_heads, *bucket.shape)

    def bucket(self, relative: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The row of the weight for each difference key position - query position."""
        distance = relative.abs() if self.bidirectional else -relative.clamp(max=0)
        # In float32 and in the order of the checkpoints' own code, so that distances at the edge of two buckets are
        # rounded to the same side.
        far = torch.log(distance.clamp(min=self._num_exact).float() / self._num_exact)
        shared = self._buckets_per_side - self._num_exact
        far = self._num_exact + (far / math.log(self.max_distance / self._num_exact) * shared).long()
        bucket = torch.where(distance < self._num_exact, distance, far.clamp(max=self._buckets_per_side - 1))
        return bucket + (relative > 0) * self._buckets_per_side if self.bidirectional else bucket

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def _relative(query: Tensor, key: Tensor) -> Tensor:
    """Key position - query position, ``(queries, keys)``; below 0 where the key comes before the query."""
    for name, positions in (("query", query), ("key", key)):
        if positions.ndim != 1 or positions.is_floating_point() or positions.dtype == torch.bool:
            raise ValueError(
                f"{name} positions must be one row of whole numbers; got shape {tuple(positions.shape)}, "
                f"{positions.dtype}"
            )
    return key - query[:, None]


def _slopes(heads: int) -> list[float]:
    power = 2 ** (heads.bit_length() - 1)  # the largest power of two up to heads
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    odd_slopes = [2.0 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return slopes + odd_slopes[: heads - power]


def _validate_num_heads(num_heads: int) -> None:
    if num_heads < 1:
        raise ValueError(f"num_heads={num_heads} must be at least 1")
