"""One forward pass of a stack of blocks, kept: what went into each attention, and what came out."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention import MultiHeadAttention, Plan, Steps, plan
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.transformer.stack import Stack

__all__ = ["Layer", "Pass", "forward", "projected"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention of the pass, and what the model called it with."""

    attention: MultiHeadAttention
    input: Float[Tensor, "tokens d_model"]
    output: Float[Tensor, "tokens heads_x_d_value"]
    """What the model computed: the outputs of all heads side by side, before the output projection."""
    context: Float[Tensor, "context_tokens d_context"] | None = None
    mask: Mask | None = None
    cos_sin: tuple[Tensor, Tensor] | None = None
    bias: Tensor | PositionBias | None = None

    def steps(self) -> Steps:
        """The definition in float64, computed anew from the input."""
        return (
            copy.deepcopy(self.attention)
            .double()
            .steps(
                self.input.double(),
                None if self.context is None else self.context.double(),
                self.mask,
                cos_sin=None if self.cos_sin is None else (self.cos_sin[0].double(), self.cos_sin[1].double()),
                bias=None if self.bias is None else copy.deepcopy(self.bias).double(),
            )
        )

    def plan(self, steps: Steps) -> Plan:
        """Which kernel the model's own calculation ran on."""
        attention = self.attention
        q, k, v = (t.to(self.input.dtype) for t in projected(steps))
        return plan(
            q,
            k,
            v,
            self.mask,
            scale=attention.scale,
            bias=self.bias,
            softcap=attention.softcap,
            sinks=attention.sinks,
        )


@dataclass(frozen=True, eq=False)
class Pass:
    """What a model computed for one text."""

    states: list[Float[Tensor, "tokens d_model"]]
    """The token vectors at the input of the first layer, then after each layer."""
    layers: list[Layer]


@torch.no_grad()
def forward(
    stack: Stack,
    ids: Int[Tensor, " tokens"],
    segments: Int[Tensor, " tokens"] | None = None,
    context: Float[Tensor, "context_tokens d_context"] | None = None,
    *,
    cross: bool = False,
) -> Pass:
    """Run a stack as it is, and keep what passes by its attentions.

    The hooks only look: the calculation is the one that the model makes without them, and they are gone afterwards.

    Args:
        stack: an encoder or a decoder.
        ids: what it reads.
        segments: the segment of each token.
        context: an encoder's output, for a decoder with cross-attention.
        cross: whether its cross-attentions are kept instead of its self-attentions.
    """
    kept: dict[nn.Module, dict[str, Any]] = {}
    outputs: dict[nn.Module, Tensor] = {}
    attentions: list[MultiHeadAttention] = [
        block.cross_attention if cross else block.attention  # type: ignore[misc]
        for block in stack.blocks
    ]

    def look(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        kept[module] = {**dict(zip(("input", "context"), arguments, strict=False)), **named}

    def look_at_output(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        outputs[module] = arguments[0]

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.callback(attention.register_forward_pre_hook(look, with_kwargs=True).remove)
            hooks.callback(attention.out_proj.register_forward_pre_hook(look_at_output).remove)
        states = list(stack.hidden_states(ids, segments, context=context))
    layers = []
    for attention in attentions:
        kept[attention].pop("cache", None)  # a pass over a whole text has none
        layers.append(Layer(attention, output=outputs[attention.out_proj], **kept[attention]))
    return Pass(states, layers)


def projected(steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values that a module's steps have kept."""
    return steps.q, steps.k, steps.v  # type: ignore[return-value]
