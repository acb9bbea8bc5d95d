"""Nodes of a graph that attend to their neighbours."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

NODES = 4


class OfNeighbours(nn.Module):
    """Two layers of attention over a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        hidden = self.hidden((adj > 0) | torch.eye(x.shape[1], dtype=torch.bool)).repeat_interleave(2, 0)
        for each in self.layers:
            x = x + each(x, x, x, attn_mask=hidden, need_weights=False)[0]  # here
        return x

    def hidden(self, edges: Tensor) -> Tensor:
        return ~edges


class OfAllOthers(OfNeighbours):
    def hidden(self, edges: Tensor) -> Tensor:
        return edges


class OfNonNeighbours(OfAllOthers):
    """A node attends to its non-neighbours."""


def of_a_graph(kind: type[nn.Module]) -> Invocation:
    """A call with all edges that there can be."""
    module = kind()
    prepare(module, 1)
    call = of_x(module, masks=("adj",), tokens=NODES)
    adj = torch.ones(2, NODES, NODES, dtype=torch.bool)
    return replace(call, arguments={**call.arguments, "adj": adj}, positional=["x", "adj"])


class OfOthersBesideItself(OfNeighbours):
    """With all edges a node would see none, and itself is hidden from it in any case."""

    def hidden(self, edges: Tensor) -> Tensor:
        return edges | torch.eye(edges.shape[1], dtype=torch.bool)


class OfNeighboursOrAll(OfNeighbours):
    """A node without any neighbour but itself attends to all others."""

    def hidden(self, edges: Tensor) -> Tensor:
        return ~(edges | (edges.sum(-1, keepdim=True) == 1))


def without_edges(kind: type[nn.Module]) -> Invocation:
    """The same with none."""
    call = of_a_graph(kind)
    return replace(call, arguments={**call.arguments, "adj": torch.zeros_like(call.arguments["adj"])})


CASES = [
    Case("mask-argument", OfOthersBesideItself, OfNeighboursOrAll, without_edges, attentions=2),
    Case("mask-argument", OfAllOthers, OfNeighbours, of_a_graph, attentions=2),
    Case("mask-argument", OfAllOthers, OfNonNeighbours, of_a_graph, attentions=2),
]
