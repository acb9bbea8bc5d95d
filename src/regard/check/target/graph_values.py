"""What is told of tokens that are points in space, or nodes of a graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.documented_shapes import documented_shape
from regard.check.target.draft import Draft
from regard.check.target.layouts import Layout
from regard.check.target.position_values import Candidate

__all__ = ["NUMBERS_OF_PAIRS", "OF_GRAPHS", "are_of_each_token", "graph_candidates", "neighbours"]

NUMBERS_OF_PAIRS = "pair numbers"
"""The role of a number, whole or not, for each two tokens."""
OF_GRAPHS = ("coordinates", "pairs", "pair vectors", "edge index", NUMBERS_OF_PAIRS)
"""Roles: where a point is, a whole number, or a vector, for each two tokens, and the edges of a graph."""
NEIGHBOURS = 4
"""Of each token."""
EDGES = 2
"""That lead to each node, without one from itself."""
NEAR = 0.1
"""No two nodes are nearer."""
COORDINATES = (3, 2)
"""How many numbers say where a point is, the likeliest first."""


def graph_candidates(role: str, told: str = "", name: str = "") -> Iterator[tuple[str, Candidate]]:
    """What may be given for an argument of such a role.

    Args:
        role: one of `OF_GRAPHS`, or "edges": where no marks are taken, numbers are.
        told: the letters of its axes, as the documentation writes them.
        name: of the argument.
    """
    if role == "coordinates":
        for count in COORDINATES:
            yield f"{count} numbers of each token", partial(_coordinates, count=count)
    elif role == "pairs":
        several = {"of each two": _distances, "of each two of each sample": _distances_of_samples}
        yield from several.items() if len(told) != len("btt") else reversed(several.items())
    elif role == NUMBERS_OF_PAIRS:
        yield "numbers of each two of each sample", _numbers
        yield "numbers of each two", lambda draft: _numbers(draft)[0]
    elif role == "edges":
        yield "links of a ring", _links
    elif role == "pair vectors":
        yield "vectors of each query and key of each sample", partial(_vectors, name=name)
        yield "vectors of each query and key", lambda draft: _vectors(draft, name)[0]
    else:
        yield "edges", _edge_index


def _distances(draft: Draft) -> Tensor:
    """(tokens, tokens)."""
    places = torch.arange(draft.tokens)
    ahead = (places - places[:, None]) % draft.tokens
    return torch.minimum(ahead, ahead.mT)


def _distances_of_samples(draft: Draft) -> Tensor:
    """(batch, tokens, tokens): in each sample the nodes stand in another order."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(draft.tokens, generator=generator) for _ in range(draft.sizes.batch)]
    return torch.stack([_distances(draft)[each][:, each] for each in orders])


def _links(draft: Draft) -> Tensor:
    """(tokens, tokens): 1 for a node itself and for those on both sides of it, as what sums of neighbours multiply."""
    return (_distances(draft) < 2).to(torch.float64)


def _vectors(draft: Draft, name: str) -> Tensor:
    """(batch, tokens, keys, width)."""
    return draft.draw(draft.sizes.batch, draft.tokens, draft.keys, draft.width_of(name) or draft.width)


def _numbers(draft: Draft) -> Tensor:
    """(batch, tokens, keys): above zero, as distances are."""
    return draft.draw(draft.sizes.batch, draft.tokens, draft.keys).abs() + NEAR


def _edge_index(draft: Draft) -> Tensor:
    """(2, edges): sources and targets; each node is the target of as many edges, which lead in one direction."""
    targets = torch.arange(draft.tokens).repeat_interleave(EDGES)
    steps = torch.arange(1, EDGES + 1).repeat(draft.tokens)
    return torch.stack([(targets + steps) % draft.tokens, targets])


def are_of_each_token(target: Any, source: str, name: str) -> bool:
    """Whether each token of another argument has several vectors of its own here, as its neighbours in a graph.

    By the documentation, which writes (batch, nodes, neighbours, width) beside (batch, nodes, width).
    """
    shape = documented_shape(source, name)
    if len(shape) != len("btkd"):
        return False
    call = target.forward if isinstance(target, nn.Module) else target
    others = [documented_shape(source, each) for each in inspect.signature(call).parameters if each != name]
    return any(len(each) == len("btd") and each[:2] == shape[:2] for each in others)


def neighbours(draft: Draft, name: str) -> Tensor:
    """(batch, tokens, neighbours, width)."""
    draft.axes[name] = Layout("byxd")
    return draft.draw(draft.sizes.batch, draft.tokens, NEIGHBOURS, draft.context_width)


def _coordinates(draft: Draft, count: int) -> Tensor:
    """(batch, tokens, count), with these axes in the order of the sequences."""
    sizes = {"b": draft.sizes.batch, "t": draft.tokens, "d": count}
    letters = draft.layout.letters if set(draft.layout.letters) <= set(sizes) else "btd"
    return draft.draw(*(sizes[letter] for letter in letters))
