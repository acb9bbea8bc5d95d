"""Calls that run by broadcasting alone, in another layout than the code is meant for, are none."""

from __future__ import annotations

import pytest
import torch
from target_calls import attention, axes, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check.properties.analyze import analyze
from regard.check.target.names import call_meaning

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class InPatches(nn.Module):
    """Feature maps are cut into patches; a norm of channels takes what has no channels as well."""

    def __init__(self, dim: int, patch_size: int = 4) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.scale, self.shift = nn.Parameter(torch.ones(1, dim, 1, 1)), nn.Parameter(torch.zeros(1, dim, 1, 1))
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)

    def forward(self, fmap: Tensor) -> Tensor:
        fmap = (fmap - fmap.mean(1, keepdim=True)) * self.scale + self.shift
        size = self.patch_size
        patches = fmap.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (batch, channels, rows, size, columns, size)
        q, k, v = self.qkv(patches.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)).flatten(2).mT.chunk(3, -1)
        read = attention(q, k, v).mT.unflatten(2, (size, size))
        read = read.unflatten(0, (patches.shape[0], patches.shape[2], patches.shape[4]))
        return read.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def test_maps_are_as_large_as_whole_patches() -> None:
    call = first(InPatches, patch_size=4)
    assert axes(call) == [("x", 0, (2, 3), None)]
    assert call.arguments["fmap"].shape[2:] == (8, 8)
    assert analyze(call).violations == []


class OfNodes(nn.Module):
    """The keys and values of two nodes know the edge between them."""

    def __init__(self, dim: int, edge_dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.of_edges = heads, nn.Linear(dim, 3 * dim), nn.Linear(edge_dim, dim)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        q, k, v = (split(each, self.heads).flatten(0, 1) for each in self.qkv(nodes).chunk(3, -1))
        between = self.of_edges(edges)
        between = between.unflatten(-1, (self.heads, -1)).movedim(-2, 1).flatten(0, 1)
        k, v = (each[:, None] + between for each in (k, v))
        weights = (torch.einsum("bid,bijd->bij", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return joined(torch.einsum("bij,bijd->bid", weights, v).unflatten(0, (-1, self.heads)))


def test_edges_are_a_vector_for_each_two_tokens() -> None:
    call = first(OfNodes, dim=8, edge_dim=6)
    assert call.arguments["nodes"].shape[1] > 1
    assert call.arguments["edges"].shape == (*call.arguments["nodes"].shape[:2], call.arguments["nodes"].shape[1], 6)
    assert analyze(call).violations == []


class OfKeyPlaces(nn.Module):
    """Queries are multiplied by keys and by a vector of each key's place: one query takes any table."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.pos = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor) -> Tensor:
        q, k, v = self.q(query), self.k(key), self.v(value)
        scores = (q @ k.mT + q @ self.pos(pos_emb).mT) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ v


def test_a_table_may_have_one_vector_for_each_key() -> None:
    call = first(OfKeyPlaces)
    assert axes(call) == [("q", 0, (1,), None), ("k", 0, (1,), None), ("v", 0, (1,), None)]
    assert call.arguments["pos_emb"].shape[1] == call.arguments["key"].shape[1] > 1
    assert {each.property for each in analyze(call).designs} == {"given-logits"}


class OfDistances(OfKeyPlaces):
    """The same of vectors of distances, one table for each sample, which are shifted to their keys."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor) -> Tensor:
        q, k, v = self.q(query), self.k(key), self.v(value)
        logits = q @ self.pos(pos_emb).view(len(value), -1, q.shape[-1]).mT
        size, count = logits.shape[1:]
        shifted = nn.functional.pad(logits, (1, 0)).view(-1, count + 1, size)[:, 1:].reshape(-1, size, count)
        scores = (q @ k.mT + shifted[..., : count // 2 + 1]) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ v


def test_each_sample_may_have_a_table_of_distances() -> None:
    call = first(OfDistances)
    assert call.arguments["pos_emb"].shape[:2] == (2, 2 * call.arguments["key"].shape[1] - 1)
    assert {each.property for each in analyze(call).designs} == {"relative-logits"}


class OfMedia(nn.Module):
    """Pictures of several tokens each, all of which are attended to."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, media: Tensor) -> Tensor:
        _, pictures, _, _ = media.shape
        k, v = self.kv(media.flatten(1, 2)).chunk(2, -1)
        return attention(self.q(x), k, v) * pictures**0


def test_what_nothing_tells_of_is_no_vector_for_each_two_tokens() -> None:
    call = first(OfMedia)
    assert call.arguments["media"].shape == (2, 4, 6, 12)
    assert axes(call) == [("x", 0, (1,), None), ("context", 0, (1, 2), None)]


class WithMaskOfKeys(nn.Module):
    """Adds two axes to a mask of (batch, keys); one that has them already would be broadcast over the scores."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        q, k, v = (each.view(batch, tokens, self.heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        hidden = attention_mask.unsqueeze(1).unsqueeze(2) == 0
        read = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ v
        return self.out(read.transpose(1, 2).contiguous().view(batch, tokens, dim))


class ModelWithMaskOfKeys(nn.Module):
    def __init__(self, vocab_size: int, dim: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(WithMaskOfKeys(dim, heads) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + layer(x, attention_mask)
        return x


def test_a_mask_has_the_axes_that_a_module_inside_leaves_to_it() -> None:
    call = first(ModelWithMaskOfKeys, vocab_size=30, dim=16, heads=4)
    assert call.arguments["attention_mask"].shape == call.arguments["input_ids"].shape
    analysis = analyze(call, masks=True)
    assert analysis.violations == []
    assert any(each.property == "mask-form" and each.kind == "holds" for each in analysis.findings)


class WeightsOfSources(nn.Module):
    """A state (batch, width) asks states (tokens, batch, width); several states would meet one key each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_state, self.of_keys = nn.Linear(width, width), nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        both = torch.tanh(self.of_state(hidden).unsqueeze(0) + self.of_keys(encoder_outputs))
        return torch.softmax(self.energy(both).squeeze(2), dim=0).transpose(0, 1)


class WeightsOfNothing(WeightsOfSources):
    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        both = torch.tanh(self.of_state(hidden).unsqueeze(0) + self.of_keys(encoder_outputs))
        return torch.softmax(self.energy(both), dim=-1).squeeze(-1).transpose(0, 1)


def test_weights_that_are_all_one_by_broadcasting_are_of_no_call() -> None:
    call = first(WeightsOfSources, width=16)
    assert axes(call) == [("x", 0, (), None), ("context", 1, (0,), None)]
    assert analyze(call).violations == []
    assert analyze(first(WeightsOfNothing, width=16)).violations


def test_vectors_of_places_are_as_many_as_keys_by_either_name() -> None:
    assert call_meaning("pos_embed") == call_meaning("pos_emb") == "rope"
