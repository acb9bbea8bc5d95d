"""Scaling of rotary positions: lower frequencies, so that a model reads longer texts than those of training.

Rotary positions rotate pair i of the dimensions by theta_i = base^(-2i / d) per token. Beyond the length of training,
slow pairs reach angles that the model has never seen; every scaling slows some pairs down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float

MAX_NUMBER = 2.0**62
"""The largest base, factor or number of positions: beyond int64 PyTorch multiplies no tensor by a whole number."""


def inverse_frequencies(
    base: float | int | Tensor, rotary_dim: int, positions: Float[Tensor, "*batch tokens"]
) -> Float[Tensor, " pairs"]:
    """theta_i = base^(-2i / d), i = 0 ... d/2 - 1: the rotation of each pair per token, in radians.

    RoFormer (Su et al. 2021), section 3.2.2. Each operation is rounded to the dtype of the positions, as in the code
    that checkpoints were trained with: another rounding of a frequency changes the angles of far positions.

    Args:
        base: the wavelength of the slowest pair is nearly 2 pi times this many tokens.
        rotary_dim: d, the number of dimensions that are rotated; even.
        positions: of the tokens; their dtype and device are used.
    """
    return 1.0 / _tokens_per_radian(base, rotary_dim, positions)


def _tokens_per_radian(base: float | int | Tensor, rotary_dim: int, positions: Tensor) -> Tensor:
    exponent = torch.arange(0, rotary_dim, 2, dtype=positions.dtype, device=positions.device) / rotary_dim
    return base**exponent


class Scaling(ABC):
    """A way to stretch rotary positions; `regard.positions.Rotary` takes one as ``scaling``."""

    @property
    def amplitude(self) -> float:
        """The factor of cos and sin."""
        return 1.0

    @abstractmethod
    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """The rotation of each pair per token, in radians.

        Args:
            base: as for `inverse_frequencies`.
            rotary_dim: the number of dimensions that are rotated.
            positions: of the tokens, in the dtype of the computation.
            length: of the full sequence; the last position + 1 by default. Only `DynamicNTK` depends on it.
        """


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions divided by a factor: "Position Interpolation" (Chen et al. 2023), section 2.3.

    Args:
        factor: how many times longer than in training; at least 1.

    Raises:
        ValueError: a factor below 1 or not finite.
    """

    factor: float | int

    def __post_init__(self) -> None:
        _at_least_one(self, "factor")

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """Theta / factor."""
        return inverse_frequencies(base, rotary_dim, positions) / self.factor


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """A base that grows with the sequence: "dynamic NTK" (described in YaRN, Peng et al. 2023, section 3.3).

    base * (factor * length / original - (factor - 1))^(d / (d - 2)), where original is original_max_positions: a
    sequence within the original length does not change. One length, that of the longest sequence of a
    batch, holds for the whole call. Keys that were rotated at a shorter length keep its angles when a cache grows.

    Args:
        factor: how fast the base grows; at least 1.
        original_max_positions: the number of positions of training.

    Raises:
        ValueError: a factor below 1 or not finite; an original_max_positions below 1; on use with 2 dimensions, where
            d / (d - 2) does not exist.
    """

    factor: float | int
    original_max_positions: int

    def __post_init__(self) -> None:
        _at_least_one(self, "factor", "original_max_positions")

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """Theta of the base for this length."""
        if rotary_dim == 2:
            raise ValueError(f"{self} raises the base to d / (d - 2): rotary_dim=2 must be at least 4")
        if length is None:
            longest = positions.amax() + 1 if positions.numel() else positions.new_zeros(())
        else:
            longest = positions.new_full((), length)
        growth = self.factor * longest / self.original_max_positions - (self.factor - 1)
        growth = torch.where(longest > self.original_max_positions, growth, 1.0)
        return inverse_frequencies(base * growth ** (rotary_dim / (rotary_dim - 2)), rotary_dim, positions)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Slow pairs divided by a factor, fast ones kept, a ramp between: Llama 3.1's reference code (Meta 2024).

    A pair whose number of turns in the original length is below low_freq_factor has its frequency divided; above
    high_freq_factor it keeps its frequency. Llama 3.1 has ``Llama3(8, 1, 4, 8192)``.

    Args:
        factor: how many times longer than in training; at least 1.
        low_freq_factor: number of turns up to which the frequency is divided by factor.
        high_freq_factor: number of turns from which the frequency stays.
        original_max_positions: the number of positions of training.

    Raises:
        ValueError: a factor below 1 or not finite; turns not 0 < low < high; an original_max_positions below 1.
    """

    factor: float | int
    low_freq_factor: float | int
    high_freq_factor: float | int
    original_max_positions: int

    def __post_init__(self) -> None:
        _at_least_one(self, "factor", "original_max_positions")
        if not 0 < self.low_freq_factor < self.high_freq_factor <= MAX_NUMBER:
            raise ValueError(
                f"{self}: low_freq_factor={self.low_freq_factor} must be above 0 and below "
                f"high_freq_factor={self.high_freq_factor}, and that at most {MAX_NUMBER:.1e}"
            )

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """(1 - ramp) * theta / factor + ramp * theta."""
        theta = inverse_frequencies(base, rotary_dim, positions)
        turns = self.original_max_positions / (2 * math.pi / theta)
        ramp = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - ramp) * theta / self.factor + ramp * theta


@dataclass(frozen=True)
class YaRN(Scaling):
    """Slow pairs divided by a factor, fast ones kept, and sharper scores: YaRN (Peng et al. 2023), section 3.4.

    gamma ramps over the pairs, from 1 at the last pair that completes beta_fast turns in the original length to 0 at
    the first pair that completes beta_slow ("NTK-by-parts", section 3.2). In the paper the ramp is linear in the number
    of turns; in its authors' code, in all checkpoints and here it is linear in the index of the pair.

    Args:
        factor: how many times longer than in training; at least 1.
        original_max_positions: the number of positions of training.
        beta_fast: number of turns from which the frequency stays.
        beta_slow: number of turns up to which the frequency is divided by factor.
        attention_factor: the factor of cos and sin; 0.1 ln(factor) + 1 by default, so that scores grow by its square.
        mscale: with mscale_all_dim, the attention factor is (0.1 mscale ln(factor) + 1) /
            (0.1 mscale_all_dim ln(factor) + 1), as in DeepSeek-V2.
        mscale_all_dim: see mscale.
        truncate: whether the ramp starts and ends at whole pairs. gpt-oss does not.

    Raises:
        ValueError: a factor below 1 or not finite; an original_max_positions below 1; turns not
            0 < beta_slow <= beta_fast; factors not above 0; one mscale without the other, or both
            beside an attention_factor.
    """

    factor: float | int
    original_max_positions: int
    beta_fast: float | int = 32
    beta_slow: float | int = 1
    attention_factor: float | int | None = None
    mscale: float | int | None = None
    mscale_all_dim: float | int | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _at_least_one(self, "factor", "original_max_positions")
        if not 0 < self.beta_slow <= self.beta_fast <= MAX_NUMBER:
            raise ValueError(
                f"{self}: beta_slow={self.beta_slow} must be above 0 and not above beta_fast={self.beta_fast}, and "
                f"that at most {MAX_NUMBER:.1e}"
            )
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MAX_NUMBER:
                raise ValueError(
                    f"{name}={value} must be above 0 and at most {MAX_NUMBER:.1e}; leave it out for the factor of the "
                    "paper"
                )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError(
                f"mscale={self.mscale} and mscale_all_dim={self.mscale_all_dim} work together: give both or neither"
            )
        if self.attention_factor is not None and self.mscale is not None:
            raise ValueError(
                f"attention_factor={self.attention_factor} and mscale={self.mscale} set the same factor: give one"
            )

    @property
    def amplitude(self) -> float:
        """The attention factor, by which cos and sin are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """(1 - gamma) * theta / factor + gamma * theta."""
        inverse_theta = _tokens_per_radian(base, rotary_dim, positions)
        first, last = self._pair(self.beta_fast, base, rotary_dim), self._pair(self.beta_slow, base, rotary_dim)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        # A ramp of width 0 would divide by zero: it becomes a step.
        width = last - first or 0.001
        pair = torch.arange(rotary_dim // 2, dtype=positions.dtype, device=positions.device)
        gamma = 1 - ((pair - first) / width).clamp(0, 1)
        return (1 - gamma) * (1.0 / (self.factor * inverse_theta)) + gamma * (1.0 / inverse_theta)

    def _pair(self, turns: float | int, base: float | int, rotary_dim: int) -> float:
        """The index, not rounded, of the pair that completes this many turns in the original length."""
        return rotary_dim * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    def _temperature(self, mscale: float | int) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


def _at_least_one(scaling: Scaling, *names: str) -> None:
    for name in names:
        value = getattr(scaling, name)
        if not 1 <= value <= MAX_NUMBER:
            raise ValueError(f"{scaling}: {name}={value} must be a number from 1 to {MAX_NUMBER:.1e}")
