"""One forward pass of a stack under `regard.watch`: the attention map of every layer, and the hidden states.

Every number of an explanation's row is computed from a map of the recording. Two things are not in a recording:

- the hidden states, for comparisons with other texts: the stack itself yields them;
- the attention output of any token, for the proof: a recording samples a few rows, so a hook on the output projection
  takes all of them. The hook also sees what happens between the kernel and the projection.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention import MultiHeadAttention, Plan, Steps, plan, steps
from regard.lens.maps.map import AttentionMap
from regard.lens.watch import watch
from regard.transformer.stack import Stack


@dataclass(frozen=True, eq=False)
class LayerActivations:
    """The attention of one layer."""

    attention: MultiHeadAttention
    map: AttentionMap
    output: Float[Tensor, "tokens heads_x_d_value"]
    """The model's own outputs of all heads side by side, before the output projection."""

    def steps(self) -> Steps:
        """The definition in float64, from the queries, keys and values that the model computed."""
        m, (q, k, v) = self.map, self.qkv()
        bias = m.bias[0] if isinstance(m.bias, Tensor) else copy.deepcopy(m.bias)
        return steps(
            q.double(),
            k.double(),
            v.double(),
            m.mask,
            scale=m.scale,
            bias=None if bias is None else bias.double(),
            softcap=m.softcap,
            sinks=None if m.sinks is None else m.sinks.double(),
        )

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, as the model computed them."""
        assert self.map.v is not None
        return self.map.q[0], self.map.k[0], self.map.v[0]

    def plan(self) -> Plan:
        """The kernel that the model's forward pass ran on."""
        m = self.map
        bias = m.bias[0] if isinstance(m.bias, Tensor) else m.bias
        return plan(*self.qkv(), m.mask, scale=m.scale, bias=bias, softcap=m.softcap, sinks=m.sinks)


@dataclass(frozen=True, eq=False)
class ActivationCache:
    """What a model computed for one text."""

    hidden_states: list[Float[Tensor, "tokens d_model"]]
    """At the input of the first layer, then after each layer."""
    layers: list[LayerActivations]


@torch.no_grad()
def run_with_cache(
    stack: Stack,
    ids: Int[Tensor, " tokens"],
    token_type_ids: Int[Tensor, " tokens"] | None = None,
    context: Float[Tensor, "context_tokens d_context"] | None = None,
    *,
    cross: bool = False,
) -> ActivationCache:
    """Run a stack on one text and keep its activations; the model's output keeps its bits.

    Args:
        stack: an encoder or a decoder.
        ids: the token ids.
        token_type_ids: the token type of each token.
        context: an encoder's output, for a decoder with cross-attention.
        cross: whether to keep the cross-attentions instead of the self-attentions.
    """
    attentions: list[MultiHeadAttention] = [
        block.cross_attention if cross else block.attention  # type: ignore[misc]
        for block in stack.blocks
    ]
    outputs: dict[nn.Module, Tensor] = {}

    def keep_output(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        outputs[module] = arguments[0]

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.callback(attention.out_proj.register_forward_pre_hook(keep_output).remove)
        # A list of the attentions and not the stack: somebody may watch the stack already.
        recording = hooks.enter_context(watch(nn.ModuleList(attentions)))
        hidden_states = list(stack.hidden_states(ids, token_type_ids, context=context))
    maps = [m for m in recording.values() if isinstance(m, AttentionMap)]
    layers = [
        LayerActivations(attention, m, outputs[attention.out_proj])
        for attention, m in zip(attentions, maps, strict=True)
    ]
    return ActivationCache(hidden_states, layers)
