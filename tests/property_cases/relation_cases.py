"""Attentions that read both ways, or relations of two tokens, and weights that are mixed with what pairs are told."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation, Stream

TOKENS = 4


def of_two(function: Any) -> Invocation:
    """A call of two sequences, under the names that the function gives them."""
    names = list(inspect.signature(function).parameters)
    given = {name: drawn(2, TOKENS, WIDTH, seed=seed) for seed, name in enumerate(names)}
    streams = [Stream(name, role, 0, (1,)) for name, role in zip(names, ("x", "context"), strict=True)]
    return Invocation(function, given, names, streams)


def of_pairs(function: Any) -> Invocation:
    """A call of tokens and of a number, or a vector, for each two of them."""
    name = list(inspect.signature(function).parameters)[1]
    given = {"x": drawn(2, TOKENS, WIDTH, seed=0), name: drawn(2, TOKENS, TOKENS, seed=1).abs()}
    return Invocation(function, given, ["x", name], [Stream("x", "x", 0, (1,))])


def projected(x: Tensor, seed: int) -> Tensor:
    return x @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / WIDTH**0.5  # here


def both_read_x(x: Tensor, context: Tensor) -> Tensor:
    v = projected(x, 5)
    one = scores_of(projected(context, 3), projected(x, 4))
    one = one.softmax(-1) @ v
    other = scores_of(projected(context, 6), projected(x, 7)).softmax(-1) @ v
    return one + other


def each_reads_the_other(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """One matrix of scores, with a softmax over either of its axes."""
    scores = scores_of(projected(x, 3), projected(context, 4))
    of_x = scores.softmax(-1) @ projected(context, 5)
    return of_x, torch.einsum("bij,bid->bjd", scores.softmax(-2), projected(x, 6))


def softmaxes_exchanged(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(projected(x, 3), projected(context, 4))
    by_row, by_column = scores.softmax(-1), scores.softmax(-2)  # here
    of_x = by_column @ projected(context, 5)
    return of_x, torch.einsum("bij,bid->bjd", by_row, projected(x, 6))


def values_of_the_context(x: Tensor, context: Tensor) -> Tensor:
    scores = scores_of(projected(x, 3), projected(x, 4))
    return scores.softmax(-1) @ projected(context, 5)


def values_of_symbols(x: Tensor, symbols: Tensor) -> Tensor:
    return values_of_the_context(x, symbols)


def relations(x: Tensor) -> Tensor:
    """(batch, queries, keys, relations)."""
    several = [scores_of(projected(x, seed), projected(x, seed + 1)).relu() for seed in (20, 22, 24)]
    return torch.stack(several, -1)


def relations_of_other_queries(x: Tensor) -> Tensor:
    weights = scores_of(projected(x, 3), projected(x, 4)).softmax(-1)
    return torch.einsum("bij,bijr->bir", weights, relations(x).roll(1, 1))  # here


def relations_of_query_and_key(x: Tensor) -> Tensor:
    weights = scores_of(projected(x, 3), projected(x, 4)).softmax(-1)
    return torch.einsum("bij,bijr->bir", weights, relations(x))


def bias_after_the_softmax(x: Tensor, attn_mask: Tensor) -> Tensor:
    weights = scores_of(projected(x, 3), projected(x, 4)).softmax(-1)
    return (weights + attn_mask) @ projected(x, 5)  # here


def mixed_with_the_adjacency(x: Tensor, adjacency: Tensor) -> Tensor:
    weights = scores_of(projected(x, 3), projected(x, 4)).softmax(-1)
    neighbors = adjacency / adjacency.sum(-1, keepdim=True)
    return (0.6 * weights + 0.4 * neighbors) @ projected(x, 5)


def of_edges(function: Any) -> Invocation:
    """A call of nodes, and of an edge for each two of them that is added to their keys and values."""
    given = {"x": drawn(2, TOKENS, WIDTH, seed=0), "edges": drawn(2, TOKENS, TOKENS, WIDTH, seed=1)}
    streams = [Stream("x", "x", 0, (1,)), Stream("edges", "context", 0, (2,))]
    return Invocation(function, given, ["x", "edges"], streams, masks=["mask"])


def _with_edges(x: Tensor, edges: Tensor, blocked: Tensor | None) -> Tensor:
    q, k, v = (projected(x, seed) for seed in (3, 4, 5))
    of_edges = projected(edges, 6)
    scores = torch.einsum("bid,bijd->bij", q, k[:, None] + of_edges) / WIDTH**0.5  # here
    if blocked is not None:
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
    return torch.einsum("bij,bijd->bid", scores.softmax(-1), v[:, None] + of_edges)


def hides_rows_of_nodes(x: Tensor, edges: Tensor, mask: Tensor | None = None) -> Tensor:
    return _with_edges(x, edges, None if mask is None else ~mask[:, :, None].expand(-1, -1, x.shape[1]))


def hides_rows_and_columns(x: Tensor, edges: Tensor, mask: Tensor | None = None) -> Tensor:
    """What padding reads is of no use, so that its rows may be hidden too."""
    return _with_edges(x, edges, None if mask is None else ~(mask[:, :, None] & mask[:, None, :]))


AGENTS = drawn(3, WIDTH, seed=30)


def by_agents(x: Tensor, axis: int, heads_mixed: Tensor | None = None) -> Tensor:
    """Three agents read the tokens, and the tokens read the agents; two heads."""
    q, k, v = (split(projected(x, seed)) for seed in (3, 4, 5))
    agents = split(AGENTS[None])
    reading = (agents @ k.mT / 2).softmax(axis)  # here
    of_agents = (q @ agents.mT / 2).softmax(-1)
    if heads_mixed is not None:
        reading, of_agents = (F.conv2d(each, heads_mixed) for each in (reading, of_agents))
    return joined(of_agents @ (reading @ v))


def agents_compete(x: Tensor) -> Tensor:
    return by_agents(x, -2)


def agents_read_tokens(x: Tensor) -> Tensor:
    return by_agents(x, -1)


def agents_with_talking_heads(x: Tensor) -> Tensor:
    return by_agents(x, -1, drawn(2, 2, 1, 1, seed=31))


def attended(x: Tensor, context: Tensor, seed: int) -> Tensor:
    q, k, v = projected(x, seed), projected(context, seed + 1), projected(context, seed + 2)
    return x + scores_of(q, k).softmax(-1) @ v


def each_itself(picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each sequence attend to those of the other."""
    return attended(picture, picture, 1), attended(text, text, 4)


def each_the_other(picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each sequence attend to those of the other."""
    return attended(picture, text, 1), attended(text, picture, 4)


def one_itself(picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Co-attention of a picture and a text."""
    return attended(picture, text, 1), attended(text, text, 4)


def one_unchanged(picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Co-attention of a picture and a text, of which the picture alone is changed."""
    return attended(attended(picture, text, 1), text, 4), text


def one_way(picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Self-attention of the text, and then the picture attends to it."""
    text = attended(text, text, 4)
    return attended(picture, text, 1), text


def with_vectors_of_pairs(function: Any) -> Invocation:
    """A call of tokens and of a vector for each two of them."""
    given = {"x": drawn(2, TOKENS, WIDTH, seed=0), "pairs": drawn(2, TOKENS, TOKENS, 3, seed=1)}
    return Invocation(function, given, ["x", "pairs"], [Stream("x", "x", 0, (1,))])


def biased(x: Tensor, pairs: Tensor, axes: str) -> Tensor:
    bias = torch.einsum(f"bijc,ch->bh{axes}", pairs, drawn(3, 2, seed=6))
    q, k, v = (split(projected(x, seed)) for seed in (3, 4, 5))
    scores = q @ k.mT / q.shape[-1] ** 0.5  # here
    return joined((scores + bias).softmax(-1) @ v)


def bias_of_the_pair_turned(x: Tensor, pairs: Tensor) -> Tensor:
    """Attention with pair bias."""
    return biased(x, pairs, "ji")


def bias_of_the_pair(x: Tensor, pairs: Tensor) -> Tensor:
    """Attention with pair bias."""
    return biased(x, pairs, "ij")


def bias_of_the_ending_node(x: Tensor, pairs: Tensor) -> Tensor:
    """Triangle attention with pair bias, about the ending node."""
    return biased(x, pairs, "ji")


CASES = [
    Case("bias-of-the-pair", bias_of_the_pair_turned, bias_of_the_pair, with_vectors_of_pairs),
    Case("bias-of-the-pair", bias_of_the_pair_turned, bias_of_the_ending_node, with_vectors_of_pairs),
    Case("softmax-over-keys", agents_compete, agents_read_tokens, of_x),
    Case("queries-from-x", both_read_x, each_reads_the_other, of_two, attentions=2),
    Case("softmax-over-keys", softmaxes_exchanged, each_reads_the_other, of_two, attentions=2),
    Case("values-from-the-keys-input", values_of_the_context, values_of_symbols, of_two),
    Case("value-of-one-token", relations_of_other_queries, relations_of_query_and_key, of_x),
    Case("weights-kept", bias_after_the_softmax, mixed_with_the_adjacency, of_pairs),
    Case("mask-argument", hides_rows_of_nodes, hides_rows_and_columns, of_edges),
    Case("keys-of-the-other", each_itself, each_the_other, of_two, attentions=2, has_line=False),
    Case("keys-of-the-other", each_itself, one_unchanged, of_two, attentions=2, has_line=False),
    Case("keys-of-the-other", one_itself, one_way, of_two, attentions=2, has_line=False),
]
