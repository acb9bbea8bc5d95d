"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""gelu is x times the normal distribution function, gelu_tanh its approximation (Hendrycks and Gimpel 2016); silu, also
called swish, is x times the logistic function."""


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2, the same at every position (paper, section 3.3, equation 2).

    Gated, it is (activation(x W) * (x V)) W_2 ("GLU Variants Improve Transformer", Shazeer 2020, section 2; Llama,
    Gemma, T5 1.1); W and V are packed into one projection, W's rows first.

    Args:
        d_model: width of the input and of the result.
        d_ff: width of the hidden layer.
        activation: a key of `ACTIVATIONS`; the paper's is relu, BERT's is gelu.
        gated: whether the network is gated.
        bias: whether both layers have a bias.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: str = "gelu", gated: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 2 * d_ff if gated else d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.gated = gated

    def forward(self, x: Float[Tensor, "*batch tokens d_model"]) -> Float[Tensor, "*batch tokens d_model"]:
        """The two layers, applied to each token's vector."""
        activation = ACTIVATIONS[self.activation]
        hidden = self.up(x)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = activation(gate) * value
        else:
            hidden = activation(hidden)
        result: Tensor = self.down(hidden)
        return result
