"""Absolute positions: one vector per position, added to the token vectors before the first layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.positions.scaling import MAX_NUMBER


def sinusoidal(
    tokens: int | Int[Tensor, "*batch tokens"],
    d_model: int,
    *,
    base: float | int = 10_000.0,
    halves: bool = False,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch tokens d_model"]:
    """The sinusoidal positions of the paper, one row per position from 0.

    PE(k, 2i) = sin(k / base^(2i / d_model)), PE(k, 2i + 1) = cos(k / base^(2i / d_model)):
    "Attention Is All You Need", section 3.5. A PAIR of dimensions shares an exponent, so dimension j has
    (j - j mod 2) / d_model. Some tutorials write 2j / d_model with j the dimension itself, which is wrong: half of the
    wavelengths are then longer than any text.

    Args:
        tokens: number of positions; or a tensor of positions.
        d_model: width of the vectors.
        base: the longest wavelength is 2 pi times this many positions.
        halves: all the sines first, then all the cosines, instead of in turn (Marian).
        dtype: of the result; PyTorch's default dtype by default.

    Returns:
        ``(tokens, d_model)``, or the tensor's shape and d_model; computed in float64 and rounded once; every entry
        between -1 and 1.

    Raises:
        ValueError: a negative number of tokens, a width below 1, a base not above 0.
    """
    positions = torch.arange(max(tokens, 0)) if isinstance(tokens, int) else tokens
    if (isinstance(tokens, int) and tokens < 0) or d_model < 1 or not 0 < base <= MAX_NUMBER:
        raise ValueError(
            f"sinusoidal({tokens}, {d_model}, base={base}): tokens >= 0, d_model >= 1, 0 < base <= {MAX_NUMBER:.1e}"
        )
    dimension = torch.arange(d_model, dtype=torch.float64, device=positions.device)
    pair = dimension - dimension % 2
    angle = positions.double()[..., None] / base ** (pair / d_model)
    rows = torch.where(dimension % 2 == 0, angle.sin(), angle.cos()).to(dtype or torch.get_default_dtype())
    return torch.cat([rows[..., 0::2], rows[..., 1::2]], dim=-1) if halves else rows


class Sinusoidal(nn.Module):
    """Adds `sinusoidal` positions to any number of token vectors; nothing is learned."""

    def __init__(self, d_model: int, *, base: float | int = 10_000.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base

    def forward(self, x: Float[Tensor, "*batch tokens d_model"]) -> Float[Tensor, "*batch tokens d_model"]:
        """X + PE: row k of the positions is added to token k."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"positions of width {self.d_model} cannot be added to vectors of shape {tuple(x.shape)}")
        return x + sinusoidal(x.shape[-2], self.d_model, base=self.base, dtype=x.dtype).to(x.device)


class Learned(nn.Module):
    """Adds one learned vector per position (paper, section 3.5, "learned positional embeddings"; BERT, GPT-2).

    Args:
        max_positions: the number of positions with a vector; a longer input is refused.
        d_model: width of the vectors.
    """

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the vectors as `nn.Embedding` does."""
        nn.init.normal_(self.weight)

    def first_vectors(self, tokens: int) -> Float[Tensor, "tokens d_model"]:
        """The vectors of the first positions.

        Raises:
            ValueError: more tokens than positions.
        """
        if tokens > len(self.weight):
            raise ValueError(f"{tokens} tokens, but only {len(self.weight)} learned positions")
        return self.weight[:tokens]

    def embed(self, positions: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens d_model"]:
        """The vectors of any positions.

        Raises:
            ValueError: a position without a vector.
        """
        try:
            return nn.functional.embedding(positions, self.weight)
        except IndexError:
            raise ValueError(
                f"positions {int(positions.min())} to {int(positions.max())}, but only {len(self.weight)} learned ones"
            ) from None

    def forward(self, x: Float[Tensor, "*batch tokens d_model"]) -> Float[Tensor, "*batch tokens d_model"]:
        """X + the vector of each position."""
        if x.shape[-1] != self.weight.shape[-1]:
            raise ValueError(
                f"positions of width {self.weight.shape[-1]} cannot be added to vectors of shape {tuple(x.shape)}"
            )
        return x + self.first_vectors(x.shape[-2])
