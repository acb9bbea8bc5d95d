"""The softmax."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from property_cases import WIDTH, Case, drawn, joined, of_x, split

W_Q, W_K, W_V, W_O = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in range(4))
EARLIER = torch.ones(3, 3, dtype=torch.bool).tril()


def masks_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~EARLIER.tril(-1), -torch.inf)
    return scores.softmax(-1) @ v  # here


def sees_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(~EARLIER, -torch.inf)
    return scores.softmax(-1) @ v


def scores_over_their_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    weights = scores / scores.sum(-1, keepdim=True)
    return weights @ v  # here


def squares(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    weights = scores.square()
    return weights @ v  # here


def squares_over_their_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    squares = (q @ k.mT / 2).square()
    return squares / squares.sum(-1, keepdim=True) @ v


def over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(-2) @ v  # here


def over_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(1) @ v  # here


def over_the_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.softmax(-1) @ v


def scaled_after_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1) / 2
    return weights @ v  # here


def masked_after_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1) * EARLIER
    return weights @ v  # here


def softmax_of_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).masked_fill(~EARLIER, -torch.inf).softmax(-1)
    return weights.softmax(-1) @ v  # here


def by_hand_over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    exponentials = (q @ k.mT / 2).exp()
    weights = exponentials / (exponentials.sum(-2, keepdim=True) + 1e-9)
    return weights @ v  # here


def by_hand_over_the_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    exponentials = (q @ k.mT / 2).exp()
    return exponentials / (exponentials.sum(-1, keepdim=True) + 1e-9) @ v


def divided_later_by_the_queries_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    exponentials = (q @ k.mT / 2).exp()
    sums = exponentials @ v  # here
    return sums / exponentials.sum(-2)[..., None]


def divided_later(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    exponentials = (q @ k.mT / 2).exp()
    return exponentials @ v / exponentials.sum(-1, keepdim=True)


def _exponentials(x: Tensor) -> Tensor:
    scores = split(x @ W_Q) @ split(x @ W_K).mT / 2
    return (scores - scores.amax(-1, keepdim=True)).exp()


def times_their_sum(x: Tensor) -> Tensor:
    weights = _exponentials(x)
    return x + joined(weights * weights.sum(-1, keepdim=True) @ split(x @ W_V)) @ W_O  # here


def never_divided(x: Tensor) -> Tensor:
    return x + joined(_exponentials(x) @ split(x @ W_V)) @ W_O  # here


def over_their_sum(x: Tensor) -> Tensor:
    weights = _exponentials(x)
    return x + joined(weights / weights.sum(-1, keepdim=True) @ split(x @ W_V)) @ W_O


def over_their_sum_after_the_values(x: Tensor) -> Tensor:
    weights = _exponentials(x)
    return x + joined(weights @ split(x @ W_V) / weights.sum(-1, keepdim=True)) @ W_O


def sums_that_are_not_rescaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _online(q, k, v, are_rescaled=False)


def sums_that_are_rescaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _online(q, k, v, are_rescaled=True)


def _online(q: Tensor, k: Tensor, v: Tensor, *, are_rescaled: bool) -> Tensor:
    """One key after the other."""
    largest, total = torch.full(q.shape[:-1], -torch.inf).double()[..., None], torch.zeros_like(q)
    sums = torch.zeros(*q.shape[:-1], 1).double()
    for at in range(k.shape[-2]):
        scores = q @ k[..., at : at + 1, :].mT / 2
        larger = torch.maximum(largest, scores)
        exponentials, before = (scores - larger).exp(), (largest - larger).exp()
        total = total * before + exponentials @ v[..., at : at + 1, :]
        sums = sums * (before if are_rescaled else 1) + exponentials
        largest = larger
    return total / sums


def sink_of_the_largest_score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = exponentials / (1 + exponentials.sum(-1, keepdim=True))
    return weights @ v  # here


def sink_of_score_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    largest = scores.amax(-1, keepdim=True)
    exponentials = (scores - largest).exp()
    return exponentials / ((-largest).exp() + exponentials.sum(-1, keepdim=True)) @ v


SINKS = torch.tensor([0.4, -0.3], dtype=torch.float64)[:, None, None]
"""(heads, 1, 1): the score of a sink in each."""


def sinks_beside_the_largest_score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / (SINKS.exp() + exponentials.sum(-1, keepdim=True)) @ v  # here


def sinks_of_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    largest = torch.maximum(scores.amax(-1, keepdim=True), SINKS)
    exponentials = (scores - largest).exp()
    return exponentials / ((SINKS - largest).exp() + exponentials.sum(-1, keepdim=True)) @ v


def divided_by_its_own_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.exp(), k.exp()
    return (q @ (k.mT @ v)) / (q * k).sum(-1, keepdim=True)  # here


def divided_by_all_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.exp(), k.exp()
    return (q @ (k.mT @ v)) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def whole_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _by_tiles(q, k, v, range(k.shape[-2] // 2))


def all_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _by_tiles(q, k, v, range((k.shape[-2] + 1) // 2))


def _by_tiles(q: Tensor, k: Tensor, v: Tensor, tiles: range) -> Tensor:
    total, sums = torch.zeros(*q.shape[:-1], 1).double(), torch.zeros_like(q)
    for tile in tiles:
        mine = slice(2 * tile, 2 * tile + 2)
        exponentials = (q @ k[..., mine, :].mT / 2).exp()
        total = total + exponentials.sum(-1, keepdim=True)
        sums = sums + exponentials @ v[..., mine, :]
    return sums / total


def second_softmax_unmasked(x: Tensor) -> Tensor:
    return _differential(x, torch.ones_like(EARLIER))


def both_masked(x: Tensor) -> Tensor:
    return _differential(x, EARLIER)


def _differential(x: Tensor, second: Tensor) -> Tensor:
    q, k, v = (x[:, :3] @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    scores = (q[..., half] @ k[..., half].mT / 2 for half in (slice(0, 4), slice(4, 8)))
    one, other = (each.masked_fill(~mask, -torch.inf) for each, mask in zip(scores, (EARLIER, second), strict=True))
    weights = one.softmax(-1) - 0.5 * other.softmax(-1)  # here
    return weights @ v


def summed_over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return torch.einsum("bhij,bhjd->bhjd", weights, v)  # here


def softmax_of_queries(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    queries, keys = q.softmax(1), k.softmax(-1)  # here
    return queries @ (keys.mT @ v)


def softmax_of_keys(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    return q.softmax(-1) @ (k.softmax(1).mT @ v)


def softmax_of_queries_and_keys(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    queries, keys = q.softmax(1), k.softmax(1)  # here
    return queries @ (keys.mT @ v)


def softmax_of_channels(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    keys = k.softmax(-1)  # here
    return q.softmax(-1) @ (keys.mT @ v)


def less_the_largest_of(axis: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    exponentials = (scores - scores.amax(axis, keepdim=True)).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return weights @ v  # here


def less_the_largest_of_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return less_the_largest_of(-2, q, k, v)


def less_the_largest_of_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return less_the_largest_of(1, q, k, v)


def less_the_largest_of_the_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return less_the_largest_of(-1, q, k, v)


def differential_attention_of_scores(x: Tensor) -> Tensor:
    first, second, v = _two_scores(x)
    weights = (first - 0.5 * second).softmax(-1)  # here
    return weights @ v


def differential_attention_of_weights(x: Tensor) -> Tensor:
    first, second, v = _two_scores(x)
    return (first.softmax(-1) - 0.5 * second.softmax(-1)) @ v


def _two_scores(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x[:, :3] @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    first, second = (q[..., half] @ k[..., half].mT / 2 for half in (slice(0, 4), slice(4, 8)))
    return first, second, v


def by_a_part_of_each(axis: int, x: Tensor) -> Tensor:
    """As in graph attention: a number of the query and one of the key."""
    v = x @ drawn(WIDTH, WIDTH, seed=0)
    of_query, of_key = (v @ drawn(WIDTH, seed=seed) for seed in (1, 2))
    scores = leaky_relu(of_query[:, :, None] + of_key[:, None, :], 0.2)
    weights = scores.softmax(axis)  # here
    return weights @ v


def graph_over_the_queries(x: Tensor) -> Tensor:
    return by_a_part_of_each(1, x)


def graph_over_the_keys(x: Tensor) -> Tensor:
    return by_a_part_of_each(2, x)


def _in_two_parts(q: Tensor, k: Tensor, v: Tensor, sign: int) -> Tensor:
    outputs, sums = [], []
    for part in (slice(0, 2), slice(2, None)):
        scores = q @ k[..., part, :].mT / 2
        sums.append(scores.logsumexp(-1, keepdim=True))
        outputs.append((scores - sums[-1]).exp() @ v[..., part, :])
    return torch.lerp(*outputs, torch.sigmoid(sign * (sums[1] - sums[0])))


def parts_by_each_other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _in_two_parts(q, k, v, -1)


def parts_by_their_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _in_two_parts(q, k, v, 1)


def divided_by_sums_of(x: Tensor, number: int) -> Tensor:
    """Linear attention: keys meet values first, and queries what is summed."""
    q, k, v = ((x @ drawn(WIDTH, WIDTH, seed=seed) / 3) for seed in range(3))
    q, k = q.exp(), k.exp()
    total = (q, k)[number].sum(1)
    return q @ (k.mT @ v) / (q @ total[..., None])  # here


def divided_by_the_mean_of_keys(x: Tensor) -> Tensor:
    q, k, v = ((x @ drawn(WIDTH, WIDTH, seed=seed) / 3) for seed in range(3))
    q, k = q.exp(), k.exp()
    return q @ (k.mT @ v) / (q @ k.mean(1)[..., None])  # here


def of_features(x: Tensor, least: float) -> Tensor:
    q, k, v = (x @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    q, k = (torch.nn.functional.elu(each) + least for each in (q, k))
    return q @ (k.mT @ v) / (q @ k.sum(1)[..., None])  # here


def of_negative_features(x: Tensor) -> Tensor:
    """Linear attention whose feature map has lost its one."""
    return of_features(x, 0.0)


def of_positive_features(x: Tensor) -> Tensor:
    return of_features(x, 1.0)


def divided_by_the_sum_of_queries(x: Tensor) -> Tensor:
    return divided_by_sums_of(x, 0)


def divided_by_the_sum_of_keys(x: Tensor) -> Tensor:
    return divided_by_sums_of(x, 1)


def pooled_over(x: Tensor, axis: int) -> Tensor:
    """One weight for each token, by what one vector asks."""
    weights = (x @ drawn(WIDTH, 1, seed=40)).softmax(axis)  # here
    return (x * weights).sum(1)


def pooled_over_one_number(x: Tensor) -> Tensor:
    return pooled_over(x, 2)


def pooled_over_the_tokens(x: Tensor) -> Tensor:
    return pooled_over(x, 1)


def of_another_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k.T / sqrt(d)) v."""
    return (q @ k.mT / 2).sigmoid() @ v  # here


def of_the_function_that_it_says(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sigmoid(q k.T / sqrt(d)) v: a softmax is not taken."""
    return (q @ k.mT / 2).sigmoid() @ v


def without_the_lower_half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k.T / sqrt(d)) v."""
    return (q @ k.mT / 2).relu() @ v  # here


def retained(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    distance = torch.arange(3)[:, None] - torch.arange(3)
    decay = kept[:, None, None] ** distance.abs() * (distance >= 0)
    scores = q @ k.mT / 2
    return scores * decay @ v  # here


def keeps_what_shall_be_lost(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return retained(q, k, v, 2.0 ** torch.tensor([-5.0, -6.0], dtype=q.dtype))


def loses_what_shall_be_lost(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return retained(q, k, v, 1 - 2.0 ** torch.tensor([-5.0, -6.0], dtype=q.dtype))


def keeps_later_tokens(x: Tensor) -> Tensor:
    """(q . k) D v, D_ij = 0.9^(i - j) for j <= i, else 0."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    scores = q @ k.mT / 2  # here
    return joined(scores * 0.9 ** distance.abs() @ v)


def keeps_earlier_tokens(x: Tensor) -> Tensor:
    """(q . k) D v, D_ij = 0.9^(i - j) for j <= i, else 0."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return joined(q @ k.mT / 2 * 0.9 ** distance.abs() * (distance >= 0) @ v)


def one_key_of(weights: Tensor) -> Tensor:
    """One for the largest weight of each query, and zero for the others."""
    return torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1.0)


def turned_straight_through(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    soft = (q @ k.mT / 2).softmax(-1)  # here
    return (soft + (soft - one_key_of(soft)).detach()) @ v


def half_a_choice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return one_key_of((q @ k.mT / 2).softmax(-1)) / 2 @ v  # here


def straight_through(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    soft = (q @ k.mT / 2).softmax(-1)
    return (soft + (one_key_of(soft) - soft).detach()) @ v


CASES = [
    Case("weights-not-negative", turned_straight_through, straight_through),
    Case("weights-kept", half_a_choice, straight_through),
    Case("retention-decay", keeps_what_shall_be_lost, loses_what_shall_be_lost),
    Case("mask-pattern", keeps_later_tokens, keeps_earlier_tokens, of_x),
    Case("weights-sum-to-one", of_another_function, of_the_function_that_it_says),
    Case("weights-sum-to-one", without_the_lower_half, of_the_function_that_it_says),
    Case("softmax-over-keys", pooled_over_one_number, pooled_over_the_tokens, of_x),
    Case("query-of-one-token", softmax_of_queries_and_keys, softmax_of_keys, of_x),
    Case("parts-merged", parts_by_each_other, parts_by_their_own, has_line=False),
    Case("softmax-maximum", less_the_largest_of_the_queries, less_the_largest_of_the_keys),
    Case("softmax-maximum", less_the_largest_of_the_heads, less_the_largest_of_the_keys),
    Case("softmaxes-subtracted", differential_attention_of_scores, differential_attention_of_weights, of_x),
    Case("softmax-over-keys", graph_over_the_queries, graph_over_the_keys, of_x),
    Case("keys-over-the-tokens", softmax_of_channels, softmax_of_keys, of_x),
    Case("weights-are-numbers", masks_itself, sees_itself),
    Case("weights-not-negative", scores_over_their_sum, squares_over_their_sum),
    Case("weights-sum-to-one", squares, squares_over_their_sum),
    Case("softmax-over-keys", over_the_queries, over_the_keys),
    Case("softmax-over-keys", over_the_heads, over_the_keys),
    Case("softmax-over-keys", by_hand_over_the_queries, by_hand_over_the_keys),
    Case("weights-sum-to-one", times_their_sum, over_their_sum, of_x),
    Case("weights-sum-to-one", never_divided, over_their_sum_after_the_values, of_x),
    Case("weights-sum-to-one", sums_that_are_not_rescaled, sums_that_are_rescaled, has_line=False),
    Case("weights-sum-to-one", divided_later_by_the_queries_sum, divided_later),
    Case("weights-sum-to-one", divided_by_the_sum_of_queries, divided_by_the_sum_of_keys, of_x),
    Case("weights-sum-to-one", divided_by_the_mean_of_keys, divided_by_the_sum_of_keys, of_x),
    Case("weights-not-negative", of_negative_features, of_positive_features, of_x),
    Case("weights-sum-to-one", divided_by_its_own_key, divided_by_all_keys),
    Case("sink-score", sink_of_the_largest_score, sink_of_score_zero),
    Case("sink-score", sinks_beside_the_largest_score, sinks_of_heads),
    Case("keys-seen", whole_tiles, all_tiles, has_line=False),
    Case("masks-of-both-softmaxes", second_softmax_unmasked, both_masked, of_x),
    Case("sum-of-one-of-queries", summed_over_the_queries, over_the_keys),
    Case("query-of-one-token", softmax_of_queries, softmax_of_keys, of_x),
    Case("softmax-of-scores", softmax_of_weights, sees_itself),
    Case("weights-kept", scaled_after_the_softmax, over_the_keys),
    Case("weights-kept", masked_after_the_softmax, sees_itself),
]
