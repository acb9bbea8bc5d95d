"""Prefixes that are handed over: all tokens of a row see them, and what comes after them is causal."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_q_k_v, of_x, split
from regard.check.target import Invocation


def visible(q: Tensor, prefix_len: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2])
    return (places[:, None] >= places) | (places < prefix_len[:, None, None])[:, None]


def masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1) @ v  # here


def of_its_row(q: Tensor, k: Tensor, v: Tensor, prefix_len: Tensor | None = None) -> Tensor:
    return masked(q, k, v, visible(q, torch.zeros(len(q)) if prefix_len is None else prefix_len))


def of_the_first_row(q: Tensor, k: Tensor, v: Tensor, prefix_len: Tensor | None = None) -> Tensor:
    return masked(q, k, v, visible(q, torch.zeros(len(q)) if prefix_len is None else prefix_len[:1]))


def of_a_number(q: Tensor, k: Tensor, v: Tensor, prefix_len: int) -> Tensor:
    return masked(q, k, v, visible(q, torch.tensor([prefix_len])))


def one_too_many(q: Tensor, k: Tensor, v: Tensor, prefix_len: int) -> Tensor:
    return masked(q, k, v, visible(q, torch.tensor([prefix_len + 1])))


def joined_by_and(q: Tensor, k: Tensor, v: Tensor, prefix_len: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2])
    return masked(q, k, v, (places[:, None] >= places) & (places < prefix_len[:, None, None])[:, None])


def in_two_layers(x: Tensor, allowed: Tensor) -> Tensor:
    for layer in range(2):
        q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=60 + 3 * layer + number) / 3)) for number in range(3))
        x = x + joined(masked(q, k, v, allowed))
    return x


def keys_of_the_prefix(x: Tensor, prefix_len: Tensor) -> Tensor:
    return in_two_layers(x, visible(x, prefix_len))


def queries_of_the_prefix(x: Tensor, prefix_len: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    allowed = (places[:, None] >= places) | (places[:, None] < prefix_len[:, None, None])
    return in_two_layers(x, allowed[:, None])


def of_x_and_prefixes(function: object) -> Invocation:
    call = of_x(function)
    call.arguments["prefix_len"], call.prefixes = torch.full((2,), 2), ["prefix_len"]
    return call


def of_x_and_lengths(function: object) -> Invocation:
    call = of_x(function)
    call.arguments["lengths"], call.lengths = torch.full((2,), 4), ["lengths"]
    return call


def lengths_of_the_whole_batch(x: Tensor, lengths: Tensor) -> Tensor:
    allowed = torch.arange(x.shape[1]) < lengths.amax()
    return in_two_layers(x, allowed[None, None, None])


def lengths_of_each(x: Tensor, lengths: Tensor) -> Tensor:
    return in_two_layers(x, (torch.arange(x.shape[1]) < lengths[:, None])[:, None, None])


def lengths_of_the_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """What is returned of padding is nothing; no key is hidden."""
    counts = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
    return in_two_layers(x, torch.ones(x.shape[1], dtype=torch.bool)) * counts


def of_a_prefix(function: object) -> Invocation:
    call = of_q_k_v(function)
    call.prefixes = ["prefix_len"]
    return call


def of_a_prefix_of_1(function: object) -> Invocation:
    call = of_a_prefix(function)
    call.arguments["prefix_len"] = 1
    return call


def of_prefixes_of_1(function: object) -> Invocation:
    call = of_a_prefix(function)
    call.arguments["prefix_len"] = torch.ones(2, dtype=torch.long)
    return call


CASES = [
    Case("mask-argument", of_the_first_row, of_its_row, of_a_prefix),
    Case("mask-argument", one_too_many, of_a_number, of_a_prefix_of_1),
    Case("mask-argument", queries_of_the_prefix, keys_of_the_prefix, of_x_and_prefixes, attentions=2),
    Case("mask-argument", lengths_of_the_whole_batch, lengths_of_each, of_x_and_lengths, attentions=2),
    Case("mask-argument", lengths_of_the_whole_batch, lengths_of_the_mean, of_x_and_lengths, attentions=2),
    Case("mask-pattern", joined_by_and, of_its_row, of_prefixes_of_1),
]
