"""Prefixes that are handed over: all tokens of a row see them, and what comes after them is causal."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case, of_q_k_v
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
    Case("mask-pattern", joined_by_and, of_its_row, of_prefixes_of_1),
]
