"""The scale of scores, and what is added to them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation

REGISTER = drawn(1, 1, WIDTH, seed=9)
DISTANCE = (torch.arange(3)[:, None] - torch.arange(3)).double()
LATER = DISTANCE < 0
VECTOR = drawn(4, seed=5)
SLOPES = torch.tensor([0.5, 0.25]).double()[:, None, None]


def divided_by_the_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1]  # here
    return scores.softmax(-1) @ v


def divided_by_its_root(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def times_fifty(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """So steep that some weights are zero, others in every run."""
    scores = q @ k.mT * 50  # here
    return scores.softmax(-1) @ v


def capped_then_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    capped = 5 * torch.tanh(scores / 5) / 2  # here
    return capped.softmax(-1) @ v


def scaled_then_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return (5 * torch.tanh(scores / 5)).softmax(-1) @ v


def capped_to_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return torch.tanh(scores / 5).softmax(-1) @ v  # here


def one_number_for_all_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + SLOPES  # here
    return scores.softmax(-1) @ v


def with_a_table(x: Tensor, table: Tensor) -> Tensor:
    """Of five tokens: in a smaller table, too few steps from key to key could pass for one that broadcasts."""
    heads = split(x)
    return joined((heads @ heads.mT / 2 + SLOPES * table).softmax(-1) @ heads)  # here


def by_the_sum_of_positions(x: Tensor) -> Tensor:
    return with_a_table(x, (torch.arange(5)[:, None] + torch.arange(5)) ** 2 / 8)


def by_the_distance_alone(x: Tensor) -> Tensor:
    return with_a_table(x, (torch.arange(5)[:, None] - torch.arange(5)) ** 2 / 8)


def by_the_square_of_the_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + SLOPES * DISTANCE**2).softmax(-1) @ v


def scaled_with_the_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT + SLOPES * DISTANCE**2  # here
    return (scores / 2).softmax(-1) @ v


def far_keys_favored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + SLOPES * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v  # here


def one_slope_for_all_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 - SLOPES[:1] * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v  # here


def near_keys_favored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 - SLOPES * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v


def last_keys_favored(x: Tensor) -> Tensor:
    """Nothing is hidden: what lowers earlier keys raises later ones."""
    return with_a_table(x, torch.arange(5) - torch.arange(5)[:, None])


def near_keys_favored_on_both_sides(x: Tensor) -> Tensor:
    return with_a_table(x, -(torch.arange(5) - torch.arange(5)[:, None]).abs())


def with_slopes(x: Tensor, slopes: list[float]) -> Tensor:
    distance = torch.arange(4)[:, None] - torch.arange(4)
    bias = -torch.tensor(slopes, dtype=x.dtype)[:, None, None] * distance
    heads = split(x, len(slopes))
    scores = heads @ heads.mT / heads.shape[-1] ** 0.5 + bias
    return joined(scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ heads)  # here


def slopes_from_the_heads_inverse(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 / head) for head in (1, 2, 3, 4)])


def slopes_of_nothing(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 * head * 4) for head in (1, 2, 3, 4)])


def slopes_of_a_geometric_sequence(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 * head / 4) for head in (1, 2, 3, 4)])


def alibi_from_the_power_zero(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 * head / 4) for head in (0, 1, 2, 3)])


def two_heads_of_one_slope(x: Tensor) -> Tensor:
    return with_slopes(x, [2**-2, 2**-4, 2**-2, 2**-8])


def by_the_distance_of_later_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.where(LATER, -DISTANCE * SLOPES, SLOPES)
    scores = q @ k.mT / 2 + bias  # here
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v


def with_a_register(x: Tensor, scale: float) -> Tensor:
    """A learned token stands before the others: a sink of theirs."""
    tokens = torch.cat([REGISTER.expand(len(x), -1, -1), x], 1)
    q, k, v = (0.2 * tokens @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    return ((q @ k.mT * scale).softmax(-1) @ v)[:, 1:]  # here


def times_the_root_beside_a_register(x: Tensor) -> Tensor:
    return with_a_register(x, WIDTH**0.5)


def divided_by_the_root_beside_a_register(x: Tensor) -> Tensor:
    return with_a_register(x, WIDTH**-0.5)


class TableOfKeysAfter(nn.Module):
    """Of each head, table[h, 3 + step] is added for a key that stands step tokens after the query."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2, 7))

    def forward(self, x: Tensor) -> Tensor:
        heads, place = split(x), torch.arange(x.shape[1])
        scores = heads @ heads.mT / 2 + self.table[:, self.rows(place[:, None], place)]  # here
        return joined(scores.softmax(-1) @ heads)

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return 3 + key - query


class TableTurnedRound(TableOfKeysAfter):
    """Of each head, table[h, 3 + step] is added for a key that stands step tokens after the query."""

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return 3 + query - key


class TableOfAComment(TableOfKeysAfter):
    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        # table[:, o + 3] is the bias of the key that stands o places AFTER the query
        # (negative o: before it)
        return 3 + query - key


class TableOfNoOrder(TableTurnedRound):
    """A bias for each distance, of which nothing says where it stands."""


class ColumnsOfHeads(nn.Module):
    """A bias for each distance, in a table with a column for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(7, 2))

    def forward(self, x: Tensor) -> Tensor:
        heads, place = split(x), torch.arange(x.shape[1])
        scores = heads @ heads.mT / 2 + self.of_heads(self.table[3 + place[:, None] - place])  # here
        return joined(scores.softmax(-1) @ heads)

    def of_heads(self, bias: Tensor) -> Tensor:
        return bias.permute(2, 0, 1)


class ColumnsViewedAsHeads(ColumnsOfHeads):
    """A bias for each distance, in a table with a column for each head."""

    def of_heads(self, bias: Tensor) -> Tensor:
        return bias.reshape(2, *bias.shape[:2])


def keeping(x: Tensor, largest: int) -> Tensor:
    scores = x @ x.mT / WIDTH**0.5  # here
    least = scores.topk(largest).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ x


def all_but_the_smallest(x: Tensor, topk: int = 2) -> Tensor:
    return keeping(x, x.shape[1] - topk + 1)


def the_largest(x: Tensor, topk: int = 2) -> Tensor:
    return keeping(x, topk)


def the_smallest_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(scores > scores.kthvalue(2, keepdim=True).values, -torch.inf).softmax(-1) @ v


def the_largest_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return scores.masked_fill(scores < scores.kthvalue(2, keepdim=True).values, -torch.inf).softmax(-1) @ v


def query_beside_the_tanh(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q[..., :, None, :] + torch.tanh(k[..., None, :, :])) @ VECTOR  # here
    return scores.softmax(-1) @ v


def query_in_the_tanh(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ VECTOR
    return scores.softmax(-1) @ v


def no_relu_of_the_sum(x: Tensor) -> Tensor:
    """Causal, of nodes that ask one another."""
    scores = x @ drawn(WIDTH, 1, seed=6) + (x @ drawn(WIDTH, 1, seed=7)).mT
    return scores.masked_fill(torch.ones(4, 4).triu(1) > 0, -torch.inf).softmax(-1) @ x


def leaky_relu_of_the_sum(x: Tensor) -> Tensor:
    scores = torch.nn.functional.leaky_relu(x @ drawn(WIDTH, 1, seed=6) + (x @ drawn(WIDTH, 1, seed=7)).mT, 0.2)
    return scores.masked_fill(torch.ones(4, 4).triu(1) > 0, -torch.inf).softmax(-1) @ x


def softcap_without_the_division(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(q @ k.mT / 2)  # here
    return (scores * 3).softmax(-1) @ v


def softcap_divided_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    capped = torch.tanh(q @ k.mT / 2 / 5) / 5  # here
    return capped.softmax(-1) @ v


def softcap_with_the_division(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(q @ k.mT / 2 / 3)
    return (scores * 3).softmax(-1) @ v


SEEDS, OF_KEYS = drawn(3, WIDTH, seed=90) / 10, drawn(WIDTH, WIDTH, seed=91) / 3


def pooled_by_learned_queries(x: Tensor, scale: float) -> Tensor:
    scores = SEEDS @ (x @ OF_KEYS).mT * scale  # here
    return scores.softmax(-1) @ x


def learned_queries_times_the_root(x: Tensor) -> Tensor:
    return pooled_by_learned_queries(x, WIDTH**0.5)


def learned_queries_over_the_root(x: Tensor) -> Tensor:
    return pooled_by_learned_queries(x, WIDTH**-0.5)


class MixedHeads(nn.Module):
    """Heads are mixed before the softmax and after it, so that no score shows by how much it is scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.before, self.after = nn.Linear(2, 2), nn.Linear(2, 2)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = self.before((q @ k.mT).movedim(1, -1)).softmax(-2)
        return joined(self.after(weights).movedim(-1, 1) @ v)


class TalkingHeads(MixedHeads):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return self.mixed(q * self.scale, k, v)


class UnscaledTalkingHeads(MixedHeads):
    """The same, whose scale no line reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.mixed(*map(split, self.qkv(x).chunk(3, -1)))


def of_neighbours(x: Tensor, number: int, *, are_nearest: bool) -> Tensor:
    """Each point reads some of its neighbours."""
    chosen = torch.cdist(x, x).argsort(-1)
    chosen = chosen[..., :number] if are_nearest else chosen[..., -number:]
    k, v = (
        (x @ each)[torch.arange(len(x))[:, None, None], chosen]
        for each in (drawn(WIDTH, WIDTH, seed=5), drawn(WIDTH, WIDTH, seed=6))
    )
    scores = (x @ drawn(WIDTH, WIDTH, seed=4))[:, :, None] @ k.mT / WIDTH**0.5  # here
    return (scores.softmax(-1) @ v)[:, :, 0]


def the_nearest_two(x: Tensor) -> Tensor:
    return of_neighbours(x, 2, are_nearest=True)


def two_at_the_other_end(x: Tensor) -> Tensor:
    return of_neighbours(x, 2, are_nearest=False)


def all_but_the_nearest(x: Tensor) -> Tensor:
    """Of five points: with more of them four are left that are not near."""
    return of_neighbours(x, 4, are_nearest=False)


def the_nearest_beside_itself(x: Tensor) -> Tensor:
    """Of five points no other ones: what is nearest is the point itself."""
    chosen = torch.cdist(x, x).argsort(-1)[..., 1:5]
    k, v = ((x @ drawn(WIDTH, WIDTH, seed=seed))[torch.arange(len(x))[:, None, None], chosen] for seed in (5, 6))
    neighbours = (x @ drawn(WIDTH, WIDTH, seed=4))[:, :, None] @ k.mT / WIDTH**0.5
    return (neighbours.softmax(-1) @ v)[:, :, 0]


class KeepsTheLargest(nn.Module):
    """Each query keeps the keys with its largest scores."""

    keep = 2

    def bar(self, scores: Tensor) -> Tensor:
        return scores.topk(self.keep).values[..., -1:]

    def is_removed(self, scores: Tensor, bar: Tensor) -> Tensor:
        return scores < bar

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ drawn(WIDTH, WIDTH, seed=4) @ x.mT / WIDTH**0.5  # here
        bar = self.bar(scores)
        return scores.masked_fill(self.is_removed(scores, bar), -torch.inf).softmax(-1) @ x


class KeepsOneLess(KeepsTheLargest):
    def is_removed(self, scores: Tensor, bar: Tensor) -> Tensor:
        return scores <= bar


class KeepsTheLargestOfQueries(KeepsTheLargest):
    """Each query keeps the keys with its largest scores."""

    def bar(self, scores: Tensor) -> Tensor:
        return scores.topk(self.keep, -2).values[..., -1:, :]


class ChosenByKeys(KeepsTheLargestOfQueries):
    """The queries that have its largest scores are chosen by each key."""


class KeptByALevel(KeepsTheLargest):
    """Each query keeps the keys whose scores are above one level, some more of them than others."""

    def bar(self, scores: Tensor) -> Tensor:
        return scores.mean((-1, -2), keepdim=True)


def keeping_three(kind: Any) -> Invocation:
    module = kind()
    module.keep = 3
    return of_x(module, tokens=6)


CASES = [
    Case("largest-kept", KeepsOneLess, KeepsTheLargest, keeping_three),
    *(
        Case("largest-kept", KeepsTheLargestOfQueries, right, keeping_three)
        for right in (KeepsTheLargest, ChosenByKeys, KeptByALevel)
    ),
    Case("nearest-kept", two_at_the_other_end, the_nearest_two, partial(of_x, tokens=5)),
    Case("nearest-kept", all_but_the_nearest, the_nearest_beside_itself, partial(of_x, tokens=5)),
    Case("scale", UnscaledTalkingHeads, TalkingHeads, of_module, has_line=False),
    Case("scale", learned_queries_times_the_root, learned_queries_over_the_root, of_x),
    Case("largest-kept", all_but_the_smallest, the_largest, partial(of_x, tokens=5)),
    Case("largest-kept", the_smallest_two, the_largest_two),
    Case("query-in-the-weights", query_beside_the_tanh, query_in_the_tanh),
    Case("query-in-the-weights", no_relu_of_the_sum, leaky_relu_of_the_sum, of_x, has_line=False),
    Case("table-by-head", ColumnsViewedAsHeads, ColumnsOfHeads, of_module),
    Case("table-as-documented", TableTurnedRound, TableOfKeysAfter, of_module),
    Case("table-as-documented", TableTurnedRound, TableOfNoOrder, of_module),
    Case("table-as-documented", TableOfAComment, TableOfKeysAfter, of_module),
    Case("scale", times_the_root_beside_a_register, divided_by_the_root_beside_a_register, of_x),
    Case("scale", times_fifty, divided_by_its_root),
    Case("scale", divided_by_the_width, divided_by_its_root),
    Case("softcap-of-scaled", capped_then_scaled, scaled_then_capped),
    Case("softcap-restored", capped_to_one, scaled_then_capped),
    Case("softcap-restored", softcap_divided_twice, scaled_then_capped),
    Case("softcap-restored", softcap_without_the_division, softcap_with_the_division),
    Case("bias-by-key", one_number_for_all_keys, divided_by_its_root),
    Case("bias-by-key", by_the_distance_of_later_keys, near_keys_favored),
    Case("bias-by-distance", by_the_sum_of_positions, by_the_distance_alone, partial(of_x, tokens=5)),
    Case("bias-after-scale", scaled_with_the_bias, by_the_square_of_the_distance),
    Case("alibi-sign", far_keys_favored, near_keys_favored),
    Case("alibi-sign", last_keys_favored, near_keys_favored_on_both_sides, partial(of_x, tokens=5)),
    Case("bias-by-key", slopes_of_nothing, slopes_of_a_geometric_sequence, of_x, has_line=False),
    Case("alibi-slopes", one_slope_for_all_heads, near_keys_favored),
    Case("alibi-slopes", alibi_from_the_power_zero, slopes_of_a_geometric_sequence, of_x),
    Case("alibi-slopes", two_heads_of_one_slope, slopes_of_a_geometric_sequence, of_x),
    Case("alibi-slopes", slopes_from_the_heads_inverse, slopes_of_a_geometric_sequence, of_x),
]
