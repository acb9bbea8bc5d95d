"""Additive attention, and weights without values: found, named, and judged for what they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, of_q_k_v, of_x
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

VECTOR = drawn(4, seed=5)


def of_sequences(function: Callable[..., Tensor]) -> Invocation:
    """Of queries, keys and values without heads, with another number of keys than of queries."""
    streams = [Stream(name, name, 0, (1,)) for name in "qkv"]
    sizes = {"q": 3, "k": 5, "v": 5}
    arguments = {name: drawn(2, size, 4, seed=seed) for seed, (name, size) in enumerate(sizes.items())}
    return Invocation(function, arguments, ["q", "k", "v"], streams)


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q[:, :, None] + k[:, None]) @ VECTOR


def designs(analysis: Analysis) -> list[str]:
    return [each.property for each in analysis.designs]


def test_additive_scores_are_a_design() -> None:
    analysis = analyze(of_sequences(lambda q, k, v: added(q, k, v).softmax(-1) @ v))
    assert analysis.complete
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"])


def pairs_on_one_axis(q: Tensor, k: Tensor, repeat_keys: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Each query stands once for each key, and each key once for each query, as in a list of all edges of a graph."""
    queries, keys = q.shape[1], k.shape[1]
    pairs = q.repeat_interleave(keys, dim=1) + repeat_keys(k, queries)
    return (torch.tanh(pairs) @ VECTOR).view(-1, queries, keys)


@pytest.mark.parametrize(
    "repeat_keys",
    [
        lambda k, times: k.repeat(1, times, 1),
        lambda k, times: k[:, None].expand(-1, times, -1, -1).reshape(len(k), -1, k.shape[-1]),
    ],
    ids=["repeat", "expand"],
)
def test_queries_and_keys_may_be_repeated_and_added_on_one_axis(repeat_keys: Callable[[Tensor, int], Tensor]) -> None:
    analysis = analyze(of_sequences(lambda q, k, v: pairs_on_one_axis(q, k, repeat_keys).softmax(-1) @ v))
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"])
    analysis = analyze(of_sequences(lambda q, k, v: pairs_on_one_axis(q, k, repeat_keys).softmax(-2) @ v))
    assert [each.property for each in analysis.violations] == ["softmax-over-keys"]


@pytest.mark.parametrize(
    ("attend", "property"),
    [
        (lambda q, k, v: added(q, k, v).softmax(-2) @ v, "softmax-over-keys"),
        (lambda q, k, v: added(q, k, v).softmax(-1) @ v.flip(1), "value-of-the-key"),
        (lambda q, k, v: added(q, k.flip(0), v).softmax(-1) @ v, "samples-apart"),
    ],
)
def test_mistakes_of_additive_attention_are_seen(attend: Callable[..., Tensor], property: str) -> None:
    violations = analyze(of_sequences(attend)).violations
    assert property in [each.property for each in violations]


class OfAState(nn.Module):
    """One vector of each sample asks the states of an encoder (Bahdanau et al. 2015)."""

    axis = 1

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.of_state, self.of_keys = nn.Linear(hidden_dim, hidden_dim), nn.Linear(hidden_dim, hidden_dim)
        self.vector = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        pairs = self.of_state(hidden)[:, None] + self.of_keys(encoder_outputs)
        weights = self.vector(pairs.tanh()).squeeze(2).softmax(self.axis)
        return torch.bmm(weights[:, None], encoder_outputs).squeeze(1)


class OfSamples(OfAState):
    axis = 0


def test_a_state_without_a_token_axis_asks_a_sequence() -> None:
    call = next(invocations(OfAState, args={}))
    assert [(each.batch_axis, each.token_axes) for each in call.streams] == [(0, ()), (0, (1,))]
    analysis = analyze(call, masks=True)
    assert analysis.complete
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"])


class OfAnnotations(OfAState):
    """The annotations are (tokens, batch, width), as in the paper, and padded."""

    def forward(self, state: Tensor, annotations: Tensor, lengths: Tensor) -> Tensor:
        scores = self.vector((self.of_state(state) + self.of_keys(annotations)).tanh()).squeeze(2).mT
        hidden = torch.arange(len(annotations)) >= lengths[:, None]
        return torch.bmm(scores.masked_fill(hidden, -torch.inf).softmax(1)[:, None], annotations.transpose(0, 1))


def test_a_state_asks_a_sequence_whose_tokens_come_first() -> None:
    call = next(invocations(OfAnnotations, args={}))
    assert [(each.role, each.batch_axis, each.token_axes) for each in call.streams] == [
        ("x", 0, ()),
        ("context", 1, (0,)),
    ]
    assert (analyze(call).violations, designs(analyze(call))) == ([], ["additive-scores"])


class OfOneQuery(OfAState):
    """The query is (batch, 1, width): it meets every key."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(self.vector(self.pairs(query, keys)).mT.softmax(2), keys)

    def pairs(self, query: Tensor, keys: Tensor) -> Tensor:
        return (self.of_state(query) + self.of_keys(keys)).tanh()


class OfNoQuery(OfOneQuery):
    def pairs(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.of_state(query) + self.of_keys(keys).tanh()


@pytest.mark.parametrize(("kind", "violations"), [(OfOneQuery, []), (OfNoQuery, ["query-in-the-weights"])])
def test_one_query_asks_where_several_would_meet_one_key_each(kind: type[nn.Module], violations: list[str]) -> None:
    call = next(invocations(kind, args={}))
    assert [call.arguments[name].shape[1] for name in ("query", "keys")] == [1, 7]
    assert [each.property for each in analyze(call).violations] == violations


class Weighing(nn.Module):
    """A decoder's state (1, batch, width) weighs an encoder's outputs (tokens, batch, width) (Luong et al. 2015)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.make(hidden_size)

    def make(self, hidden_size: int) -> None:
        """What the scores are made with."""

    def score(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return (hidden * encoder_outputs).sum(2)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return self.score(hidden, encoder_outputs).t().softmax(dim=1).unsqueeze(1)


class WeighingProjected(Weighing):
    def make(self, hidden_size: int) -> None:
        self.of_keys = nn.Linear(hidden_size, hidden_size)

    def score(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return (hidden * self.of_keys(encoder_outputs)).sum(2)


class WeighingBoth(Weighing):
    def make(self, hidden_size: int) -> None:
        self.of_both = nn.Linear(2 * hidden_size, hidden_size)
        self.vector = nn.Parameter(torch.zeros(hidden_size))

    def score(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        both = torch.cat((hidden.expand(len(encoder_outputs), -1, -1), encoder_outputs), 2)
        return (self.vector * self.of_both(both).tanh()).sum(2)


class WeighingSamples(WeighingBoth):
    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return self.score(hidden[[0]], encoder_outputs).softmax(dim=1).t().unsqueeze(1)


@pytest.mark.parametrize("kind", [Weighing, WeighingProjected, WeighingBoth])
def test_a_state_with_an_axis_of_one_token_weighs_a_sequence_whose_tokens_come_first(kind: type[nn.Module]) -> None:
    calls = list(invocations(kind, args={}))
    assert [(each.batch_axis, each.token_axes) for each in calls[0].streams] == [(1, (0,))] * 2
    assert [calls[0].arguments[name].shape[0] for name in ("hidden", "encoder_outputs")] == [1, 7]
    for each in calls:
        assert (analyze(each).violations, designs(analyze(each))[:1]) == ([], ["weights-alone"])


def test_weights_of_the_samples_are_seen_where_two_sequences_stand_side_by_side_in_one_product() -> None:
    found = analyze(next(invocations(WeighingSamples, args={}))).violations
    assert "softmax-over-keys" in [each.property for each in found]


class OfTwoWidths(nn.Module):
    """State and keys, of two widths, are side by side in one product."""

    axis = 1

    def __init__(self, enc_hid_dim: int, dec_hid_dim: int) -> None:
        super().__init__()
        self.of_both = nn.Linear(2 * enc_hid_dim + dec_hid_dim, dec_hid_dim)
        self.vector = nn.Linear(dec_hid_dim, 1, bias=False)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        states = hidden.unsqueeze(1).repeat(1, encoder_outputs.shape[1], 1)
        scores = self.vector(self.of_both(torch.cat((states, encoder_outputs), 2)).tanh())
        return (scores.softmax(self.axis) * encoder_outputs).sum(1)


class OfTwoWidthsAndSamples(OfTwoWidths):
    axis = 0


@pytest.mark.parametrize(("kind", "is_right"), [(OfTwoWidths, True), (OfTwoWidthsAndSamples, False)])
def test_two_widths_side_by_side_in_one_product_are_added(kind: type[nn.Module], is_right: bool) -> None:
    call = next(invocations(kind, args={}))
    assert [call.arguments[name].shape for name in ("hidden", "encoder_outputs")] == [(2, 12), (2, 7, 24)]
    analysis = analyze(call)
    assert "softmax-over-keys" in [each.property for each in analysis.violations] or is_right
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"]) or not is_right


class OfPaddedTokensFirst(OfTwoWidths):
    """The tokens of the keys come first, those of the mask do not, and weights alone are returned."""

    def forward(self, hidden: Tensor, encoder_outputs: Tensor, mask: Tensor) -> Tensor:
        keys = encoder_outputs.permute(1, 0, 2)
        pairs = torch.cat((hidden.unsqueeze(1).expand(-1, keys.shape[1], -1), keys), 2)
        scores = self.vector(self.of_both(pairs).tanh()).squeeze(2)
        return scores.masked_fill(mask == 0, -1e10).softmax(1)


def test_the_mask_of_the_keys_that_a_state_asks_has_no_axis_of_queries() -> None:
    call = next(invocations(OfPaddedTokensFirst, args={}))
    assert [tuple(each.shape) for each in call.arguments.values()] == [(2, 12), (7, 2, 24), (2, 7)]
    assert (analyze(call, masks=True).violations, designs(analyze(call))) == ([], ["weights-alone", "additive-scores"])


class OfALayer(OfTwoWidths):
    """The state is that of a recurrent layer: (layers, batch, width)."""

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return super().forward(hidden[-1], encoder_outputs)


def test_a_state_may_have_an_axis_of_layers_in_front() -> None:
    call = next(invocations(OfALayer, args={}))
    assert [(each.batch_axis, each.token_axes) for each in call.streams] == [(1, (0,)), (0, (1,))]
    assert (analyze(call).violations, designs(analyze(call))) == ([], ["additive-scores"])


class OfAGraph(nn.Module):
    """Nodes, two by two side by side, times one vector (Velickovic et al. 2018)."""

    axis = 1

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.project, self.vector = nn.Linear(in_features, out_features), nn.Parameter(torch.zeros(2 * out_features, 1))

    def forward(self, h: Tensor, adj: Tensor) -> Tensor:
        nodes, count = self.project(h), len(h)
        pairs = torch.cat((nodes.repeat_interleave(count, 0), nodes.repeat(count, 1)), 1).view(count, count, -1)
        scores = nn.functional.leaky_relu((pairs @ self.vector).squeeze(2), 0.2)
        return scores.masked_fill(adj == 0, -torch.inf).softmax(self.axis) @ nodes


class OfAGraphByColumns(OfAGraph):
    axis = 0


def test_nodes_of_a_graph_side_by_side_are_a_design_and_their_softmax_is_judged() -> None:
    analysis = analyze(next(invocations(OfAGraph, args={})))
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"])
    violations = analyze(next(invocations(OfAGraphByColumns, args={}))).violations
    assert "softmax-over-keys" in [each.property for each in violations]


def pooled_by_one_query(x: Tensor, query: Tensor) -> Tensor:
    return ((x @ query / x.shape[-1] ** 0.5).softmax(-1)[..., None] * x).sum(-2)


def test_a_query_beside_nothing_but_tokens_may_be_one_vector() -> None:
    call = next(invocations(pooled_by_one_query, args={}))
    assert (call.arguments["query"].shape, call.square) == ((12,), False)
    assert (analyze(call).violations, analyze(call).complete) == ([], True)


def test_a_softmax_over_the_samples_that_ask_is_seen() -> None:
    found = analyze(next(invocations(OfSamples, args={}))).violations
    assert "softmax-over-keys" in [each.property for each in found]


def test_weights_that_are_returned_are_a_design() -> None:
    analysis = analyze(of_q_k_v(lambda q, k, v: (q @ k.mT / 2).softmax(-1)))
    assert analysis.complete
    assert (analysis.violations, designs(analysis)) == ([], ["weights-alone"])


@pytest.mark.parametrize("axis", [1, 2], ids=["heads", "queries"])
def test_the_axis_of_weights_that_are_returned_is_judged(axis: int) -> None:
    (found,) = analyze(of_q_k_v(lambda q, k, v: (q @ k.mT / 2).softmax(axis))).violations
    assert found.property == "softmax-over-keys"


def test_scores_that_are_returned_are_no_attention() -> None:
    assert analyze(of_q_k_v(lambda q, k, v: q @ k.mT / 2)).num_attentions == 0


def pooled_by_hand(x: Tensor, axis: int) -> Tensor:
    """A learned query's weights of the tokens, by a softmax that is written by hand."""
    scores = torch.tanh(x @ drawn(8, 4, seed=7)) @ VECTOR[:, None]
    exponentials = (scores - scores.amax(axis, keepdim=True)).exp()
    return (exponentials / exponentials.sum(axis, keepdim=True) * x).sum(1)


@pytest.mark.parametrize(
    ("axis", "violations"), [(1, []), (0, ["softmax-over-keys", "samples-apart"])], ids=["tokens", "samples"]
)
def test_what_a_learned_query_reads_by_a_softmax_by_hand_is_judged(axis: int, violations: list[str]) -> None:
    analysis = analyze(of_x(lambda x: pooled_by_hand(x, axis)))
    assert analysis.num_attentions == 1
    assert [each.property for each in analysis.violations] == violations


def written_out(query: Tensor, like: Tensor) -> Tensor:
    return query.unsqueeze(1).repeat(1, like.shape[1], 1)


WAYS: list[Callable[[nn.Module, Tensor, Tensor], Tensor]] = [
    lambda matrix, query, like: matrix(query).unsqueeze(1).expand_as(like),
    lambda matrix, query, like: written_out(matrix(query), like),
    lambda matrix, query, like: matrix(written_out(query, like)),
]


class WrittenOut(nn.Module):
    """A query that stands once for each key before it is added; what is read is the projected keys."""

    def __init__(self, dim: int, way: int = 0, axis: int = 1) -> None:
        super().__init__()
        self.way, self.axis = way, axis
        self.of_query, self.of_keys, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """query: (B, D), key: (B, S, D)"""
        keys = self.of_keys(key)
        query = WAYS[self.way](self.of_query, query, keys)
        weights = self.v(torch.tanh(query + keys)).squeeze(2).softmax(self.axis)
        return (weights.unsqueeze(1) @ keys).squeeze(1)


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize(("axis", "violations"), [(1, []), (0, ["samples-apart", "softmax-over-keys"])])
def test_a_query_may_be_written_out_for_each_key(way: int, axis: int, violations: list[str]) -> None:
    call = next(iter(invocations(WrittenOut, args={"dim": 8, "way": way, "axis": axis})))
    analysis = analyze(call)
    assert "additive-scores" in designs(analysis) or violations
    assert {each.property for each in analysis.violations} <= {*violations}
    assert bool(analysis.violations) == bool(violations)
