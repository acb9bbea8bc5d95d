"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float

__all__ = ["ACTIVATIONS", "FeedForward"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""gelu is x times the normal distribution function; gelu_tanh its approximation (Hendrycks and Gimpel 2016)."""


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2, the same at every position (paper, section 3.3, equation 2).

    Args:
        d_model: width of the input and of the result.
        d_ff: width in between.
        activation: a key of `ACTIVATIONS`; the paper's is relu, BERT's is gelu.
    """

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "gelu") -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x: Float[Tensor, "*batch tokens d_model"]) -> Float[Tensor, "*batch tokens d_model"]:
        """Each token's vector through the two layers, on its own."""
        result: Tensor = self.down(ACTIVATIONS[self.activation](self.up(x)))
        return result
