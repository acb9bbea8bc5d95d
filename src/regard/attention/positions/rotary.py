"""Rotary positions: queries and keys are rotated by an angle that is proportional to their position.

The score of a rotated query and a rotated key depends on their distance only: a rotation by m and one by n differ by a
rotation by m - n.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.positions.scaling import MAX_NUMBER, Scaling, inverse_frequencies


class Rotary(nn.Module):
    """Rotates each pair of a head's dimensions by position * theta_i, theta_i = base^(-2i / d).

    RoFormer (Su et al. 2021), section 3.4.2, equation 34:

        (a, b) -> (a cos - b sin, b cos + a sin)

    For half precision x, angles, cos, sin and the rotation are float32: in bfloat16, neighbours beyond position 256
    would share an angle. Checkpoints were trained with float32, so only float64 x has float64 angles. The result is
    rounded to the dtype of x once.

    Nothing is learned, stored or saved: each call computes the frequencies, a few hundred numbers on the device of x,
    so that no change of dtype or device can round or lose them. To rotate several tensors by the same positions,
    compute `cos_sin` once and `rotate` each tensor.

    Args:
        width: of a head's queries and keys, d_key.
        base: the wavelength of the slowest pair is nearly 2 pi times this many tokens; above 1.
        scaling: `Linear`, `DynamicNTK`, `Llama3` or `YaRN`, for sequences longer than those of training.
        rotary_dim: how many of the first dimensions are rotated, an even number; the others stay (GPT-NeoX, Phi). All
            by default.
        interleaved: whether dimensions 2i and 2i + 1 are a pair, as in the paper (GPT-J, Cohere). By default i and
            i + rotary_dim / 2 are a pair (Llama, GPT-NeoX). A checkpoint works only with the pairs of its training.

    Raises:
        ValueError: a number of dimensions that is odd, below 2 or above the width; a base not above 1.
        TypeError: a scaling of another class.
    """

    def __init__(
        self,
        width: int,
        *,
        base: float | int = 10_000.0,
        scaling: Scaling | None = None,
        rotary_dim: int | None = None,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        if rotary_dim is None and width % 2:
            raise ValueError(
                f"width={width} is odd and dimensions are rotated in pairs: give rotary_dim={width - 1} or fewer"
            )
        rotary_dim = width if rotary_dim is None else rotary_dim
        if rotary_dim % 2 or not 2 <= rotary_dim <= width:
            raise ValueError(f"rotary_dim={rotary_dim} must be an even number from 2 to width={width}")
        if not 1 < base <= MAX_NUMBER:
            raise ValueError(f"base={base} must be a number above 1 and at most {MAX_NUMBER:.1e}")
        if scaling is not None and not isinstance(scaling, Scaling):
            raise TypeError(
                f"scaling must be a Linear, DynamicNTK, Llama3 or YaRN of regard.positions; got {scaling!r}"
            )
        self.width = width
        self.base = base
        self.scaling = scaling
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        # A scaling that cannot work with this many dimensions says so here, not in the first call. On the CPU, since on
        # the meta device, where models are loaded, PyTorch imports its compiler for this.
        self.cos_sin(torch.zeros(1, dtype=torch.int64, device="cpu"))

    def forward(
        self,
        x: Float[Tensor, "*batch_heads tokens width"],
        positions: Int[Tensor, "*batch tokens"] | None = None,
        *,
        length: int | None = None,
    ) -> Float[Tensor, "*batch_heads tokens width"]:
        """Queries or keys, rotated.

        Args:
            x: ``(batch, heads, tokens, width)``, or without the batch, or without heads as well.
            positions: the position of each token, ``(tokens,)`` for all sequences or ``(batch, tokens)`` for each one,
                the same for every head. 0, 1, 2, ... by default.
            length: of the full sequence, if x is only a part of it and the scaling is `DynamicNTK`; the last
                position + 1 by default. No other scaling depends on it.

        Returns:
            Shape and dtype of x.

        Raises:
            TypeError: x that is not floating point, or positions that are not integers.
            ValueError: shapes that do not fit.
        """
        self._validate(x)
        if positions is None:
            length = x.shape[-2] if length is None else length
            positions = torch.arange(x.shape[-2], device=x.device)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return self.rotate(x, *self.cos_sin(positions, length=length, dtype=dtype))

    def cos_sin(
        self,
        positions: Int[Tensor, "*batch tokens"],
        *,
        length: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Float[Tensor, "*batch tokens pairs"], Float[Tensor, "*batch tokens pairs"]]:
        """Cos and sin of every position and pair, for `rotate`.

        Args:
            positions: as in a call of the module.
            length: as in a call of the module.
            dtype: of the computation; float32, or float64 for float64 tensors.
        """
        if positions.is_floating_point() or positions.dtype == torch.bool:
            raise TypeError(f"positions are whole numbers; got {positions.dtype}")
        positions = positions.to(dtype)
        if self.scaling is None:
            angle = positions[..., None] * inverse_frequencies(self.base, self.rotary_dim, positions)
            return angle.cos(), angle.sin()
        angle = positions[..., None] * self.scaling.frequencies(self.base, self.rotary_dim, positions, length)
        return angle.cos() * self.scaling.amplitude, angle.sin() * self.scaling.amplitude

    def rotate(
        self,
        x: Float[Tensor, "*batch_heads tokens width"],
        cos: Float[Tensor, "*batch tokens pairs"],
        sin: Float[Tensor, "*batch tokens pairs"],
    ) -> Float[Tensor, "*batch_heads tokens width"]:
        """Queries or keys, rotated by the angles of `cos_sin`; see the call of the module."""
        self._validate(x)
        shape, batch = cos.shape[:-1], cos.shape[:-2]
        batch_fits = len(batch) == x.ndim - 3 and all(size in (1, n) for size, n in zip(batch, x.shape, strict=False))
        if shape[-1:] != x.shape[-2:-1] or (batch and not batch_fits):
            raise ValueError(
                f"positions of shape {tuple(shape)} do not fit x of shape {tuple(x.shape)}: (tokens,), or (batch, "
                f"tokens) with x (batch, heads, tokens, width)"
            )
        if batch:
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # the same for every head

        pairs = self.rotary_dim // 2
        sizes, pair_axis = ((pairs, 2), -1) if self.interleaved else ((2, pairs), -2)
        a, b = torch.unflatten(x[..., : self.rotary_dim], -1, sizes).unbind(pair_axis)
        rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=pair_axis).flatten(-2).to(x.dtype)
        return rotated if self.rotary_dim == self.width else torch.cat([rotated, x[..., self.rotary_dim :]], dim=-1)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return (
            f"{self.width}, base={self.base}, scaling={self.scaling}, rotary_dim={self.rotary_dim}, "
            f"interleaved={self.interleaved}"
        )

    def _validate(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise TypeError(f"queries and keys are floating point; got {x.dtype}")
        if x.ndim < 2 or x.shape[-1] != self.width:
            raise ValueError(f"x must be (..., tokens, width={self.width}); got {tuple(x.shape)}")
