"""Where what is attended to goes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_styles import heads_call
from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation

W_Q, W_K, W_V, W_O = (drawn(WIDTH, WIDTH, seed=seed) for seed in (10, 11, 12, 13))


def heads_of(x: Tensor) -> Tensor:
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return weights @ split(x @ W_V)  # here


def weights_added_up(x: Tensor) -> Tensor:
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return joined(torch.einsum("bhqk,bhtd->bhqd", weights, split(x @ W_V)))  # here


def values_of_no_token(x: Tensor) -> Tensor:
    values = torch.cat([split(x @ W_V), torch.zeros_like(split(x))])[len(x) :]
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return joined(weights @ values) @ W_O + W_O[0]  # here


def values_of_the_tokens(x: Tensor) -> Tensor:
    values = torch.cat([split(x @ W_V), torch.zeros_like(split(x))])[: len(x)]
    weights = (split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return joined(weights @ values) @ W_O + W_O[0]


def joined_without_a_transpose(x: Tensor) -> Tensor:
    return heads_of(x).reshape(x.shape) @ W_O


def tokens_turned(x: Tensor) -> Tensor:
    return joined(heads_of(x)).flip(1) @ W_O


def inner_tokens_turned(x: Tensor) -> Tensor:
    """Of five, so that the first, the middle and the last are at their places."""
    return joined(heads_of(x))[:, [0, 3, 2, 1, 4]] @ W_O


def added_to_all_tokens(x: Tensor) -> Tensor:
    """The first token alone asks, and what it reads is added to every token of its sample (a broadcast sum)."""
    weights = (split(x[:, :1] @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1)
    return x + joined(weights @ split(x @ W_V)) @ W_O


def tokens_in_the_place_of_samples(x: Tensor) -> Tensor:
    return heads_of(x).permute(2, 0, 1, 3).flatten(2) @ W_O


def reshaped_to_tokens_first(x: Tensor) -> Tensor:
    return attention(x).reshape(x.shape[1], x.shape[0], WIDTH)


def last_head_dropped(x: Tensor) -> Tensor:
    heads = heads_of(x)
    return joined(torch.cat([heads[:, :1], heads[:, :1]], 1)) @ W_O


def some_tokens_by_weights_of_their_own(x: Tensor) -> Tensor:
    """As in Longformer, whose global tokens have projections of their own: one line computes both."""
    local, full = (heads_of(each) for each in (x, x @ W_O))
    return joined(torch.where(torch.arange(x.shape[1])[:, None] == 0, full, local)) @ W_O


def projected_twice(x: Tensor) -> Tensor:
    heads = joined(heads_of(x))
    return heads @ W_O @ W_O  # here


def attention(x: Tensor) -> Tensor:
    return joined(heads_of(x)) @ W_O


def heads_turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (q @ k.mT / 2).softmax(-1) @ v  # here
    return heads.flip(1)


def heads_kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2).softmax(-1) @ v


def heads_after_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return heads_kept(q, k, v).transpose(1, 2)


def seen_as_heads_after_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (q @ k.mT / 2).softmax(-1) @ v  # here
    return heads.reshape(q.shape[0], q.shape[2], q.shape[1], -1)


def heads_joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined(heads_kept(q, k, v))


def seen_as_joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return seen_as_heads_after_tokens(q, k, v).flatten(2)


def of_other_sizes(function: Any) -> Invocation:
    """Samples, heads and tokens of other numbers each."""
    return heads_call(function, *(drawn(2, 3, 5, 4, seed=seed) for seed in range(3)))


def one_letter_for_queries_and_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / 2).softmax(-1)
    return torch.einsum("bhtt,bhtd->bhtd", weights, v)  # here


def two_letters(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhts,bhsd->bhtd", (q @ k.mT / 2).softmax(-1), v)


def token_1_of_all_heads(x: Tensor) -> Tensor:
    return attention(x)[:, 1]


def token_1_of_the_first_head(x: Tensor) -> Tensor:
    return last_head_dropped(x)[:, 1]


def bias_of_each_head(x: Tensor, b_o: Tensor) -> Tensor:
    parts = zip(heads_of(x).unbind(1), W_O.chunk(2), strict=True)
    return sum((head @ rows + b_o for head, rows in parts), torch.zeros_like(x))  # here


def bias_of_all_heads(x: Tensor, b_o: Tensor) -> Tensor:
    parts = zip(heads_of(x).unbind(1), W_O.chunk(2), strict=True)
    return sum((head @ rows for head, rows in parts), torch.zeros_like(x)) + b_o


def with_a_bias(function: Any) -> Invocation:
    call = of_x(function)
    call.arguments["b_o"] = drawn(WIDTH, seed=14)
    return call


def gated_by_any_number(x: Tensor) -> Tensor:
    """o = g * attention(x), g = sigmoid(x W)."""
    return joined(heads_of(x)) @ W_O * (x @ W_Q)


def gated_by_shares(x: Tensor) -> Tensor:
    """o = g * attention(x), g = sigmoid(x W)."""
    return joined(heads_of(x)) @ W_O * (x @ W_Q).sigmoid()


def gated_as_it_says(x: Tensor) -> Tensor:
    """o = g * attention(x), g = x W; or g = sigmoid(x W), as in the paper."""
    return gated_by_any_number(x)


def own_value_of_a_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhts,bhtd->bhtd", (q @ k.mT / 2).softmax(-1), v)  # here


def weighted_mean_beside_the_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two letters, and each query's own value besides."""
    return two_letters(q, k, v) + torch.einsum("bhtd,bht->bhtd", v, torch.ones_like(v[..., 0]))


CASES = [
    Case("value-of-the-key", own_value_of_a_query, two_letters),
    Case("value-of-the-key", own_value_of_a_query, weighted_mean_beside_the_query),
    Case("function-as-documented", gated_by_any_number, gated_by_shares, of_x, has_line=False),
    Case("function-as-documented", gated_by_any_number, gated_as_it_says, of_x, has_line=False),
    Case("value-of-the-key", weights_added_up, heads_of, of_x),
    Case("value-of-the-key", values_of_no_token, values_of_the_tokens, of_x),
    Case("values-summed", one_letter_for_queries_and_keys, two_letters),
    Case("output-of-the-token", joined_without_a_transpose, attention, of_x),
    Case("output-of-the-token", tokens_turned, attention, of_x),
    Case("output-of-the-token", joined_without_a_transpose, added_to_all_tokens, of_x),
    Case("output-of-the-token", inner_tokens_turned, attention, partial(of_x, tokens=5)),
    Case("output-of-the-token", tokens_in_the_place_of_samples, attention, of_x),
    Case("output-of-the-token", reshaped_to_tokens_first, attention, of_x),
    Case("heads-in-output", last_head_dropped, attention, of_x),
    Case("heads-in-output", last_head_dropped, some_tokens_by_weights_of_their_own, of_x),
    Case("heads-in-output", token_1_of_the_first_head, token_1_of_all_heads, partial(of_x, tokens=5)),
    Case("projected-once", projected_twice, attention, of_x),
    Case("projected-once", bias_of_each_head, bias_of_all_heads, with_a_bias),
    Case("output-of-the-head", heads_turned, heads_kept),
    Case("output-of-the-token", seen_as_heads_after_tokens, heads_after_tokens, of_other_sizes),
    Case("output-of-the-token", seen_as_joined, heads_joined, of_other_sizes),
    Case("output-of-the-token", seen_as_joined, heads_joined, has_line=False),
]
