"""One forward pass of an encoder, kept: what went into each attention, and what came out."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention import MultiHeadAttention, Steps
from regard.transformer import Encoder

__all__ = ["Layer", "Pass", "forward"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention of the pass."""

    attention: MultiHeadAttention
    input: Float[Tensor, "tokens d_model"]
    output: Float[Tensor, "tokens heads_x_d_value"]
    """What the model computed: the outputs of all heads side by side, before the output projection."""

    def steps(self) -> Steps:
        """The definition in float64, computed anew from the input."""
        return copy.deepcopy(self.attention).double().steps(self.input.double())


@dataclass(frozen=True, eq=False)
class Pass:
    """What a model computed for one text."""

    states: list[Float[Tensor, "tokens d_model"]]
    """The token vectors at the input of the first layer, then after each layer."""
    layers: list[Layer]


@torch.no_grad()
def forward(model: Encoder, ids: Int[Tensor, " tokens"], segments: Int[Tensor, " tokens"]) -> Pass:
    """Run the model as it is, and keep what passes by its attentions.

    The hooks only look: the calculation is the one that the model makes without them, and they are gone afterwards.
    """
    inputs: dict[nn.Module, Tensor] = {}
    attentions: list[MultiHeadAttention] = [block.attention for block in model.blocks]  # type: ignore[misc]

    def look(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs[module] = arguments[0]

    with ExitStack() as hooks:
        for attention in attentions:
            for module in (attention, attention.out_proj):
                hooks.callback(module.register_forward_pre_hook(look).remove)
        states = list(model.states(ids, segments))
    return Pass(states, [Layer(each, inputs[each], inputs[each.out_proj]) for each in attentions])
