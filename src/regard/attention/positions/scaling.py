"""Rotary positions stretched: how the frequencies change so that a model reads further than it was trained to.

Rotary positions turn pair i of the dimensions by theta_i = base^(-2i / d) a token. Beyond the length of training the
slow pairs reach angles that the model never met; every form here slows some of them down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float

__all__ = ["DynamicNTK", "Linear", "Llama3", "Scaling", "YaRN", "inverse_frequencies"]


def inverse_frequencies(
    base: float | int | Tensor, rotary_dim: int, positions: Float[Tensor, "*batch tokens"]
) -> Float[Tensor, " pairs"]:
    """theta_i = base^(-2i / d), i = 0 ... d/2 - 1: what one token turns each pair by, in radians.

    RoFormer (Su et al. 2021), section 3.2.2. Each operation is rounded to the dtype of the positions, as in the code
    that checkpoints were trained with: a frequency that is off by one rounding is off by a whole angle far away.

    Args:
        base: 2 pi times this many tokens is the wavelength that the slowest pair comes near.
        rotary_dim: d, the number of dimensions that turn; even.
        positions: where the tokens stand, for its dtype and device.
    """
    return 1.0 / _tokens_per_radian(base, rotary_dim, positions)


def _tokens_per_radian(base: float | int | Tensor, rotary_dim: int, positions: Tensor) -> Tensor:
    exponent = torch.arange(0, rotary_dim, 2, dtype=positions.dtype, device=positions.device) / rotary_dim
    return base**exponent


class Scaling(ABC):
    """A way to stretch rotary positions; `regard.positions.Rotary` takes one as ``scaling``."""

    @property
    def amplitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    @abstractmethod
    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """What one token turns each pair by, in radians.

        Args:
            base: as for `inverse_frequencies`.
            rotary_dim: number of dimensions that turn.
            positions: where the tokens stand, in the dtype to calculate in.
            length: of the whole sequence; the last position + 1 by default. Only `DynamicNTK` depends on it.
        """


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions divided by a factor: "Position Interpolation" (Chen et al. 2023), section 2.3.

    Args:
        factor: how many times further; at least 1.

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
        """Theta of the base that this length asks for."""
        if rotary_dim == 2:
            raise ValueError(f"{self} raises the base to d / (d - 2): rotary_dim=2 must be at least 4")
        if length is None:
            reached = positions.amax() + 1 if positions.numel() else positions.new_zeros(())
        else:
            reached = positions.new_full((), length)
        growth = self.factor * reached / self.original_max_positions - (self.factor - 1)
        growth = torch.where(reached > self.original_max_positions, growth, 1.0)
        return inverse_frequencies(base * growth ** (rotary_dim / (rotary_dim - 2)), rotary_dim, positions)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Slow pairs divided by a factor, fast ones kept, a ramp between: Llama 3.1's reference code (Meta 2024).

    A pair is judged by how many turns it completes in the original length: below low_freq_factor its frequency is
    divided, above high_freq_factor it is kept. Llama 3.1 has ``Llama3(8, 1, 4, 8192)``.

    Args:
        factor: how many times further; at least 1.
        low_freq_factor: turns up to which a pair is divided by the whole factor.
        high_freq_factor: turns from which a pair is kept.
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
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ValueError(
                f"{self}: low_freq_factor={self.low_freq_factor} must be above 0 and below "
                f"high_freq_factor={self.high_freq_factor}"
            )

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """(1 - kept) * theta / factor + kept * theta."""
        theta = inverse_frequencies(base, rotary_dim, positions)
        turns = self.original_max_positions / (2 * math.pi / theta)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - kept) * theta / self.factor + kept * theta


@dataclass(frozen=True)
class YaRN(Scaling):
    """Slow pairs divided by a factor, fast ones kept, and sharper scores: YaRN (Peng et al. 2023), section 3.4.

    gamma ramps over the pairs, from 1 at the last that completes beta_fast turns in the original length to 0 at the
    first that completes beta_slow ("NTK-by-parts", section 3.2). Where the paper ramps evenly over the number of
    turns, its authors' code and all checkpoints ramp evenly over the pair's index; so does this.

    Args:
        factor: how many times further; at least 1.
        original_max_positions: the number of positions of training.
        beta_fast: turns from which a pair is kept.
        beta_slow: turns up to which a pair is divided by the whole factor.
        attention_factor: what cos and sin are multiplied by; 0.1 ln(factor) + 1 by default, so that scores grow by
            the square of it.
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
        if not 0 < self.beta_slow <= self.beta_fast < math.inf:
            raise ValueError(
                f"{self}: beta_slow={self.beta_slow} must be above 0 and not above beta_fast={self.beta_fast}"
            )
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be above 0; leave it out for the paper's")
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError(
                f"mscale={self.mscale} and mscale_all_dim={self.mscale_all_dim} work together: give both or neither"
            )
        if self.attention_factor is not None and self.mscale is not None:
            raise ValueError(
                f"attention_factor={self.attention_factor} leaves nothing for mscale={self.mscale} to say: give one"
            )

    @property
    def amplitude(self) -> float:
        """The attention factor: what cos and sin are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def frequencies(
        self, base: float | int, rotary_dim: int, positions: Float[Tensor, "*batch tokens"], length: int | None = None
    ) -> Float[Tensor, " pairs"]:
        """(1 - gamma) * theta / factor + gamma * theta."""
        slowness = _tokens_per_radian(base, rotary_dim, positions)
        first, last = self._pair(self.beta_fast, base, rotary_dim), self._pair(self.beta_slow, base, rotary_dim)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        # A ramp of no width would divide by zero: it becomes a step.
        width = last - first or 0.001
        pair = torch.arange(rotary_dim // 2, dtype=positions.dtype, device=positions.device)
        gamma = 1 - ((pair - first) / width).clamp(0, 1)
        return (1 - gamma) * (1.0 / (self.factor * slowness)) + gamma * (1.0 / slowness)

    def _pair(self, turns: float | int, base: float | int, rotary_dim: int) -> float:
        """Which pair, not rounded, completes so many turns in the original length: theta solved for i."""
        return rotary_dim * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    def _temperature(self, mscale: float | int) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


def _at_least_one(scaling: Scaling, *names: str) -> None:
    for name in names:
        value = getattr(scaling, name)
        if not 1 <= value < math.inf:
            raise ValueError(f"{scaling}: {name}={value} must be a number from 1 up")
