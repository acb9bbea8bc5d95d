"""Whose queries, keys and values are multiplied."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_q_k_v, of_x, of_x_and_context, split
from regard.check.target import Invocation, Stream

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) for seed in (10, 11, 12))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v


def queries_less_their_mean_over_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q - q.mean(2, keepdim=True)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def queries_less_their_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q - q.mean(3, keepdim=True), k, v)


def keys_of_two_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k + k.roll(1, 2)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def keys_of_two_channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k + k.roll(1, 3), v)


def values_of_all_tokens_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    v = v.cumsum(2)
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v  # here


def values_of_all_channels_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v.cumsum(3))


def keys_and_values_of_another_sample(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.flip(0), v.flip(0)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def batch_turned_there_and_back(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(*(each.flip(0) for each in (q, k, v))).flip(0)


def keys_as_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = k @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def queries_as_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ q.mT / 2  # here
    return scores.softmax(-1) @ v


def pooled_by_learned_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence, handed over as all three, is read by a query of each head's own."""
    asking = drawn(1, v.shape[1], 1, v.shape[3], seed=5).expand(q.shape[0], -1, -1, -1)
    k = 2 * v
    scores = asking @ k.mT / 2
    return scores.softmax(-1) @ v


def keys_as_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ k


def values_of_x(x: Tensor, context: Tensor) -> Tensor:
    q, k, v = split(x @ W_Q), split(context @ W_K), split(x @ W_V)
    scores = q @ k.mT / 2  # here
    return joined(scores.softmax(-1) @ v)


def keys_of_x(x: Tensor, key_or_value_tokens: Tensor) -> Tensor:
    q, k, v = split(x @ W_Q), split(x @ W_K), split(key_or_value_tokens @ W_V)
    scores = q @ k.mT / 2  # here
    return joined(scores.softmax(-1) @ v)


def keys_of_what_says_so(x: Tensor, key_or_value_tokens: Tensor) -> Tensor:
    return cross_attention(x, key_or_value_tokens)


def of_x_and_keys(function: Any) -> Invocation:
    """Of x, and of what is called after keys and values."""
    streams = [Stream("x", "x", 0, (1,)), Stream("key_or_value_tokens", "context", 0, (1,))]
    arguments = {each.argument: drawn(2, 3, WIDTH, seed=seed) for seed, each in enumerate(streams)}
    return Invocation(function, arguments, [*arguments], streams)


def queries_of_the_context(x: Tensor, context: Tensor) -> Tensor:
    q, k, v = split(context @ W_Q), split(x @ W_K), split(x @ W_V)
    scores = q @ k.mT / 2  # here
    return joined(scores.softmax(-1) @ v)


def cross_attention(x: Tensor, context: Tensor) -> Tensor:
    return joined(attention(split(x @ W_Q), split(context @ W_K), split(context @ W_V)))


def over_the_heads(x: Tensor) -> Tensor:
    q, k, v = ((x @ each).unflatten(-1, (HEADS, -1)) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / 2  # here
    return (scores.softmax(-1) @ v).flatten(2)


def self_attention(x: Tensor) -> Tensor:
    return joined(attention(split(x @ W_Q), split(x @ W_K), split(x @ W_V)))


def tokens_first_unlike_its_documentation(x: Tensor) -> Tensor:
    """Attention of x (batch, seq, width)."""
    return self_attention(x.transpose(0, 1)).transpose(0, 1)


def tokens_first_as_documented(x: Tensor) -> Tensor:
    """Attention of x (seq, batch, width)."""
    return self_attention(x.transpose(0, 1)).transpose(0, 1)


def of_tokens_first(function: Any) -> Invocation:
    """A call with the samples on the second axis."""
    return Invocation(function, {"x": drawn(4, 2, WIDTH, seed=0)}, ["x"], [Stream("x", "x", 1, (0,))])


def queries_of_two_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q + q.flip(1)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def keys_of_the_other_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def values_of_the_other_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = k.repeat_interleave(2, 1), v.repeat(1, 2, 1, 1)
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v  # here


def keys_and_values_of_their_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


def in_groups(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 4 heads of width 2, keys and values of 2."""
    queries, keys, values = x @ W_Q, (x @ W_K)[..., :4], (x @ W_V)[..., :4]
    return split(queries, 4), split(keys), split(values)


def grouped_in_two_ways(x: Tensor) -> Tensor:
    q, k, v = in_groups(x)
    weights = (q @ k.repeat_interleave(2, 1).mT / 2**0.5).softmax(-1)
    return joined(weights @ v.repeat(1, 2, 1, 1))  # here


def grouped_in_one_way(x: Tensor) -> Tensor:
    q, k, v = in_groups(x)
    weights = (q @ k.repeat_interleave(2, 1).mT / 2**0.5).softmax(-1)
    return joined(weights @ v.repeat_interleave(2, 1))


def grouped_as_documented(x: Tensor) -> Tensor:
    """Query heads [g * r, (g + 1) * r) share one key head."""
    return grouped_in_one_way(x)


def grouped_as_tiles(x: Tensor) -> Tensor:
    """Query heads [g * r, (g + 1) * r) share one key head."""
    q, k, v = in_groups(x)
    weights = (q @ k.repeat(1, 2, 1, 1).mT / 2**0.5).softmax(-1)  # here
    return joined(weights @ v.repeat(1, 2, 1, 1))


def first_head_each_time(x: Tensor) -> Tensor:
    q, k, v = (split(x @ each, 4)[:, [0, 0, 0, 0]] for each in (W_Q, W_K, W_V))
    weights = (q @ k.mT / 2**0.5).softmax(-1)  # here
    return joined(weights @ v)


def each_head_once(x: Tensor) -> Tensor:
    q, k, v = (split(x @ each, 4) for each in (W_Q, W_K, W_V))
    weights = (q @ k.mT / 2**0.5).softmax(-1)
    return joined(weights @ v)


def values_one_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v.roll(1, 2)  # here


def keys_and_values_one_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k.roll(1, 2), v.roll(1, 2))


def values_of_another_sample(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v.flip(0)  # here


def weights_of_several_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    skewed = torch.stack([weights[..., key].roll(key, -1) for key in range(k.shape[2])], -1)
    return skewed @ v  # here


def weights_stacked_by_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return torch.stack([weights[..., key] for key in range(k.shape[2])], -1) @ v


def weights_of_several_heads(x: Tensor) -> Tensor:
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    mixed = torch.cat([weights[..., :2], weights.flip(1)[..., 2:]], -1)
    return joined(mixed @ split(x @ W_V))  # here


of_groups = functools.partial(of_q_k_v, queries_heads=4)


def of_normalized(x: Tensor, axis: int) -> Tensor:
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    q, k = (torch.nn.functional.normalize(each, dim=axis) for each in (q, k))  # here
    return joined((5 * q @ k.mT).softmax(-1) @ v)


def normalized_over_the_heads(x: Tensor) -> Tensor:
    return of_normalized(x, 1)


def normalized_over_the_channels(x: Tensor) -> Tensor:
    return of_normalized(x, -1)


def values_summed_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ v.sum(1, keepdim=True)  # here


def projected_and_summed_over_heads(x: Tensor) -> Tensor:
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return joined(weights @ split(x @ W_V).sum(1, keepdim=True))  # here


PLACES = drawn(8, WIDTH, seed=20)
"""(positions, width)."""


def placed(x: Tensor, *, keys_too: bool) -> Tensor:
    at = x + PLACES[: x.shape[1]]
    scores = split(at @ W_Q) @ split((at if keys_too else x) @ W_K).mT / 2  # here
    return joined(scores.softmax(-1) @ split(x @ W_V))


def keys_alone_normalized(x: Tensor) -> Tensor:
    """Attention of normalized queries and keys."""
    k = torch.nn.functional.normalize(split(x @ W_K), dim=-1)
    scores = 7 * split(x @ W_Q) @ k.mT  # here
    return joined(scores.softmax(-1) @ split(x @ W_V))


def both_normalized(x: Tensor) -> Tensor:
    """Attention of normalized queries and keys."""
    q, k = (torch.nn.functional.normalize(split(x @ each), dim=-1) for each in (W_Q, W_K))
    return joined((7 * q @ k.mT).softmax(-1) @ split(x @ W_V))


def places_of_queries_alone(x: Tensor) -> Tensor:
    return placed(x, keys_too=False)


def places_of_queries_and_keys(x: Tensor) -> Tensor:
    return placed(x, keys_too=True)


def with_sinusoids(x: Tensor, exponents: Tensor) -> Tensor:
    angles = torch.arange(x.shape[1]).double()[:, None] * 10000.0**exponents
    x = x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)  # here
    return joined((split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1) @ split(x @ W_V))


def frequencies_that_grow(x: Tensor) -> Tensor:
    return with_sinusoids(x, torch.arange(0, WIDTH, 2).double() / WIDTH)


def frequencies_in_steps(x: Tensor) -> Tensor:
    """0, 0.4, 0.8, ...: the exponential is missing."""
    return with_sinusoids(x, (0.4 * torch.arange(WIDTH // 2).double()).log() / torch.tensor(10000.0).log())


def frequencies_that_fall(x: Tensor) -> Tensor:
    return with_sinusoids(x, -torch.arange(0, WIDTH, 2).double() / WIDTH)


def projected(x: Tensor) -> Tensor:
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return joined(weights @ split(x @ W_V))


CASES = [
    Case("value-heads-paired", values_summed_over_heads, attention),
    Case("positions-without-effect", places_of_queries_alone, places_of_queries_and_keys, of_x),
    Case("value-heads-paired", projected_and_summed_over_heads, projected, of_x),
    Case("sinusoid-frequencies", frequencies_that_grow, frequencies_that_fall, of_x),
    Case("sinusoid-frequencies", frequencies_in_steps, frequencies_that_fall, of_x),
    Case("query-of-one-token", queries_less_their_mean_over_tokens, queries_less_their_mean),
    Case("key-of-one-token", keys_of_two_tokens, keys_of_two_channels),
    Case("value-of-one-token", values_of_all_tokens_before, values_of_all_channels_before),
    Case("samples-apart", keys_and_values_of_another_sample, batch_turned_there_and_back),
    Case("queries-from-their-input", keys_as_queries, attention),
    Case("keys-from-their-input", queries_as_keys, attention),
    Case("keys-from-their-input", queries_as_keys, pooled_by_learned_queries),
    Case("values-from-their-input", keys_as_values, attention),
    Case("values-from-the-keys-input", values_of_x, cross_attention, of_x_and_context),
    Case("values-from-the-keys-input", keys_of_x, keys_of_what_says_so, of_x_and_keys),
    Case("queries-from-x", queries_of_the_context, cross_attention, of_x_and_context),
    Case("norm-used", keys_alone_normalized, both_normalized, of_x),
    Case("norm-over-channels", normalized_over_the_heads, normalized_over_the_channels, of_x),
    Case("attends-to-tokens", over_the_heads, self_attention, of_x),
    Case(
        "axes-as-documented",
        tokens_first_unlike_its_documentation,
        tokens_first_as_documented,
        of_tokens_first,
        has_line=False,
    ),
    Case("heads-apart", queries_of_two_heads, attention),
    Case("heads-paired", keys_of_the_other_group, keys_and_values_of_their_group, of_groups),
    Case("value-heads-paired", values_of_the_other_group, keys_and_values_of_their_group, of_groups),
    Case("heads-paired", grouped_as_tiles, grouped_as_documented, of_x),
    Case("value-heads-paired", grouped_in_two_ways, grouped_in_one_way, of_x),
    Case("heads-differ", first_head_each_time, each_head_once, of_x),
    Case("value-of-the-key", values_one_behind, keys_and_values_one_behind),
    Case("value-of-the-sample", values_of_another_sample, batch_turned_there_and_back),
    Case("sum-of-one-of-queries", weights_of_several_queries, weights_stacked_by_key),
    Case("sum-of-one-of-heads", weights_of_several_heads, self_attention, of_x),
]
