"""Weights that are computed a chunk of keys at a time, as what the value of each key becomes in the end.

Each chunk takes the maximum of its own scores out of its exponents (Rabe and Staats 2021), so that its exponentials
are those of the others only after they are multiplied by what this was. What a weighted sum takes does not show that;
what a value that grows by one raises in the end does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import fit_scores
from regard.check.properties.sums import query_numbers
from regard.check.properties.weights.later_division import results_of
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["chunk_findings", "with_final_weights"]

MAX_KEYS = 32
SAME_SHARE, SAME_SCALE, NOTICEABLE = 1e-7, 1e-6, 1e-3
"""How far the shares in all channels of a head, and the scales of all chunks, are apart; and a factor that is wrong."""
LEAST = 1e-9
"""A smaller weight tells nothing."""


def with_final_weights(invocation: Invocation, evidence: Evidence, fresh: Mapping[str, Any]) -> Evidence | None:
    """The evidence with what each value has a share of in the end; None of keys in one chunk, or where it is not known.

    NaN where it is not known of some queries alone.

    Args:
        invocation: the call.
        evidence: of its attention.
        fresh: the arguments with all tokens drawn anew.
    """
    instance = evidence.base.instance
    if len(instance.sums) < 2 or instance.are_weights_mixed or instance.are_weights_subtracted:
        return None
    other = record_invocation(invocation, fresh)
    if other.error or not other.same_operations(instance.run.trace):
        return None
    base = _shares(invocation, evidence, evidence.base, instance.run.trace, invocation.arguments)
    anew = _shares(invocation, evidence, evidence.fresh, other, fresh) if base is not None else None
    if base is None or anew is None:
        return None
    return replace(
        evidence, base=replace(evidence.base, weight=base), fresh=replace(evidence.fresh, weight=anew), equal=None
    )


def chunk_findings(evidence: Evidence, final: Evidence) -> Iterator[Finding]:
    """Whether the exponentials of some chunks have, in the end, another factor than those of others of one query.

    A factor that is the same for all tokens is a bias of positions.

    Args:
        evidence: of an attention, with the weights that its weighted sums take.
        final: with those that the values have in the end.
    """
    scale = _scale_of_chunks(evidence)
    if scale is None:
        return
    rows = query_numbers(evidence)
    live = (final.base.weight > LEAST) & (final.fresh.weight > LEAST) & ~_are_alike(evidence)
    first, second = (each.weight.clamp(min=LEAST).log() - scale * each.product for each in (final.base, final.fresh))
    gaps = (_above_the_least(first, rows, live) - _above_the_least(second, rows, live)).abs()[live]
    if not len(gaps) or float(gaps.max()) < NOTICEABLE:
        return
    factor = float(_above_the_least(first, rows, live)[live].max().exp())
    message = (
        f"keys are read a chunk at a time, and those of one chunk weigh {factor:.4g} times as much as those of another "
        "of the same scores: what was taken out of the exponents of each chunk is not put back"
    )
    yield Finding("violation", "weights-sum-to-one", "weights", message, evidence.base.instance.sums_location)


def _are_alike(evidence: Evidence) -> Tensor:
    """(scores): whether all keys of a chunk weigh the same for the query, as where all are hidden from it."""
    table = evidence.base
    rows = query_numbers(replace(evidence, base=replace(table, head=_parts(table))))
    alike = torch.zeros_like(rows, dtype=torch.bool)
    for each in (table, evidence.fresh):
        most, least = (
            torch.full((int(rows.max()) + 1,), start, dtype=torch.float64).scatter_reduce(0, rows, each.weight, how)
            for start, how in ((-torch.inf, "amax"), (torch.inf, "amin"))
        )
        alike |= (most - least < LEAST)[rows]
    return alike


def _above_the_least(numbers: Tensor, rows: Tensor, live: Tensor) -> Tensor:
    """Numbers less the least one of their query, of the scores that are live."""
    least = torch.full((int(rows.max()) + 1,), torch.inf, dtype=torch.float64)
    least.scatter_reduce_(0, rows[live], numbers[live], "amin")
    return numbers - least[rows]


def _parts(table: AttentionTable) -> Tensor:
    """(scores): the same number for the scores of one head and one weighted sum, which reads one chunk."""
    chunk, start = torch.zeros_like(table.head), 0
    for number, each in enumerate(table.instance.sums):
        count = each.output.data.numel()
        scores = table.values.score[start : start + count]
        chunk[scores[scores >= 0]] = number
        start += count
    parts: Tensor = torch.unique(torch.stack([table.head, chunk], -1), dim=0, return_inverse=True)[1]
    return parts


def _scale_of_chunks(evidence: Evidence) -> float | None:
    """The one scale of the scores of all chunks, with nothing added to them; None elsewhere."""
    table, parts = evidence.base, _parts(evidence.base)
    fit = fit_scores(
        replace(evidence, base=replace(table, head=parts), fresh=replace(evidence.fresh, head=parts), equal=None)
    )
    if fit is None or not fit.linear or float(fit.bias.nan_to_num().abs().max()) > SAME_SCALE:
        return None
    scales = [each for each in fit.scales if each]  # a chunk of one key has none
    return scales[0] if max(scales) - min(scales) <= SAME_SCALE * abs(scales[0]) else None


def _shares(
    invocation: Invocation, evidence: Evidence, table: AttentionTable, base: Trace, arguments: Mapping[str, Any]
) -> Tensor | None:
    """(scores): by how much the end result of a query grows where the value of the key grows by one; NaN if unknown."""
    instance, values = table.instance, table.values
    rows, tokens = query_numbers(evidence), torch.unique(table.key.token).tolist()
    if len(tokens) > MAX_KEYS or bool((table.key.token < 0).any()):
        return None
    tags = _value_tags(instance, values.score.shape)
    query_of = _queries_of_tags(table, rows)
    shares = torch.full((int(rows.max()) + 1, max(tokens) + 1), torch.nan, dtype=torch.float64)
    for token in tokens:
        run = record_invocation(
            invocation,
            arguments,
            frozen=_grown(instance, base, tags[(values.token == token) & (values.score >= 0)]),
        )
        if run.error or not run.same_operations(base):
            return None
        for before, after, place in results_of(instance, base, run, query_of):
            known = place >= 0
            gap, query = (after.data - before.data)[known].double(), place[known]
            most = torch.full((len(shares),), -torch.inf, dtype=torch.float64).scatter_reduce(0, query, gap, "amax")
            least = torch.full((len(shares),), torch.inf, dtype=torch.float64).scatter_reduce(0, query, gap, "amin")
            if bool((most - least > SAME_SHARE * max(1.0, float(gap.abs().max()))).any()):
                return None
            shares[:, token] = torch.where(most.isfinite(), most, shares[:, token])
    return shares[rows, table.key.token]


def _value_tags(instance: AttentionInstance, shape: torch.Size) -> Tensor:
    """(sums, terms): the tags of the values; 0 where a sum has fewer terms."""
    found, start = torch.zeros(shape, dtype=torch.long), 0
    for each in instance.sums:
        index, number = instance.values_place(each)
        terms = instance.value_terms(each)
        found[start : start + len(terms), : terms.shape[1]] = instance.run.tags.inputs[index][number].flatten()[terms]
        start += len(terms)
    return found


def _queries_of_tags(table: AttentionTable, rows: Tensor) -> Tensor:
    """By tag of a weighted sum, the number of its query; -1 for anything else."""
    run, start = table.instance.run, 0
    found = torch.full((run.num_tags + 1,), -1)
    for each in table.instance.sums:
        count, first = each.output.data.numel(), run.first_tag[each.operation.index]
        scores = table.values.score[start : start + count].amax(-1)
        found[first : first + count] = torch.where(scores >= 0, rows[scores.clamp(min=0)], -1)
        start += count
    return found


def _grown(instance: AttentionInstance, base: Trace, tags: Tensor) -> dict[int, Tensor]:
    """By operation, what it returned, and one more where that is one of some values."""
    run, found = instance.run, dict[int, Tensor]()
    for index in run.owner_of(tags):
        made, first = base.operations[index].outputs[0].data, run.first_tag[index]
        mine = torch.unique(tags[(tags >= first) & (tags < first + made.numel())]) - first
        grown = made.clone().flatten()
        grown[mine] += 1
        found[index] = grown.view(made.shape)
    return found
