"""Rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_styles import heads_call
from property_cases import HEADS, Case, drawn, joined, of_q_k_v, of_x, split
from regard.check.target import Invocation

ANGLES = torch.arange(3.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)
"""(tokens, width)."""


def half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


def rotated(x: Tensor, angles: Tensor = ANGLES) -> Tensor:
    return x * angles.cos() + half_turned(x) * angles.sin()


def values_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rotary positions of queries and keys."""
    q, k, v = rotated(q), rotated(k), rotated(v)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def values_in_the_place_of_keys_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ k.mT / 2  # here
    return scores.softmax(-1) @ rotated(v)


def all_three_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values are rotated as well."""
    return (rotated(q) @ rotated(k).mT / 2).softmax(-1) @ rotated(v)


def all_three_exchanged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The half that is turned in has no minus: positions multiply queries, keys and values, and rotate none."""
    q, k, v = (x * ANGLES.cos() + x.roll(2, -1) * ANGLES.sin() for x in (q, k, v))
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def by_matrices(q: Tensor, k: Tensor, v: Tensor, *, row: int) -> Tensor:
    """Rotated by a matrix for each token, whose last cosine stands in some row."""
    angles, matrices = ANGLES[:, :2], torch.zeros(3, 4, 4, dtype=torch.float64)
    for pair in (0, 1):
        at, then = 2 * pair, 2 * pair + 1
        matrices[:, at if pair == 0 else row, at] = angles[:, pair].cos()
        matrices[:, at, then], matrices[:, then, at] = -angles[:, pair].sin(), angles[:, pair].sin()
        matrices[:, then, then] = angles[:, pair].cos()
    q, k = (torch.einsum("bhtd,ted->bhte", each, matrices) for each in (q, k))
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def matrices_with_a_wrong_entry(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_matrices(q, k, v, row=0)


def matrices_of_rotations(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_matrices(q, k, v, row=2)


def queries_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def keys_rotated_the_other_way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ rotated(k, -ANGLES).mT / 2  # here
    return scores.softmax(-1) @ v


def stretched(x: Tensor) -> Tensor:
    return x * ANGLES.cos() + x * ANGLES.sin()


def queries_and_keys_stretched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = stretched(q) @ stretched(k).mT / 2  # here
    return scores.softmax(-1) @ v


def normalized_queries_and_keys_stretched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    scores = stretched(q) @ stretched(k).mT  # here
    return scores.softmax(-1) @ v


def normalized_queries_and_keys_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    return (rotated(q) @ rotated(k).mT).softmax(-1) @ v


def queries_further_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q, ANGLES + 3 * ANGLES[1]) @ rotated(k).mT / 2  # here
    return scores.softmax(-1) @ v


def causal_queries_further_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask says that queries and keys are of the same tokens."""
    scores = rotated(q, ANGLES + 3 * ANGLES[1]) @ rotated(k).mT / 2  # here
    return scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1) @ v


def causal_both_further_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (rotated(each, ANGLES + 3 * ANGLES[1]) for each in (q, k))
    return (q @ k.mT / 2).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1) @ v


def both_further_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    further = ANGLES + 3 * ANGLES[1]
    return (rotated(q, further) @ rotated(k, further).mT / 2).softmax(-1) @ v


def of_x_alone(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Invocation:
    """A call of x with 2 heads, of which queries, keys and values are made."""
    projections = [drawn(8, 8, seed=seed) / 3 for seed in range(3)]
    return of_x(lambda x: joined(function(*(split(x[:, :3] @ each) for each in projections))))


def rotated_by_the_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    angles = ANGLES[: q.shape[1], None] + 1
    scores = rotated(q, angles) @ rotated(k, angles).mT / 2  # here
    return scores.softmax(-1) @ v


def both_parts_rotated_by_the_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each half is written as a sum of both: neither number stands first in its own."""
    angles = torch.arange(q.shape[1]).double()[:, None, None] * ANGLES[1, :2]

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)

    scores = turned(q) @ turned(k).mT / 2  # here
    return scores.softmax(-1) @ v


def with_frequencies(q: Tensor, k: Tensor, v: Tensor, exponents: Tensor, base: float = 10000.0) -> Tensor:
    angles = torch.arange(q.shape[-2]).double()[:, None] * (base**-exponents).repeat(2)  # here
    return (rotated(q, angles) @ rotated(k, angles).mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def keys_of_halves_of_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ rotated(torch.cat((k[..., :2], q[..., 2:]), -1)).mT / 2  # here
    return scores.softmax(-1) @ v


def exponents_half_as_fast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, torch.arange(2).double() / 4)


def exponents_of_no_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """2i, and not 2i/d."""
    return with_frequencies(q, k, v, torch.arange(0, 4, 2).double())


def exponents_twice_as_fast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, 2 * torch.arange(0, 4, 2).double() / 4)


def frequencies_that_grow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, -torch.arange(0, 4, 2).double() / 4)


def scaled_without_a_scaling(q: Tensor, k: Tensor, v: Tensor, rope_scaling: dict[str, float] | None = None) -> Tensor:
    scale = 3.0 if rope_scaling is None else 1 / rope_scaling["factor"]
    return with_scaled_positions(q, k, v, scale)


def unscaled_without_a_scaling(q: Tensor, k: Tensor, v: Tensor, rope_scaling: dict[str, float] | None = None) -> Tensor:
    scale = 1.0 if rope_scaling is None else 1 / rope_scaling["factor"]
    return with_scaled_positions(q, k, v, scale)


def scaled_always(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_scaled_positions(q, k, v, scale=3.0)


def with_scaled_positions(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    angles = scale * torch.arange(3).double()[:, None] * (10000.0 ** (-torch.arange(2).double() / 2)).repeat(2)  # here
    return (rotated(q, angles) @ rotated(k, angles).mT / 2).softmax(-1) @ v


def frequencies_of_the_paper(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, torch.arange(0, 4, 2).double() / 4)


def of_wide_heads(function: Any) -> Invocation:
    """A call of two heads of 8 channels."""
    return heads_call(function, *(drawn(2, HEADS, 3, 8, seed=seed) for seed in range(3)))


def every_second_frequency_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of four pairs: they turn by the first and the third frequency, twice."""
    return with_frequencies(q, k, v, torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64))


def frequencies_of_four_pairs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, torch.arange(4).double() / 4)


def frequencies_of_another_base(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return with_frequencies(q, k, v, torch.arange(0, 4, 2).double() / 4, base=100.0)


def rotary(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ rotated(k).mT / 2
    return scores.softmax(-1) @ v


def complex_product(q: Tensor, k: Tensor, v: Tensor, *, turned_back: bool) -> Tensor:
    """Rotated as complex numbers, which are multiplied as such."""
    turns = torch.polar(torch.ones_like(ANGLES[:, :2]), ANGLES[:, :2])
    q, k = (torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous()) * turns for each in (q, k))
    scores = (q @ (k.conj() if turned_back else k).mT).real / 2  # here
    return scores.softmax(-1) @ v


def keys_not_conjugated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return complex_product(q, k, v, turned_back=False)


def keys_conjugated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return complex_product(q, k, v, turned_back=True)


EXPERTS = drawn(5, 4, 4, seed=11)
ROUTER = drawn(4, 5, seed=12)


def queries_of_experts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query is made by the expert that its content chooses: the queries of an expert in one product."""
    rows = q.flatten(0, 2)
    expert, order = (rows @ ROUTER).topk(1).indices.flatten().sort()
    parts = rows[order].split(expert.bincount(minlength=5).tolist())
    made = [part @ weight for part, weight in zip(parts, EXPERTS, strict=True)]
    return rotary(torch.zeros_like(rows).index_add(0, order, torch.cat(made)).view_as(q), k, v)


def in_two_parts(q: Tensor, k: Tensor, v: Tensor, angles_of_keys: Tensor) -> Tensor:
    """Half of the width is rotated, as in multi-head latent attention."""
    near, far = q.chunk(2, -1)
    keys, turned = k.chunk(2, -1)
    products = near @ keys.mT + rotated(far, ANGLES[:, ::2]) @ rotated(turned, angles_of_keys).mT
    scores = products / 2  # here
    return scores.softmax(-1) @ v


def queries_of_a_part_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_two_parts(q, k, v, 0 * ANGLES[:1, ::2])


def a_part_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_two_parts(q, k, v, ANGLES[:, ::2])


def turned_by_no_angle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = rotated(q, ANGLES[:1])  # here
    scores = q @ rotated(k, ANGLES[:1]).mT / 2
    return scores.softmax(-1) @ v


def parts_of_keys_exchanged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = torch.cat((k[..., 2:], rotated(k[..., :2], ANGLES[:, ::2])), -1)
    scores = torch.cat((rotated(q[..., :2], ANGLES[:, ::2]), q[..., 2:]), -1) @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def parts_in_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (torch.cat((rotated(each[..., :2], ANGLES[:, ::2]), each[..., 2:]), -1) for each in (q, k))
    return (q @ k.mT / 2).softmax(-1) @ v


LEARNED = drawn(5, 4, seed=9)
"""One vector for each distance of three tokens."""


def distances_by_the_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = q @ LEARNED[:3].T  # here
    return ((q @ k.mT + logits) / 2).softmax(-1) @ v


def keys_that_know_their_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As if each place's vector were added to its key."""
    rows, columns = drawn(3, 1, 4, seed=9), drawn(1, 2, 4, seed=8)
    of_places = (rows + columns).flatten(0, 1)[: k.shape[-2]]
    return ((q @ k.mT + torch.einsum("bhid,jd->bhij", q, of_places)) / 2).softmax(-1) @ v


def relative_shift_of_nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Viewed again as it was, so that only the padding is cut off; the vectors are as many as keys."""
    logits = torch.einsum("bhid,jd->bhij", q, drawn(1, 4, seed=9) + drawn(3, 1, seed=8))  # here
    relative_shift = torch.nn.functional.pad(logits, (1, 0)).view(*q.shape[:2], 3, 4)[..., 1:]
    later = torch.ones(3, 3).triu(1) == 1
    return ((q @ k.mT + relative_shift) / 2).masked_fill(later, -torch.inf).softmax(-1) @ v


def _shifted(q: Tensor, k: Tensor, v: Tensor, lost: int, padding: tuple[int, int] = (1, 0)) -> Tensor:
    """The shift of Transformer-XL, without one row of the matrix that is one wider."""
    logits = torch.nn.functional.pad(q @ LEARNED[:3].T, padding)  # here
    rows = logits.view(*q.shape[:2], 4, 3).unbind(2)
    shifted = torch.stack([each for place, each in enumerate(rows) if place != lost % 4], 2)
    later = torch.ones(3, 3).triu(1) == 1
    return ((q @ k.mT + shifted) / 2).masked_fill(later, -torch.inf).softmax(-1) @ v


def shift_without_the_last_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _shifted(q, k, v, lost=-1)


def shift_without_the_first_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _shifted(q, k, v, lost=0)


def shift_with_the_padding_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _shifted(q, k, v, lost=0, padding=(0, 1))


def shifted_beside_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, both: bool) -> Tensor:
    """The shift of Transformer-XL, with as many vectors as distances to one side or to both."""
    vectors = LEARNED[:3] if not both else torch.cat((LEARNED[:3], drawn(2, 4, seed=12)))
    count = len(vectors)
    logits = torch.nn.functional.pad(q @ vectors.T, (1, 0))  # here
    shifted = logits.view(*q.shape[:2], count + 1, 3)[:, :, 1:].reshape(*q.shape[:3], count)
    scores = (q @ k.mT + shifted[..., :3]) / 2
    return (scores if mask is None else scores.masked_fill(~mask[:, None, None], -torch.inf)).softmax(-1) @ v


def vectors_of_one_side_for_both(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return shifted_beside_padding(q, k, v, mask, both=False)


def vectors_of_both_sides(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return shifted_beside_padding(q, k, v, mask, both=True)


CASES = [
    Case(
        "logits-of-the-query", vectors_of_one_side_for_both, vectors_of_both_sides, partial(of_q_k_v, masks=("mask",))
    ),
    Case("vector-of-each-distance", shift_with_the_padding_behind, shift_without_the_first_row),
    Case("logits-of-the-query", shift_without_the_last_row, shift_without_the_first_row),
    Case("positions-relative", relative_shift_of_nothing, shift_without_the_first_row),
    Case("positions-relative", parts_of_keys_exchanged, parts_in_order),
    Case("values-without-positions", values_rotated, rotary),
    Case("positions-relative", queries_rotated, rotary),
    Case("rotation-keeps-lengths", all_three_exchanged, all_three_rotated),
    Case("rotation-keeps-lengths", matrices_with_a_wrong_entry, matrices_of_rotations),
    Case("positions-relative", values_in_the_place_of_keys_rotated, all_three_rotated),
    Case("positions-relative", keys_rotated_the_other_way, rotary),
    Case("positions-relative", keys_not_conjugated, keys_conjugated),
    Case("positions-relative", distances_by_the_key, keys_that_know_their_place),
    Case(
        "rotation-keeps-lengths",
        normalized_queries_and_keys_stretched,
        normalized_queries_and_keys_rotated,
        of_x_alone,
    ),
    Case("rotation-keeps-lengths", queries_and_keys_stretched, queries_of_experts),
    Case("positions-relative", queries_of_a_part_rotated, a_part_rotated, has_line=False),
    Case("positions-without-effect", turned_by_no_angle, rotary, has_line=False),
    Case("positions-relative", queries_further_on, both_further_on, of_x_alone),
    Case("positions-relative", causal_queries_further_on, causal_both_further_on),
    Case("keys-from-their-input", keys_of_halves_of_queries, rotary),
    Case("rotary-frequencies", exponents_half_as_fast, frequencies_of_the_paper),
    Case("rotary-frequencies", scaled_without_a_scaling, unscaled_without_a_scaling),
    Case("rotary-frequencies", scaled_without_a_scaling, scaled_always),
    Case("rotary-frequencies", every_second_frequency_twice, frequencies_of_four_pairs, of_wide_heads),
    Case("rotary-frequencies", exponents_of_no_width, frequencies_of_the_paper),
    Case("rotary-frequencies", exponents_twice_as_fast, frequencies_of_another_base),
    Case("rotary-frequencies", frequencies_that_grow, frequencies_of_the_paper),
    Case("positions-by-token", rotated_by_the_head, rotary),
    Case("positions-by-token", both_parts_rotated_by_the_head, rotary),
]
