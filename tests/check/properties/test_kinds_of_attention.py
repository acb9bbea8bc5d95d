"""Attention whose scores are not of one query token and one key token is named, not blamed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_styles import heads_call, tokens_call
from property_cases import drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.attention_free_cases import AttentionFree, AttentionFreeByMatrices, WithoutTheBiasBelow
from property_cases.handed_over_cases import SumsInALoop
from property_cases.position_cases import rotary, rotated
from property_cases.relation_cases import agents_read_tokens, agents_with_talking_heads
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def names(call: Invocation) -> list[tuple[str, str]]:
    analysis = analyze(call, masks=True)
    assert not analysis.missing
    return [(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")]


def over_channels(x: Tensor) -> Tensor:
    """XCiT: the tokens are summed over, after a norm over the tokens; a channel of q reads the channels of k."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    scores = F.normalize(q, dim=1).mT @ F.normalize(k, dim=1)
    return v @ scores.softmax(-1).mT


def over_channels_of_a_grid(x: Tensor) -> Tensor:
    """The same of maps of features (batch, channels, rows, columns), each number of its neighbours (Restormer)."""
    q, k, v = F.conv2d(x, drawn(18, 1, 3, 3, seed=0) / 3, padding=1, groups=6).flatten(2).chunk(3, 1)
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return (scores.softmax(-1) @ v).reshape(x.shape)


def gated(x: Tensor, *, over_tokens: bool = True, axis: int | None = None) -> Tensor:
    """Squeeze-and-excitation: a share of each channel."""
    scores = (x.mean(1, keepdim=True) if over_tokens else x) @ drawn(8, 3, seed=0) @ drawn(3, 8, seed=1)
    return x * (scores.sigmoid() if axis is None else scores.softmax(axis))


def with_averaged_heads(x: Tensor, *, joined: bool = False) -> Tensor:
    """Heads of one value, whose results are averaged (temporal fusion transformer)."""
    q, k = (x @ drawn(8, 8, seed=seed) for seed in range(2))
    v = x @ drawn(8, 4, seed=2)
    parts = zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    read = [(one @ other.mT / 2).softmax(-1) @ v for one, other in parts]
    return torch.cat(read, -1) if joined else torch.stack(read, 2).mean(2)


def of_softmaxed_keys(x: Tensor) -> Tensor:
    """Efficient attention: a softmax of the queries over the channels, one of the keys over the tokens."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    return q.softmax(-1) @ (k.softmax(1).mT @ v)


def beside_learned_keys(x: Tensor, *, learned_values: bool = True) -> Tensor:
    """The same with two learned keys: the softmax over the keys runs over these as well."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    memory_k, memory_v = (drawn(2, 8, seed=seed).expand(len(x), -1, -1) for seed in (3, 4))
    k = torch.cat([memory_k, k], 1).softmax(1)
    v = torch.cat([memory_v if learned_values else v[:, :1].expand(-1, 2, -1), v], 1)
    return q.softmax(-1) @ (k.mT @ v)


def layers_of_softmaxed_keys(x: Tensor) -> Tensor:
    """Two layers: what the second one's queries are made of has read all tokens."""
    x = x + of_softmaxed_keys(x)
    return x + of_softmaxed_keys(x / x.norm(dim=-1, keepdim=True))


def test_channels_that_attend_to_channels_are_a_design() -> None:
    assert names(of_x(over_channels)) == [("design", "linear-attention")]


def test_channels_of_neighbouring_places_that_attend_to_channels_are_a_design() -> None:
    call = tokens_call(over_channels_of_a_grid, drawn(2, 6, 3, 4, seed=0))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert names(call) == [("design", "linear-attention")]


@pytest.mark.parametrize("axis", [None, -1])
def test_shares_of_channels_that_are_of_all_tokens_are_a_design(axis: int | None) -> None:
    assert names(of_x(partial(gated, axis=axis))) == [("design", "channel-gate")]
    assert analyze(of_x(partial(gated, axis=axis, over_tokens=False))).num_attentions == 0


def test_heads_that_are_averaged_are_a_design() -> None:
    assert names(of_x(with_averaged_heads)) == [("design", "heads-averaged")]
    assert names(of_x(partial(with_averaged_heads, joined=True))) == []


def test_keys_that_are_multiplied_by_values_first_are_a_design() -> None:
    assert names(of_x(of_softmaxed_keys)) == [("design", "linear-attention")]


def test_learned_keys_may_stand_beside_those_of_tokens() -> None:
    assert names(of_x(beside_learned_keys)) == [("design", "linear-attention")]
    kinds = {kind for kind, _ in names(of_x(partial(beside_learned_keys, learned_values=False)))}
    assert "violation" in kinds


def test_layers_of_linear_attention_are_a_design() -> None:
    assert names(of_x(layers_of_softmaxed_keys)) == [("design", "linear-attention")]


def layers_of_positive_features(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two texts attend to themselves, and then to each other; the sums are divided within a product of three."""

    def attended(x: Tensor, read: Tensor, seed: int) -> Tensor:
        q = torch.nn.functional.elu(x @ drawn(8, 8, seed=seed) / 3) + 1
        k = torch.nn.functional.elu(read @ drawn(8, 8, seed=seed + 1) / 3) + 1
        summed = torch.einsum("bsd,bsv->bdv", k, read @ drawn(8, 8, seed=seed + 2))
        return x + torch.einsum("bld,bdv,bl->blv", q, summed, 1 / torch.einsum("bld,bd->bl", q, k.sum(1)))

    first, second = attended(first, first, 0), attended(second, second, 0)
    first = attended(first, second, 3)
    return first, attended(second, first, 3)


def test_layers_whose_sums_are_divided_within_a_product_are_linear_attention() -> None:
    call = of_x(layers_of_positive_features)
    call.arguments = {"first": drawn(2, 5, 8, seed=0), "second": drawn(2, 7, 8, seed=1)}
    call.streams = [Stream("first", "x", 0, (1,)), Stream("second", "context", 0, (1,))]
    assert names(replace(call, positional=["first", "second"])) == [("design", "linear-attention")]


def rotated_by_row_and_column(x: Tensor) -> Tensor:
    """Six tokens, three to a row: half of the width is rotated by the row, half by the column."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    place = torch.arange(x.shape[1])
    angles = torch.stack([place // 3, place % 3], -1).repeat_interleave(2, 1) * torch.tensor([1.0, 0.1, 1.0, 0.1])
    turned = [
        torch.view_as_real(torch.view_as_complex(each.unflatten(-1, (4, 2))) * angles_of(angles)) for each in (q, k)
    ]
    scores = turned[0].flatten(2) @ turned[1].flatten(2).mT / 8**0.5
    return scores.softmax(-1) @ v


def angles_of(angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex128)


def test_rotary_positions_of_a_grid_are_a_design() -> None:
    call = tokens_call(rotated_by_row_and_column, drawn(2, 6, 8, seed=0))
    assert names(call) == [("design", "rotary")]


def test_values_that_are_rotated_as_well_are_a_design() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Values are rotated as well."""
        return rotary(q, k, rotated(v))

    assert names(of_q_k_v(attend)) == [("design", "rotary-values")]


def rotate_pos_emb(several: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(map(rotated, several))


def test_values_that_one_call_rotates_with_queries_and_keys_are_a_design() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = rotate_pos_emb((q, k, v))
        return (q @ k.mT / 2).softmax(-1) @ v

    assert names(of_q_k_v(attend)) == [("design", "rotary-values")]


def largest_two(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    least = scores.topk(2, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


def test_a_mask_may_change_which_keys_are_the_largest() -> None:
    assert names(of_q_k_v(largest_two, masks=("mask",))) == [("design", "sparse-by-content")]


def of_the_largest_scores(q: Tensor, k: Tensor, v: Tensor, *, flipped: bool = False) -> Tensor:
    """The softmax takes two scores of each query, and their values are looked up."""
    best, places = (q @ k.mT / 2).topk(2, -1)
    places = places.flip(-1) if flipped else places
    values = v[:, :, None].expand(*q.shape[:3], *v.shape[-2:]).gather(3, places[..., None].expand(*places.shape, 4))
    return torch.einsum("bhqk,bhqkd->bhqd", best.softmax(-1), values)


def written_back(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with all other scores -inf."""
    scores = q @ k.mT / 2
    best, places = scores.topk(2, -1)
    return torch.full_like(scores, -torch.inf).scatter(-1, places, best).softmax(-1) @ v


def test_the_largest_scores_alone_may_be_taken() -> None:
    for function in (of_the_largest_scores, written_back):
        assert names(of_q_k_v(function)) == [("design", "sparse-by-content")]


def test_the_values_of_the_largest_scores_are_those_of_their_keys() -> None:
    found = names(of_q_k_v(lambda q, k, v: of_the_largest_scores(q, k, v, flipped=True)))
    assert found == [("violation", "value-of-the-key")]


def test_a_query_may_see_every_key_but_its_own() -> None:
    def others(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).masked_fill(torch.eye(3).bool(), -torch.inf).softmax(-1) @ v

    assert names(of_q_k_v(others)) == [("design", "mask-pattern")]


def test_a_mask_of_large_negative_numbers_that_is_handed_over_may_differ_among_samples() -> None:
    """Swin's, of windows."""
    call = of_q_k_v(lambda q, k, v, shifted: (q @ k.mT / 2 + shifted).softmax(-1) @ v)
    hidden = torch.zeros(2, 1, 3, 3, dtype=torch.float64)
    hidden[0, 0, :, 2] = hidden[1, 0, 0, 1] = -100
    call.arguments["shifted"] = hidden
    assert names(call) == []


def of_the_largest_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Informer's: the queries with the largest scores attend, the others get the mean."""
    chosen = (q @ k.mT).amax(-1).topk(2, sorted=False).indices[..., None].expand(-1, -1, -1, q.shape[-1])
    attended = (q.gather(2, chosen) @ k.mT / 2).softmax(-1) @ v
    return v.mean(2, keepdim=True).expand(v.shape).scatter(2, chosen, attended)


def test_who_is_chosen_by_the_numbers_is_no_mixture_of_tokens() -> None:
    assert analyze(of_q_k_v(of_the_largest_queries)).violations == []


def with_an_indexer(x: Tensor, *, flipped: bool = False) -> Tensor:
    """DeepSeek-V3.2: keys are chosen by ReLU scores of narrow heads, times weights of the query."""
    narrow = (x @ drawn(8, 4, seed=1)).unflatten(-1, (2, 2))
    scores = (narrow @ (x @ drawn(8, 2, seed=2)).mT[:, None]).relu()  # (batch, queries, heads, keys)
    chosen = ((x @ drawn(8, 2, seed=3))[:, :, None] @ scores)[:, :, 0].topk(2).indices
    blocked = torch.full((*x.shape[:2], x.shape[1]), -torch.inf, dtype=x.dtype).scatter(-1, chosen, 0.0)
    weights = (x @ x.mT / 8**0.5 + blocked).softmax(-1)
    return weights @ (x.flip(1) if flipped else x)


def test_an_indexer_is_no_attention_of_its_own() -> None:
    assert "violation" not in {kind for kind, _ in names(of_x(with_an_indexer))}
    assert ("violation", "value-of-the-key") in names(of_x(partial(with_an_indexer, flipped=True)))


def decaying(x: Tensor, decay: float = 0.7) -> Tensor:
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return (q @ k.mT * (decay ** distance.clamp(min=0)).tril()) @ v


def test_products_that_decay_with_the_distance_are_retention() -> None:
    assert names(of_x(decaying)) == [("design", "retention")]


def of_more_keys(q: Tensor, k: Tensor, v: Tensor, own: int = 0, least: int = 0) -> Tensor:
    """The first query stands at the key of a number, and no query sees later ones."""
    distance = own + torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    return (q @ k.mT * 0.7 ** distance.clamp(min=0) * (distance >= least)) @ v


@pytest.mark.parametrize("own", [0, 2])
def test_retention_may_have_more_keys_than_queries(own: int) -> None:
    given = [drawn(2, 2, tokens, 4, seed=tokens) for tokens in (5, 7, 7)]
    assert ("design", "retention") in names(heads_call(partial(of_more_keys, own=own), *given))
    analysis = analyze(heads_call(partial(of_more_keys, own=own, least=1), *given))
    assert [each.property for each in analysis.violations] == ["mask-pattern"]


def decaying_without_some_values(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Lightning attention: keys are hidden by values of zero, and no row of weights has a sum of its own."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    weights = q @ k.mT * (0.7 ** distance.clamp(min=0)).tril()
    return (weights if mask is None else weights.masked_fill(~mask[:, None], 0)) @ v


def test_weights_without_a_sum_of_their_own_may_be_hidden_by_zeros() -> None:
    assert names(of_x(decaying_without_some_values, masks=("mask",))) == [("design", "retention")]


def test_products_that_do_not_decay_lack_a_softmax() -> None:
    assert ("violation", "weights-not-negative") in names(of_x(lambda x: decaying(x, 1.0)))


def over_summaries(x: Tensor, num_keys: int, axis: int = -1) -> Tensor:
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    k, v = (drawn(num_keys, 4, seed=seed) @ each for seed, each in ((3, k), (4, v)))
    return (q @ k.mT / 8**0.5).softmax(axis) @ v


def test_fewer_keys_than_tokens_may_be_of_several_tokens_each() -> None:
    assert names(of_x(lambda x: over_summaries(x, 2))) == [("design", "summarized-keys")]


def test_a_softmax_over_the_queries_of_fewer_keys_is_wrong() -> None:
    assert names(of_x(lambda x: over_summaries(x, 2, axis=1))) == [("violation", "softmax-over-keys")]


def test_as_many_keys_as_tokens_are_of_one_token_each() -> None:
    assert ("violation", "key-of-one-token") in names(of_x(lambda x: over_summaries(x, 4)))


def over_a_convolution(x: Tensor, *, flipped: bool = False) -> Tensor:
    """Every two projected tokens make one key and one value (memory-compressed attention)."""
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    k, v = (F.conv1d(each.mT, drawn(8, 8, 2, seed=1) / 8, stride=2).mT for each in (k, v))
    return (q @ k.mT / 8**0.5).softmax(-1) @ (v.flip(1) if flipped else v)


def test_a_convolution_may_make_fewer_keys_of_projected_tokens() -> None:
    assert names(of_x(over_a_convolution)) == [("design", "summarized-keys")]


def test_the_values_of_a_convolution_are_those_of_its_keys() -> None:
    assert ("violation", "value-of-the-key") in names(of_x(lambda x: over_a_convolution(x, flipped=True)))


def external(x: Tensor) -> Tensor:
    weights = (x @ drawn(8, 5, seed=0)).softmax(1)
    return weights / weights.sum(-1, keepdim=True) @ drawn(5, 8, seed=1)


def test_learned_keys_and_values_are_a_design() -> None:
    assert names(of_x(external)) == [("design", "learned-memory")]


def running_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    sums = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def test_causal_linear_attention_is_a_design() -> None:
    analysis = analyze(of_q_k_v(running_sums))
    assert analysis.complete
    assert [each.property for each in analysis.designs] == ["linear-attention"]
    assert "mask-pattern" in [each.property for each in analysis.findings if each.kind == "holds"]


def weighed_by_what_they_were_given(x: Tensor) -> Tensor:
    """Tokens are pooled by the weights that they received."""
    weights = (x @ x.mT / 8**0.5).softmax(-1)
    return (weights.sum(-2)[..., None] * x).sum(1)


def test_weights_may_be_summed_to_pool_tokens() -> None:
    analysis = analyze(of_x(weighed_by_what_they_were_given))
    assert analysis.violations == []


def competing(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Slot attention, Locatello et al. 2020, algorithm 1."""
    weights = (x @ x.mT / 8**0.5).softmax(-2)
    return weights / (weights.sum(-1, keepdim=True) + epsilon) @ x


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_queries_that_compete_for_keys_are_a_design(epsilon: float) -> None:
    assert ("design", "slot-attention") in names(of_x(partial(competing, epsilon=epsilon)))


def test_queries_that_compete_and_are_divided_by_another_sum_are_wrong() -> None:
    assert ("violation", "softmax-over-keys") in names(of_x(partial(competing, epsilon=0.1)))


def test_queries_that_compete_and_are_not_normalized_are_wrong() -> None:
    assert ("violation", "softmax-over-keys") in names(of_x(lambda x: (x @ x.mT / 8**0.5).softmax(-2) @ x))


def rectified(x: Tensor, summed_over: int | None = None) -> Tensor:
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    weights = (q @ k.mT / 8**0.5).relu()
    return weights / (x.shape[1] if summed_over is None else weights.sum(summed_over, keepdim=True) + 1e-9) @ v


def test_rectified_scores_promise_no_sum() -> None:
    assert ("design", "rectified-weights") in names(of_x(rectified))


def test_rectified_scores_over_a_sum_promise_one() -> None:
    assert ("violation", "weights-sum-to-one") in names(of_x(lambda x: rectified(x, summed_over=1)))


def by_angles(x: Tensor, *, is_divided: bool) -> Tensor:
    """YOSO, Zeng et al. 2021: by how often the hashes of a query and a key are the same."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    read = (1 - torch.acos(0.999 * q @ k.mT) / torch.pi) ** 3 @ v
    return torch.nn.functional.normalize(read, dim=-1) if is_divided else read


def test_weights_need_no_sum_where_the_length_of_what_was_read_is_divided_by() -> None:
    assert ("design", "weights-of-any-sum") in names(of_x(partial(by_angles, is_divided=True)))
    assert ("violation", "weights-sum-to-one") in names(of_x(partial(by_angles, is_divided=False)))


def beside_means(x: Tensor) -> Tensor:
    """All tokens, and the mean of each half of them."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    keys, values = (torch.cat([each.unflatten(1, (2, -1)).mean(2), each], 1) for each in (k, v))
    return (q @ keys.mT / 8**0.5).softmax(-1) @ values


def half_mixed(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    k = torch.cat([k[:, :1], k[:, 1:] + k[:, :-1]], 1)
    return (q @ k.mT / 8**0.5).softmax(-1) @ v


def test_summaries_may_stand_beside_the_keys_of_all_tokens() -> None:
    assert ("design", "summarized-keys") in names(of_x(beside_means))
    assert ("violation", "key-of-one-token") in names(of_x(half_mixed))


def through_landmarks(x: Tensor) -> Tensor:
    """Agent attention, and Nystrom's without the matrix between both softmaxes."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    landmarks = q.unflatten(1, (2, -1)).mean(2)
    outer, inner = ((one @ other.mT / 8**0.5).softmax(-1) for one, other in ((q, landmarks), (landmarks, k)))
    return outer @ (inner @ v)


def test_tokens_that_are_read_through_landmarks_are_a_design() -> None:
    assert names(of_x(through_landmarks)) == [("design", "summarized-keys")]


def test_learned_agents_that_are_read_and_read_are_a_design_with_their_heads_mixed_as_well() -> None:
    for function in (agents_read_tokens, agents_with_talking_heads):
        assert names(of_x(function)) == [("design", "agent-attention")]


def values_in_two_parts(x: Tensor) -> Tensor:
    """Four heads, each of which sums two halves of the values with the same weights (differential attention)."""
    q, k, v = ((x @ drawn(8, 8, seed=seed)).unflatten(-1, (4, 2)).transpose(1, 2) for seed in range(3))
    halves = [half.repeat(1, 2, 1, 1) for half in v.chunk(2, 1)]
    sums = [(q @ k.mT / 2**0.5).softmax(-1) @ half for half in halves]
    return torch.cat(sums, -1).transpose(1, 2).flatten(2)


def test_a_head_whose_values_are_summed_in_two_parts_is_no_group_of_heads() -> None:
    assert names(of_x(values_in_two_parts)) == []


def then_a_convolution(x: Tensor) -> Tensor:
    """Of three neighbours and each channel apart, as after attention in windows."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    read = (q @ k.mT / 8**0.5).softmax(-1) @ v
    return F.conv1d(read.mT, drawn(8, 1, 3, seed=4), padding=1, groups=8).mT


def test_a_convolution_of_what_was_attended_to_is_a_design() -> None:
    assert names(of_x(then_a_convolution)) == [("design", "output-of-the-token")]


def test_weights_that_edges_are_added_to_are_a_design_where_some_tokens_have_no_edge() -> None:
    def mixed(x: Tensor, adj: Tensor) -> Tensor:
        q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
        return ((q @ k.mT / 8**0.5).softmax(-1) / 2 + adj) @ v

    call = of_x(mixed)
    call.arguments["adj"] = torch.eye(4).roll(1, 0).double() / 2
    assert names(call) == [("design", "weights-mixed-in")]


def test_weights_that_sum_to_less_than_one_without_a_sink_are_wrong() -> None:
    def over_twice_their_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        squares = (q @ k.mT).square()
        return squares / (2 * squares.sum(-1, keepdim=True)) @ v

    assert names(of_q_k_v(over_twice_their_sum)) == [("violation", "weights-sum-to-one")]


def read_for_all(x: Tensor) -> Tensor:
    """Fastformer: what one learned query reads is multiplied into the keys of all tokens."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    read = (q @ drawn(8, 1, seed=3) / 8**0.5).softmax(1).mT @ q
    keys = k * read
    return (keys @ drawn(8, 1, seed=4) / 8**0.5).softmax(1).mT @ keys * v


def test_what_a_learned_query_reads_may_go_to_every_token() -> None:
    assert names(of_x(read_for_all)) == [("design", "output-of-the-token")]


def read_for_other_samples(x: Tensor) -> Tensor:
    v = x @ drawn(8, 8, seed=2)
    return ((x @ drawn(8, 1, seed=3)).softmax(1).mT @ v).flip(0) * v


def test_what_a_learned_query_reads_of_one_sample_may_not_go_to_another() -> None:
    assert ("violation", "output-of-the-token") in names(of_x(read_for_other_samples))


def patches_whose_channels_attend(image: Tensor) -> Tensor:
    """A layer of channels and one of patches, of a picture (batch, 3, rows, columns) in patches of 2 x 2 (XCiT)."""
    patches = F.unfold(image, 2, stride=2).mT @ drawn(12, 8, seed=3)
    patches = patches + over_channels(patches)
    q, k, v = (patches @ drawn(8, 8, seed=seed) for seed in range(4, 7))
    return (q @ k.mT / 8**0.5).softmax(-1) @ v


def test_channels_of_patches_that_attend_to_channels_are_a_design() -> None:
    image = Stream("image", "x", 0, (2, 3))
    call = Invocation(patches_whose_channels_attend, {"image": drawn(2, 3, 4, 6, seed=0)}, ["image"], [image])
    assert ("design", "linear-attention") in names(call)
    assert not any(kind == "violation" for kind, _ in names(call))


def of_routed_tokens(x: Tensor) -> Tensor:
    """All tokens ask those keys that a router chooses among the tokens, beside a learned one (CoLT5)."""
    chosen = (x @ drawn(8, seed=3)).topk(2, dim=1).indices.sort(1).values
    routed = x.gather(1, chosen[..., None].expand(-1, -1, 8))
    q, k, v = x @ drawn(8, 8, seed=0), *(routed @ drawn(8, 8, seed=seed) for seed in (1, 2))
    return (q @ k.mT / 8**0.5).softmax(-1) @ v


def test_tokens_that_a_router_chooses_are_a_design() -> None:
    assert ("design", "sparse-by-content") in names(of_x(of_routed_tokens))
    assert not any(kind == "violation" for kind, _ in names(of_x(of_routed_tokens)))


def by_distance(x: Tensor, *, slope: float = -0.5) -> Tensor:
    """Lipschitz self-attention: |q - k|^2 is q . q + k . k - 2 q . k."""
    q, k, v = (x @ drawn(8, 8, seed=seed) / 3 for seed in range(3))
    squares = q.square().sum(-1)[..., None] + torch.einsum("bkd,bkd->bk", k, k)[:, None]
    return (slope * (squares - 2 * q @ k.mT)).softmax(-1) @ v


def test_scores_that_fall_with_the_distance_are_a_design() -> None:
    assert names(of_x(by_distance)) == [("design", "distance-scores")]
    assert not analyze(of_x(partial(by_distance, slope=0.5))).complete


def decayed(x: Tensor, *, own: float = 1.0) -> Tensor:
    """Scores are times exp(-d), where d grows with the distance and with what stands between, by a first softmax."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    scores = q @ k.mT / 8**0.5
    places = torch.arange(x.shape[1])
    far = (places[:, None] - places).abs() * (1 - scores.softmax(-1).detach())
    return (scores * (-far).exp() * torch.where(far > 0, 1.0, own)).softmax(-1) @ v


def test_scores_that_are_less_away_from_the_query_are_a_design() -> None:
    assert ("design", "decayed-scores") in names(of_x(decayed))
    assert not analyze(of_x(partial(decayed, own=0.1))).complete


def selecting(x: Tensor, *, times: float = 1.0) -> Tensor:
    """Two heads; what the first gave a key is taken from the scores of all later queries (selective attention)."""
    q, k, v = ((x @ drawn(8, 8, seed=seed)).unflatten(-1, (2, 4)).transpose(1, 2) for seed in range(3))
    scores = (q @ k.mT / 2).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -torch.inf)
    given = scores[:, :1].relu() * (1 - torch.eye(x.shape[1])) * times
    given = torch.cat([torch.zeros_like(given[:, :, :1]), given[:, :, :-1]], 2).cumsum(2)
    return ((scores - given).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_what_a_head_has_put_away_is_a_design() -> None:
    assert ("design", "selected-scores") in names(of_x(selecting))
    assert analyze(of_x(selecting)).complete
    assert not analyze(of_x(partial(selecting, times=0.5))).complete


def near_and_strided(x: Tensor, *, later: int = 0) -> Tensor:
    """One head sees the last two tokens, the other every second token before (Sparse Transformer)."""
    q, k, v = ((x @ drawn(8, 8, seed=seed)).unflatten(-1, (2, 4)).transpose(1, 2) for seed in range(3))
    apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    seen = torch.stack([(apart >= -later) & (apart < 2), (apart >= 0) & (apart % 2 == 0)])
    return ((q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_heads_that_each_see_a_part_of_what_is_before_are_a_design() -> None:
    found = analyze(of_x(near_and_strided))
    assert found.complete
    assert "its own mask, one for each head: head 0 causal window, head 1 sparse causal" in [
        each.message for each in found.designs
    ]
    assert not analyze(of_x(partial(near_and_strided, later=1))).complete


def test_sums_that_a_loop_makes_are_linear_attention() -> None:
    assert ("design", "linear-attention") in names(of_module(SumsInALoop))


def by_cosine(x: Tensor, *, times: float = 5.0) -> Tensor:
    """The product is divided by both lengths afterwards, as in Swin V2."""
    q, k, v = (split(x @ drawn(8, 8, seed=seed) / 3) for seed in range(3))
    lengths = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
    return joined(((q @ k.mT) / lengths.clamp(min=1e-6) * times).softmax(-1) @ v)


def test_cosines_that_are_divided_after_the_product_are_a_design() -> None:
    assert ("design", "cosine-scores") in names(of_x(by_cosine))
    assert not analyze(of_x(partial(by_cosine, times=0.5))).complete


def of_slices(x: Tensor) -> Tensor:
    """Transolver: slices read the tokens, and tokens read the slices with the same weights."""
    weights = (x @ drawn(8, 3, seed=0)).softmax(-1)
    read = (weights.mT @ (x @ drawn(8, 8, seed=1))) / weights.sum(1)[..., None]
    q, k, v = (read @ (drawn(8, 8, seed=seed) / 3) for seed in (2, 3, 4))
    return weights @ ((q @ k.mT / 8**0.5).softmax(-1) @ v)


def test_learned_keys_whose_values_were_read_before_are_a_design() -> None:
    assert ("design", "learned-keys") in names(of_x(of_slices))
    assert not analyze(of_x(of_slices)).violations


def test_exponentials_of_keys_beside_biases_are_a_design() -> None:
    assert names(of_module(AttentionFree)) == [("design", "attention-free")]
    (found,) = analyze(of_module(WithoutTheBiasBelow)).violations
    assert (found.property, found.location.text[-6:]) == ("weights-sum-to-one", "# here")


def test_exponentials_of_keys_times_those_of_biases_in_one_product_are_a_design() -> None:
    assert names(of_module(AttentionFreeByMatrices)) == [("design", "attention-free")]


class BehindAStart(nn.Module):
    """Each token is read one place later, behind a learned vector, and attends to itself and to those before."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.qkv = nn.Parameter(torch.ones(8)), nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.start.expand(len(x), 1, 8), x[:, :-1]), 1)
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / 8**0.5).softmax(-1) @ v


def test_one_token_alone_says_nothing_of_values() -> None:
    call = of_x(BehindAStart(), tokens=1)
    assert [each.property for each in analyze(call).violations] == []
