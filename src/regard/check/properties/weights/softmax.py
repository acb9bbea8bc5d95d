"""The softmax: weights are not negative, sum to one over the keys of a query, and are those of the masked scores."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.designs import of_any_sum, rectified, retention
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import BLOCKED
from regard.check.properties.sums import groupings, query_numbers, sums_by
from regard.check.properties.weights.hard_weights import hard_weights
from regard.check.properties.weights.softmax_by_hand import by_hand_findings
from regard.check.properties.weights.unary_weights import unary_weights

__all__ = ["weight_findings"]

SWITCH = re.compile(r"\b((?:\w+_)?(?:softmax|normali[sz]ed?))\s*(?::\s*bool\s*)?=\s*False\b")
"""An argument that says whether scores are normalized, and that is False where nobody gives it."""
SUM_TOLERANCE = 1e-6
"""Code that computes in float32 inside is not wrong for it."""
SUM_WITH_EPSILON = 1e-3
"""The same where weights are divided by their sum and a small number, which keeps the sum from 0."""


def weight_findings(evidence: Evidence) -> Iterator[Finding]:
    """Violations of the softmax."""
    table = evidence.base
    line = table.instance.softmaxes[0].location if table.instance.softmaxes else table.instance.sums_location
    weight = table.weight
    if bool(weight.isnan().any()):
        yield Finding("violation", "weights-are-numbers", "weights", "weights are NaN", line)
        return
    decayed = retention(evidence)
    if decayed is not None:
        yield decayed
        return
    if (switch := _switched_off(evidence)) is not None:
        message = f"weights are scores as they are: {switch} = False switches their softmax off"
        yield Finding("design", "weights-unnormalized", "weights", message, line)
        return
    if bool((weight < -1e-9).any()):
        yield Finding(
            "violation", "weights-not-negative", "weights", f"a weight is negative: {float(weight.min()):.4g}", line
        )
        return
    grouped = table.group >= 0
    if bool(grouped.all()):
        if _is_of_one(evidence):
            message = "the softmax runs over an axis of one number: the weight of every key is 1"
            yield Finding("violation", "softmax-over-keys", "weights", message, line)
            return
        found = _axis(evidence, line)
        if found is not None:
            yield _competing(evidence) or hard_weights(evidence) or found
            return
        if _are_weights(evidence, table.masked):
            message = "a second softmax is taken, of weights: they lie between 0 and 1, so that its own hardly differ"
            yield Finding("violation", "softmax-of-scores", "weights", message, table.instance.softmaxes[-1].location)
            return
        changed = ((table.softmax - weight).abs() > SUM_TOLERANCE) & ~_of_queries_without_keys(evidence)
        if bool(changed.any()):
            design = _divided_by_their_sum(evidence) or hard_weights(evidence) or unary_weights(evidence)
            yield design or _after_softmax(evidence, changed)
            return
    elif table.instance.steps & {"exp", "exp2"}:
        yield from by_hand_findings(evidence, line)
        return
    sums = sums_by(query_numbers(evidence), weight)
    live = sums > SUM_TOLERANCE
    off = (sums[live] - 1).abs() > SUM_TOLERANCE
    if not bool(off.any()):
        error = float((sums[live] - 1).abs().max()) if bool(live.any()) else 0.0
        message = f"over the keys of a query: none negative, sum 1 (to {max(error, 1e-16):.0e})"
        yield Finding("holds", "weights-sum-to-one", "weights", message, line)
        return
    if "sigmoid" in table.instance.steps and not bool(grouped.any()):
        yield Finding(
            "design", "sigmoid-weights", "weights", "weights are sigmoids of scores: they do not sum to 1", line
        )
        return
    unwritten = _unwritten(evidence)
    if unwritten is not None:
        yield unwritten
        return
    beside_sinks = sums_by(query_numbers(evidence), table.with_sink.double()) > 0
    if bool(table.with_sink.any()) and bool((beside_sinks[live] & (sums[live] < 1))[off].all()):
        yield Finding("design", "sinks", "weights", "a sink takes a share of the weights of each query", line)
        return
    without_a_sum = rectified(evidence) or of_any_sum(evidence)
    if without_a_sum is not None:
        yield without_a_sum
        return
    worst = float(sums[live][(sums[live] - 1).abs().argmax()])
    yield Finding(
        "violation",
        "weights-sum-to-one",
        "weights",
        f"the weights of a query sum to {worst:.4g} over its keys, not to 1",
        line,
    )


def _switched_off(evidence: Evidence) -> str | None:
    """The option of the code that would take a softmax, and is False without a word; None where it has none.

    As in bilinear attention networks, which pool by scores as they are: forward(v, q, softmax=False).
    """
    instance = evidence.base.instance
    if instance.softmaxes or instance.steps & {"exp", "exp2", "sigmoid"}:
        return None
    options = dict.fromkeys(each[1] for each in SWITCH.finditer(evidence.code))
    asked = (rf"\bif\s+(?:self\.)?{each}\s*:[^\n]*\n?[^\n]*softmax\(" for each in options)
    found = zip(options, asked, strict=True)
    return next((name for name, pattern in found if re.search(pattern, evidence.code)), None)


def _of_queries_without_keys(evidence: Evidence) -> Tensor:
    """(scores): those of queries all of whose keys are blocked, and whose weights are all zero, as is usual then.

    The softmax would share among the blocked keys (Flamingo, arXiv:2204.14198, of text before the first picture).
    """
    table, rows = evidence.base, query_numbers(evidence)
    blocked = (table.masked <= BLOCKED) & (table.weight == 0)
    blocked_keys, keys = sums_by(rows, blocked.double()), sums_by(rows, torch.ones_like(table.weight))
    return (blocked_keys == keys)[rows]


def _is_of_one(evidence: Evidence) -> bool:
    """Whether a query of no token gives each of several keys a softmax of its own."""
    table = evidence.base
    return table.of_no_token and int(table.group.bincount().max()) == 1 and len(set(table.key.token.tolist())) > 1


def _are_weights(evidence: Evidence, masked: Tensor) -> bool:
    """Whether what the last softmax takes is what an earlier one made: none negative, sum 1 over a query's keys."""
    if len(evidence.base.instance.softmaxes) < 2:
        return False
    taken = torch.where(masked == -torch.inf, 0.0, masked)
    sums = sums_by(query_numbers(evidence), taken)
    return bool((taken >= 0).all()) and bool(((sums - 1).abs() <= SUM_TOLERANCE).all())


def _unwritten(evidence: Evidence) -> Finding | None:
    """Entries of the softmax that no score was written to, whose weights go to values of tokens: no sinks."""
    table, values = evidence.base, evidence.base.values
    instance, row_of, constants = table.instance, table.layout.row_of, list[Tensor]()
    for operation in instance.softmaxes:
        known, axis = row_of[instance.run.tags.inputs[operation.index][0]] >= 0, int(operation.args[1])
        constants.append(operation.inputs[0].data[~known & known.any(axis, keepdim=True)])
    numbers = torch.unique(torch.cat(constants)) if constants else torch.zeros(0)
    if len(numbers) != 1 or not BLOCKED < float(numbers) < torch.inf:
        return None
    written = values.score >= 0
    read = ~written & written.any(-1, keepdim=True) & (values.token >= 0) & (values.weight > SUM_TOLERANCE)
    if not bool(read.any()):
        return None
    row, term = (int(each) for each in read.nonzero()[0])
    query = int(table.query.token[values.score[row].max()])
    message = (
        f"where no score is written the softmax takes {float(numbers):.4g}, which has a weight all the same: "
        f"key {int(values.token[row, term])} has {float(values.weight[row, term]):.4g} of query {query}"
    )
    return Finding("violation", "blocked-scores", "mask", message, instance.sums_location)


def _competing(evidence: Evidence) -> Finding | None:
    """Where queries compete for keys in the softmax, and the weights of each are divided by their sum afterwards."""
    table = evidence.base
    sums = sums_by(query_numbers(evidence), table.weight)
    if bool(((sums - 1).abs() > SUM_WITH_EPSILON).any()):
        return None
    message = "the softmax runs over the queries, and the weights of each are divided by their sum (slot attention)"
    return Finding("design", "slot-attention", "weights", message, table.instance.softmaxes[0].location)


def _divided_by_their_sum(evidence: Evidence) -> Finding | None:
    """The same of queries of no token, as slots are: each softmax is over several weighted sums."""
    table, values = evidence.base, evidence.base.values
    terms = values.score >= 0
    if not table.of_no_token or not bool(terms.all()):
        return None
    sums = values.weight.sum(-1)
    of_each = table.group[values.score]  # (sums, terms)
    is_across = of_each.shape[-1] > 1 and bool((of_each != of_each[:, :1])[:, 1:].all())
    if not is_across or bool(((sums - 1).abs() > SUM_WITH_EPSILON).any()):
        return None
    message = "the softmax runs over the queries, and the weights of each are divided by their sum (slot attention)"
    return Finding("design", "slot-attention", "weights", message, table.instance.softmaxes[0].location)


def _axis(evidence: Evidence, line: object) -> Finding | None:
    """Whether the softmax runs over the keys of one query."""
    table = evidence.base
    rows = query_numbers(evidence)
    same_query = _constant_within(rows, table.group)
    if same_query:
        return None
    over = "something else than the keys of a query"
    for name, numbers in groupings(evidence):
        if _constant_within(numbers, table.group):
            over = name
            break
    return Finding(
        "violation",
        "softmax-over-keys",
        "weights",
        f"the softmax sums to one over {over}, not over the keys of each query",
        line,  # type: ignore[arg-type]
    )


def _constant_within(numbers: Tensor, groups: Tensor) -> bool:
    """Whether all members of a group have the same number."""
    count = int(groups.max()) + 1
    top = torch.full((count,), -1).scatter_reduce(0, groups, numbers, "amax", include_self=False)
    low = torch.full((count,), -1).scatter_reduce(0, groups, numbers, "amin", include_self=False)
    return bool((top == low).all())


def _after_softmax(evidence: Evidence, changed: Tensor) -> Finding:
    table = evidence.base
    ratio = table.weight[table.softmax > 1e-9] / table.softmax[table.softmax > 1e-9]
    if bool(((table.weight == 0) | ((table.softmax - table.weight).abs() <= SUM_TOLERANCE)).all()):
        message = "weights are set to zero after the softmax, so that those of a query no longer sum to 1"
    elif float(ratio.max() - ratio.min()) < 1e-6:
        message = f"the weights are multiplied by {float(ratio[0]):.4g} after the softmax"
    else:
        message = f"{int(changed.sum())} of {len(changed)} weights are changed after the softmax"
    return Finding("violation", "weights-kept", "weights", message, table.instance.sums_location)
