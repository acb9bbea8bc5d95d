"""One attention as a table: for each score its query, its key and its head, and what becomes of it step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.check.roles.factors import data_of, factors_of, sources_of, stacked
from regard.check.roles.influence import Influence
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.mixed_values import are_of_neighbours, are_of_pairs, tokens_of_values
from regard.check.roles.owners import NONE, SEVERAL, Owners, owners
from regard.check.roles.silent_owners import with_silent_owners
from regard.check.trace.operation import Trace

__all__ = ["AttentionTable", "ValueTable", "table_of"]

NORMALIZATIONS = frozenset(
    ["mean", "var", "var_mean", "linalg_vector_norm", "norm", "native_layer_norm", "_fused_rms_norm", "std"]
)
"""Operations that a norm of queries and keys takes their numbers through."""


@dataclass(frozen=True, eq=False)
class ValueTable:
    """The terms of the weighted sums: (sums, terms)."""

    score: Tensor
    """Which row of the `AttentionTable` the weight is of; -1 for a weight that was made of no score."""
    weight: Tensor
    value: Tensor
    token: Tensor
    sample: Tensor
    stream: Tensor
    head: Tensor
    """Of the value, where the inputs have heads."""
    of_pairs: bool
    """Whether values depend on the tokens of their score's query and key, both of one stream, and on no others."""
    result: Tensor
    """(sums): the weighted sums."""
    of_neighbours: bool = False
    """Whether values depend on their key's token and on some around it, which a convolution of the values read."""


@dataclass(frozen=True, eq=False)
class ScoreLayout:
    """Where the scores of an attention lie in a run, for every run of the same operations."""

    instance: AttentionInstance
    row_of: Tensor
    """By tag, the row of a score among all that are computed; -1 for anything else."""
    used: Tensor
    """(scores that are computed): whether a weighted sum uses it."""
    queries_left: bool
    """Whether the query is the left factor of the product."""


@dataclass(frozen=True, eq=False)
class AttentionTable:
    """One entry for each score that a weighted sum uses."""

    layout: ScoreLayout
    streams: tuple[str, ...]
    query: Owners
    key: Owners
    head: Tensor
    """Counted from 0, in the order in which the scores of the same two tokens are computed."""
    q: Tensor
    """(scores, width): the query as it is multiplied."""
    k: Tensor
    q_source: Tensor
    """(scores, width): the numbers that the query was made of: those of its projection; NaN where it is not known."""
    k_source: Tensor
    width: int
    """Of a head: the numbers of a query that are multiplied."""
    product: Tensor
    """q . k, and the products that are added to it."""
    parts: Tensor
    """(scores, lines): those that are added, by the line that computes them."""
    masked: Tensor
    """What the softmax takes, or the exponentials of one that is written by hand; NaN where there is neither."""
    softmax: Tensor
    """What the softmax returns; NaN where there is none."""
    weight: Tensor
    """What the weighted sum takes; where weights are mixed or subtracted after the softmax, what that returns."""
    group: Tensor
    """Which row of a softmax a score is in; -1 where there is none."""
    with_sink: Tensor
    """(scores): whether its row of the softmax has entries that are no scores: sinks."""
    values: ValueTable
    of_no_token: bool = False
    """Whether the queries depend on no token: they are learned, or were read from the whole sequence before."""

    @property
    def instance(self) -> AttentionInstance:
        """The attention."""
        return self.layout.instance

    @property
    def normalized(self) -> bool:
        """Whether queries or keys are normalized after their projection."""
        run = self.instance.run
        factors = [place for each in self.instance.scores for place in each.places]
        sources: set[int] = set()
        for operation, number in factors:
            sources |= run.owner_of(run.tags.inputs[operation][number])
        return any(
            operation.name in NORMALIZATIONS
            and any(run.owner_of(tags) & sources for tags in run.tags.inputs[operation.index])
            for operation in run.trace
        )

    @property
    def num_heads(self) -> int:
        """How many scores the same query and key have."""
        return int(self.head.max()) + 1 if len(self.head) else 0

    @property
    def of_last_query(self) -> Tensor:
        """(scores): whether a score is of the last query token of the first sample, which may see every key."""
        return (self.query.token == self.query.token.max()) & (self.query.sample <= 0)

    @property
    def keys_by_head(self) -> list[Tensor]:
        """Of each head the keys (keys, width) that the last query meets, in the order of their tokens."""
        last = self.of_last_query
        rows = [(last & (self.head == head)).nonzero().flatten() for head in range(self.num_heads)]
        return [self.k[of_head[self.key.token[of_head].argsort()]] for of_head in rows]

    @property
    def whole(self) -> bool:
        """Whether each score is of one query token and one key token."""
        return all(bool((each >= 0).all()) for each in (self.query.token, self.key.token))

    def rows_of_tags(self) -> Tensor:
        """By tag, the row of a score; -1 for anything else."""
        kept = torch.full((len(self.layout.used) + 1,), -1)
        kept[:-1][self.layout.used] = torch.arange(int(self.layout.used.sum()))
        return kept[self.layout.row_of]

    def dense(self, numbers: Tensor, fill: float = float("nan"), rows: Tensor | None = None) -> Tensor:
        """Some numbers as (samples, heads, queries, keys).

        Args:
            numbers: (scores).
            fill: where there is no score.
            rows: (scores): which of them are taken; all of them by default.
        """
        taken = slice(None) if rows is None else rows
        query, key = self.query.token[taken], self.key.token[taken]
        samples = max(1, int(self.query.sample.max()) + 1)
        sizes = [samples, self.num_heads, int(query.max()) + 1, int(key.max()) + 1]
        made = torch.full(sizes, fill, dtype=numbers.dtype)
        made[self.query.sample[taken].clamp(min=0), self.head[taken], query, key] = numbers[taken]
        return made

    def of_run(self, trace: Trace) -> AttentionTable:
        """The same attention in another run of the same operations.

        Raises:
            ValueError: it took other operations.
        """
        if not trace.same_operations(self.instance.run.trace):
            raise ValueError("another input takes other operations")
        return replace(self, **_numbers(self.layout, trace, self.values))


def table_of(instance: AttentionInstance, influence: Influence, streams: Sequence[str]) -> AttentionTable:
    """Everything that is known of an attention's scores.

    Args:
        instance: the attention.
        influence: of the run that it is of, with the weighted sums of all attentions held.
        streams: the arguments that hold tokens.
    """
    run = instance.run
    left = _factor_owners(instance, influence, streams, True)
    right = _factor_owners(instance, influence, streams, False)
    row_of = torch.full((run.num_tags + 1,), -1)
    ids = torch.cat(
        [torch.arange(each.output.data.numel()) + run.first_tag[each.operation.index] for each in instance.scores]
    )
    of_tokens = (left.token != NONE) & (right.token != NONE)  # a learned key or query is no token's: a sink
    of_any = (left.token != NONE) | (right.token != NONE)  # of learned queries, whose keys may be padded with others
    of_tokens = of_tokens if bool(of_tokens.any()) else of_any if bool(of_any.any()) else torch.ones_like(of_any)
    row_of[ids[of_tokens]] = torch.arange(len(ids))[of_tokens]
    values = _values(instance, influence, streams, row_of)
    used = torch.zeros(len(ids), dtype=torch.bool)
    used[values.score[values.score >= 0]] = True
    queries_left = _queries_left(values.score, left, right)
    query, key = (left, right) if queries_left else (right, left)
    used &= ~_hidden_copies(ScoreLayout(instance, row_of, used, queries_left), query, key)
    all_heads = _heads(query, key) if instance.are_scores_chosen else None  # others are of other keys in each head
    query, key = (
        Owners(each.stream[used], each.token[used], each.sample[used], each.head[used]) for each in (query, key)
    )
    of_no_token = bool((query.token == NONE).all())
    if of_no_token:  # learned, or read from all: as of one token of each sample, and heads of their own
        query = replace(key, token=torch.zeros_like(key.token), head=query.head)
    kept = torch.full((len(ids),), -1)
    kept[used] = torch.arange(int(used.sum()))
    values = replace(values, score=torch.where(values.score >= 0, kept[values.score.clamp(min=0)], -1))
    if bool((values.token == SEVERAL).any()):
        sets = tokens_of_values(instance, influence, values.score.shape[-1])
        is_of_pairs = are_of_pairs(sets, values.score, query, key)
        is_near = not is_of_pairs and are_of_neighbours(instance, sets, values.score, key)
        values = replace(values, of_pairs=is_of_pairs, of_neighbours=is_near)
    query = replace(query, token=_numbered(query, query.token, query.stream)[0])
    key_tokens, value_tokens = _numbered(key, values.token, values.stream)
    key, values = replace(key, token=key_tokens), replace(values, token=value_tokens)
    layout = ScoreLayout(instance, row_of, used, queries_left)
    heads = _heads(query, key) if all_heads is None else all_heads[used]
    numbers = _numbers(layout, run.trace, values)
    heads = _of_one_row_each(heads, numbers["group"], query, key)
    return AttentionTable(layout, tuple(streams), query, key, heads, of_no_token=of_no_token, **numbers)


def _numbers(layout: ScoreLayout, trace: Trace, values: ValueTable) -> dict[str, Any]:
    """The fields of a table that hold numbers of one run."""
    instance, used = layout.instance, layout.used
    count = len(used)
    masked, softmax, group, with_sink = _softmax(layout, trace, count)
    parts, width = _added(layout, trace, count)
    sides = (True, False) if layout.queries_left else (False, True)
    q, k = (factors_of(instance, side, trace) for side in sides)
    product = (q * k).sum(-1).double()  # not what the operation returned: it may scale it, or add to it
    q, k = q[used], k[used]
    q_source, k_source = (sources_of(instance, side, trace)[used] for side in sides)
    values = _value_numbers(instance, trace, values)
    known = values.score >= 0
    weight = torch.full((int(used.sum()),), float("nan"), dtype=torch.float64)
    weight[values.score[known]] = values.weight[known].double()
    if instance.are_weights_mixed or instance.are_weights_subtracted:
        weight = softmax[used]
    return {
        "q": q,
        "k": k,
        "q_source": q_source,
        "k_source": k_source,
        "width": q.shape[-1] + width,
        "product": (product + parts.sum(-1))[used],
        "parts": parts[used],
        "masked": masked[used],
        "softmax": softmax[used],
        "weight": weight,
        "group": group[used],
        "with_sink": with_sink[used],
        "values": values,
    }


def _joined(parts: list[Owners]) -> Owners:
    return Owners(
        *(torch.cat([getattr(each, name) for each in parts]) for name in ("stream", "token", "sample", "head"))
    )


def _factor_owners(instance: AttentionInstance, influence: Influence, streams: Sequence[str], left: bool) -> Owners:
    """Whose each factor of a score is."""
    found = []
    for each in instance.scores:
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        depends = influence.of(*place).flatten(1)[:, terms].any(-1)
        found.append(with_silent_owners(owners(depends, influence, streams), each, instance.run.trace, place))
    return _joined(found)


def _values(instance: AttentionInstance, influence: Influence, streams: Sequence[str], row_of: Tensor) -> ValueTable:
    scores, owned = [], []
    for each in instance.sums:
        index, number = instance.weights_place(each)
        tags = instance.run.tags.inputs[index][number].flatten()
        scores.append(row_of[tags[instance.weight_terms(each)]])
        found = owners(influence.of(*instance.values_place(each)).flatten(1), influence, streams)
        of_values = instance.value_terms(each)
        owned.append([getattr(found, name)[of_values] for name in ("stream", "token", "sample", "head")])
    stream, token, sample, head = (stacked([each[at] for each in owned], -1) for at in range(4))
    score, nothing = stacked(scores, -1), torch.zeros(0)
    return ValueTable(score, nothing, nothing, token, sample, stream, head, False, nothing)


def _value_numbers(instance: AttentionInstance, trace: Trace, values: ValueTable) -> ValueTable:
    weights, vectors, results = [], [], []
    for each in instance.sums:
        weights.append(data_of(trace, *instance.weights_place(each)).flatten()[instance.weight_terms(each)])
        vectors.append(data_of(trace, *instance.values_place(each)).flatten()[instance.value_terms(each)])
        results.append(data_of(trace, each.operation.index, None).flatten())
    return replace(values, weight=stacked(weights, 0.0), value=stacked(vectors, 0.0), result=torch.cat(results))


def _queries_left(scores: Tensor, left: Owners, right: Owners) -> bool:
    """Whether the terms of a weighted sum have the left factor in common: one query, many keys."""
    used = scores >= 0
    safe = scores.clamp(min=0)

    def constant(owner: Owners) -> int:
        both = owner.token[safe] * 4096 + owner.head[safe].clamp(min=0) + 1_000_000 * owner.sample[safe]
        first = torch.where(used, both, both.max() + 1).amin(-1, keepdim=True)
        return int(((both == first) | ~used).all(-1).sum())

    return constant(left) >= constant(right)


def _softmax(layout: ScoreLayout, trace: Trace, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    masked = torch.full((count,), float("nan"), dtype=torch.float64)
    after, group = masked.clone(), torch.full((count,), -1)
    with_sink = torch.zeros(count, dtype=torch.bool)
    groups, instance = 0, layout.instance
    for operation in [] if instance.softmaxes else [each for each in trace if each.name in ("exp", "exp2")]:
        rows = layout.row_of[instance.run.tags.inputs[operation.index][0]]
        known, base = rows >= 0, math.log(2) if operation.name == "exp2" else 1.0
        masked[rows[known]] = base * data_of(trace, operation.index, 0)[known].double()
    for operation in instance.softmaxes:
        rows = layout.row_of[instance.run.tags.inputs[operation.index][0]]
        moved = rows.movedim(int(operation.args[1]), -1)
        numbers = torch.arange(moved[..., 0].numel()).reshape(moved.shape[:-1])[..., None].expand(moved.shape) + groups
        numbers = numbers.movedim(-1, int(operation.args[1]))
        groups += moved[..., 0].numel()
        known = rows >= 0
        masked[rows[known]] = data_of(trace, operation.index, 0)[known].double()
        after[rows[known]] = data_of(trace, operation.index, None)[known].double()
        if operation.name == "_log_softmax":
            after[rows[known]] = after[rows[known]].exp()
        lacks = (~known).any(int(operation.args[1]), keepdim=True).expand(known.shape)
        with_sink[rows[known]] = lacks[known]
        group[rows[known]] = numbers[known]
    return masked, after, group, with_sink


def _added(layout: ScoreLayout, trace: Trace, count: int) -> tuple[Tensor, int]:
    """The products that are added to each score, a column each line, and the widths of those of queries and keys."""
    instance = layout.instance
    run, widths = instance.run, {}
    lines = {each.operation.index: each.operation.location for each in instance.added}
    columns = {line: number for number, line in enumerate(dict.fromkeys(lines.values()))}
    parts = torch.zeros(count, len(columns), dtype=torch.float64)
    for kept, lost in run.tags.sums if instance.added else ():
        rows = layout.row_of[kept]
        for each in instance.added:
            first = run.first_tag[each.operation.index]
            numbers = data_of(trace, each.operation.index, None).flatten().double()
            mine = (lost >= first) & (lost < first + len(numbers)) & (rows >= 0)
            if bool(mine.any()):
                line = each.operation.location
                parts[rows[mine], columns[line]] += numbers[lost[mine] - first]
                is_of_both = run.depends >= {each.left_place, each.right_place}
                if is_of_both and each.operation.index not in instance.handed_on:
                    widths[line and line.line] = each.left_terms.shape[-1]
    return parts, sum(widths.values())


def _numbered(owner: Owners, others: Tensor, other_streams: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of several sequences, numbered one sequence after the other; others, of values, as these.

    Values that are of another sequence, as those of a cache, are numbered as the keys that they belong to.
    """
    streams, several = (sorted(set(each[each >= 0].tolist())) for each in (owner.stream, other_streams))
    lone = [[each for each in one if each not in other] for one, other in ((streams, several), (several, streams))]
    partner = dict(zip(*lone, strict=True)) if len(lone[0]) == len(lone[1]) else {}
    tokens, numbered, start = owner.token.clone(), others.clone(), 0
    for stream in streams:
        mine = owner.stream == stream
        tokens = torch.where(mine & (owner.token >= 0), owner.token + start, tokens)
        theirs = (other_streams == stream) | (other_streams == partner.get(stream, stream))
        numbered = torch.where(theirs & (others >= 0), others + start, numbered)
        start = max(start, int(tokens[mine].max()) + 1)
    return tokens, numbered


def _hidden_copies(layout: ScoreLayout, query: Owners, key: Owners) -> Tensor:
    """(scores): hidden ones of a key that stands several times in one row of the softmax.

    Keys of a window that are gathered by clamped places: the first tokens' windows hold the first key again, hidden.
    Scores of one row of a softmax are of one head, whatever keys they are of.
    """
    _, softmax, group, _ = _softmax(layout, layout.instance.run.trace, len(layout.used))
    rows = torch.stack([query.sample, query.token, key.sample, key.token, group], -1)
    inverse = torch.unique(rows, dim=0, return_inverse=True)[1]
    candidates = layout.used & (group >= 0) & (query.token >= 0) & (key.token >= 0)
    shown = candidates & (softmax != 0)
    count = torch.zeros(len(inverse) + 1, dtype=torch.long).index_add_(0, inverse, shown.long())
    hidden = candidates & ~shown
    first = torch.full_like(count, len(inverse)).scatter_reduce(0, inverse[hidden], hidden.nonzero()[:, 0], "amin")
    is_first = torch.arange(len(inverse)) == first[inverse]
    return hidden & ((count[inverse] > 0) | ~is_first)


def _heads(query: Owners, key: Owners) -> Tensor:
    """How many scores of the same query and key come before each."""
    both = torch.stack([query.sample, query.token, key.sample, key.token], -1)
    return _ranks(torch.unique(both, dim=0, return_inverse=True)[1])


def _of_one_row_each(heads: Tensor, group: Tensor, query: Owners, key: Owners) -> Tensor:
    """The heads; those of a query's rows of the softmax, in their order, where one row would be of several.

    Two tokens that meet in some windows that overlap have more scores than two that meet in one.
    """
    if not len(group) or bool((group < 0).any()):
        return heads
    rows, row = torch.unique(group, return_inverse=True)
    asks = torch.unique(torch.stack([query.sample, query.token], -1), dim=0, return_inverse=True)[1]
    bounds = [
        torch.zeros_like(rows).scatter_reduce(0, row, numbers, end, include_self=False)
        for numbers in (heads, asks)
        for end in ("amin", "amax")
    ]
    if torch.equal(bounds[0], bounds[1]) or not torch.equal(bounds[2], bounds[3]):
        return heads
    if len(set(bounds[2].bincount().tolist())) == 1:
        return heads  # as many of each query: none stands in more windows than another
    found = _ranks(bounds[2])[row]
    scores = torch.stack([asks, key.sample, key.token, found], -1)
    return found if len(torch.unique(scores, dim=0)) == len(scores) else heads


def _ranks(inverse: Tensor) -> Tensor:
    """How many of the same number come before each."""
    order = inverse.argsort(stable=True)
    ordered = inverse[order]
    starts = torch.cat([torch.tensor([True]), ordered[1:] != ordered[:-1]]) if len(ordered) else ordered.bool()
    place = torch.arange(len(ordered))
    first = torch.where(starts, place, 0).cummax(0).values if len(ordered) else place
    ranks = torch.empty_like(inverse)
    ranks[order] = place - first
    return ranks
