"""Calls of what is told where its tokens stand in space, or how far apart the nodes of a graph are."""

from __future__ import annotations

import pytest
import torch
from target_calls import axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.documented_shapes import documented_letters

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

# Points in space. -----------------------------------------------------------------------------------------------------


class OfPoints(nn.Module):
    """A weight for each channel, of what a query and a key have not in common and of where both stand."""

    def __init__(self, d_model: int, axis: int = 2) -> None:
        super().__init__()
        self.axis = axis
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.of_place = nn.Linear(3, d_model)
        self.score = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, d_model))

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        place = self.of_place(pos[:, :, None] - pos[:, None])
        weights = self.score(self.q(x)[:, :, None] - self.k(x)[:, None] + place).softmax(self.axis)
        return (weights * (self.v(x)[:, None] + place)).sum(2)


class NamedOtherwise(OfPoints):
    def forward(self, xyz: Tensor, feats: Tensor) -> Tensor:
        return super().forward(feats, xyz)


class OfOneGraph(nn.Module):
    """Graph attention over the edges of one graph, which are handed over beside its nodes."""

    def __init__(self, d_model: int, small: float = 1e-8) -> None:
        super().__init__()
        self.small = small
        self.nodes, self.asks, self.asked = (nn.Linear(d_model, width, bias=False) for width in (d_model, 1, 1))

    def forward(self, data: tuple[Tensor, Tensor]) -> Tensor:
        nodes = data[0]
        edge_index = data[1]
        x = self.nodes(nodes)
        source, target = edge_index[0], edge_index[1]
        scores = nn.functional.leaky_relu(self.asks(x)[source] + self.asked(x)[target], 0.2)
        powers = (scores - scores.max()).exp()
        sums = torch.zeros(len(x), 1, dtype=x.dtype).index_add(0, source, powers)
        weights = powers / (sums[source] + self.small)
        return torch.zeros_like(x).index_add(0, source, weights * x[target])


def test_nodes_and_edges_that_are_read_by_their_places_are_parts_of_one_argument() -> None:
    call = first(OfOneGraph, d_model=8)
    assert call.arguments["nodes"].shape == (5, 8)
    assert call.arguments["edge_index"].shape == (2, 10)
    assert call.packed == {"data": ["nodes", "edge_index"]}


def test_a_small_number_beside_a_sum_of_exponentials_is_no_sink() -> None:
    assert check(OfOneGraph, args={"d_model": 8}).verdict == "different by design"
    assert check(OfOneGraph, args={"d_model": 8, "small": 0.1}).verdict == "undetermined"


class OfTheNearest(OfPoints):
    """Of a few keys."""

    def forward(self, where: Tensor, feats: Tensor) -> Tensor:
        nearest = torch.cdist(where, where).topk(3, largest=False).indices
        samples = torch.arange(len(where))[:, None, None]
        k, v = (each(feats)[samples, nearest] for each in (self.k, self.v))
        place = self.of_place(where[:, :, None] - where[samples, nearest])
        weights = self.score(self.q(feats)[:, :, None] - k + place).softmax(self.axis)
        return (weights * (v + place)).sum(2)


@pytest.mark.parametrize(("target", "name"), [(OfPoints, "pos"), (NamedOtherwise, "xyz"), (OfTheNearest, "where")])
def test_each_token_has_a_place_in_space(target: type[nn.Module], name: str) -> None:
    call = first(target, d_model=8)
    assert call.arguments[name].shape == (2, 5, 3)
    assert axes(call) == [("x", 0, (1,), None)]
    assert not call.guessed
    assert check(target, args={"d_model": 8}).verdict == "different by design"


def test_weights_of_the_nearest_points_sum_to_one_over_these() -> None:
    assert [each.id for each in check(OfTheNearest, args={"d_model": 8, "axis": -1}).causes] == ["softmax-over-keys"]


@pytest.mark.parametrize(
    ("shape", "found"), [("(B, N, 3)", "bt3"), ("(N, L, D)", "btd"), ("(N, B, D)", "tbd"), ("(B, N, H, D)", "btdd")]
)
def test_n_is_the_number_of_tokens_beside_a_number_of_samples(shape: str, found: str) -> None:
    assert documented_letters(f'def f(x):\n    """x {shape}"""', "x") == found


# Nodes of a graph. ----------------------------------------------------------------------------------------------------


class OfNodes(nn.Module):
    """A bias for each distance of two nodes, and what each node has by the number of its edges.

    x (n, d_model), adj (n, n), hops (n, n)
    """

    def __init__(self, d_model: int = 8, heads: int = 2, max_hops: int = 3, *, late: bool = False) -> None:
        super().__init__()
        self.heads, self.max_hops, self.late = heads, max_hops, late
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.of_degree, self.of_hops = nn.Embedding(20, d_model), nn.Embedding(max_hops + 1, heads)

    def forward(self, x: Tensor, adj: Tensor, hops: Tensor) -> Tensor:
        x = x + self.of_degree(adj.sum(1).long().clamp(max=19))
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        bias = self.of_hops(hops.clamp(max=self.max_hops)).movedim(-1, 0)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1) + bias if self.late else (scores + bias).softmax(-1)
        return self.out((weights @ v).transpose(0, 1).flatten(1))


def test_nodes_have_distances_and_edges_that_hide_nothing() -> None:
    call = first(OfNodes)
    assert call.arguments["hops"].shape == (5, 5)
    assert call.arguments["hops"].dtype == torch.long
    assert not call.guessed
    assert not call.masks
    assert check(OfNodes).verdict == "different by design"
    assert [each.id for each in check(OfNodes, args={"late": True}).causes] == ["weights-not-negative"]


class OfNeighbours(nn.Module):
    """Each node reads its neighbours.

    nodes: [n_batch, n_nodes, dim]
    around: [n_batch, n_nodes, K, dim_around]
    """

    def __init__(self, dim: int, dim_around: int, heads: int = 2, axis: int = -1) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim_around, 2 * dim), nn.Linear(dim, dim)

    def forward(self, nodes: Tensor, around: Tensor) -> Tensor:
        q = self.q(nodes).unflatten(-1, (self.heads, -1))
        k, v = (each.unflatten(-1, (self.heads, -1)) for each in self.kv(around).chunk(2, -1))
        weights = (torch.einsum("bnhd,bnkhd->bnhk", q, k) / q.shape[-1] ** 0.5).softmax(self.axis)
        return self.out(torch.einsum("bnhk,bnkhd->bnhd", weights, v).flatten(2))


def test_each_node_has_neighbours_of_its_own() -> None:
    call = first(OfNeighbours, dim=8, dim_around=6)
    assert call.arguments["around"].shape == (*call.arguments["nodes"].shape[:2], 4, 6)
    report = check(OfNeighbours, args={"dim": 8, "dim_around": 6})
    assert report.verdict == "different by design"
    assert any("keys of its own" in each.text for each in report.steps)
    assert check(OfNeighbours, args={"dim": 8, "dim_around": 6, "axis": 1}).verdict == "wrong"


class OfEdges(nn.Module):
    """Of each edge one message, from its source to its target; the weights of those to one node sum to one."""

    def __init__(self, in_channels: int, out_channels: int, heads: int = 2, *, by: int = 1) -> None:
        super().__init__()
        self.heads, self.by = heads, by
        self.project = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.of_source, self.of_target = (nn.Parameter(torch.zeros(heads, out_channels)) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        itself = torch.arange(len(x)).expand(2, -1)
        edges = torch.cat((edge_index, itself), 1)
        made = self.project(x).unflatten(-1, (self.heads, -1))
        weights = self.weights(self.scores(made, *edges), edges[self.by], len(x))
        return self.summed(made[edges[0]] * weights[..., None], edges[1], torch.zeros_like(made)).flatten(1)

    def scores(self, made: Tensor, source: Tensor, target: Tensor) -> Tensor:
        both = (made * self.of_source).sum(-1)[source] + (made * self.of_target).sum(-1)[target]
        return nn.functional.leaky_relu(both, 0.2)

    def weights(self, scores: Tensor, index: Tensor, count: int) -> Tensor:
        exponentials = scores.exp()
        total = torch.zeros(count, self.heads, dtype=scores.dtype).index_add(0, index, exponentials)
        return exponentials / total[index]

    def summed(self, messages: Tensor, target: Tensor, zeros: Tensor) -> Tensor:
        return zeros.index_add(0, target, messages)


class OfProducts(OfEdges):
    """The same of queries and keys, and what is summed is written as a scatter."""

    def scores(self, made: Tensor, source: Tensor, target: Tensor) -> Tensor:
        q, k = made * self.of_target.add(1), made * self.of_source.add(1)
        return (q[target] * k[source]).sum(-1) / made.shape[-1] ** 0.5

    def summed(self, messages: Tensor, target: Tensor, zeros: Tensor) -> Tensor:
        return zeros.scatter_add_(0, target[:, None, None].expand_as(messages), messages)


class OfAGraph(OfEdges):
    """The same, of nodes and edges that are handed over as one argument."""

    def forward(self, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        nodes_in, edge_index = data
        assert edge_index.shape[0] == 2
        return super().forward(nodes_in, edge_index), edge_index


@pytest.mark.parametrize("target", [OfEdges, OfProducts, OfAGraph])
def test_messages_of_edges_are_weighted_sums(target: type[nn.Module]) -> None:
    sizes = {"in_channels": 8, "out_channels": 4}
    call = first(target, **sizes)
    assert call.arguments["edge_index"].shape == (2, 10)
    assert not call.guessed
    assert check(target, args=sizes).verdict in ("right", "different by design")
    report = check(target, args={**sizes, "by": 0})
    assert [each.id for each in report.causes] == ["softmax-over-keys"]


# Numbers of pairs beside attention. -----------------------------------------------------------------------------------


class OfAMolecule(nn.Module):
    """The weights of attention, of how near atoms are, and of the bonds between them, are added, each with a share."""

    def __init__(self, h: int, d_model: int, share: float = 0.3) -> None:
        super().__init__()
        self.h, self.share = h, share
        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, adj_matrix: Tensor, dist_matrix: Tensor, edges_att: Tensor
    ) -> Tensor:
        parts = zip(self.layers, (query, key, value), strict=False)
        q, k, v = (layer(each).unflatten(-1, (self.h, -1)).transpose(1, 2) for layer, each in parts)
        near = (-dist_matrix).softmax(-1).unsqueeze(1).repeat(1, self.h, 1, 1)
        bonds = (adj_matrix / (adj_matrix.sum(-1).unsqueeze(2) + 1e-6)).unsqueeze(1).repeat(1, self.h, 1, 1)
        weights = self.share * ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) + near) + (1 - 2 * self.share) * bonds
        return self.layers[3]((weights @ v).transpose(1, 2).flatten(2))


class OfNamedPairs(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.inner = OfAMolecule(heads, dim)

    def forward(self, x: Tensor, adjacency: Tensor, distances: Tensor) -> Tensor:
        assert adjacency.ndim == distances.ndim == 3
        return self.inner(x, x, x, adjacency, distances, distances)


@pytest.mark.parametrize(
    ("kind", "names"), [(OfAMolecule, ("dist_matrix", "adj_matrix")), (OfNamedPairs, ("distances",))]
)
def test_numbers_of_pairs_beside_tokens_are_above_zero_and_of_one_graph(kind: type, names: tuple[str, ...]) -> None:
    call = first(kind)
    tokens = next(iter(call.streams))
    count = call.tokens_of(tokens)
    assert {call.tokens_of(each) for each in call.streams} == {count}
    for name in names:
        assert call.arguments[name].shape == (2, count, count)
        assert bool((call.arguments[name] > 0).all())
    assert check(kind).verdict == "different by design"
