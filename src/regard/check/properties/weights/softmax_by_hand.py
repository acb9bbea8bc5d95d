"""A softmax that is written by hand: what its exponentials were divided by, read from the weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import fit_scores
from regard.check.properties.sums import other_sums, query_numbers, sums_by
from regard.check.roles.table import AttentionTable

__all__ = ["by_hand_findings"]

TOLERANCE = 1e-5
"""A small number in the denominator, against division by zero, is no mistake."""
MIN_QUERIES = 3
"""Of each head: what two have in common may be chance."""
EXACT, NOTICEABLE = 1e-12, 1e-3
"""How far sums are from 1 that are of float64, and those that are not."""


def by_hand_findings(evidence: Evidence, line: CodeLocation | None) -> Iterator[Finding]:
    """What is found of weights that are exponentials, divided by something or not.

    Args:
        evidence: of an attention without a softmax of PyTorch's.
        line: that of the weights.
    """
    sums = sums_by(query_numbers(evidence), evidence.base.weight)
    live = sums[sums > TOLERANCE]
    error = float((live - 1).abs().max()) if len(live) else 0.0
    if len(live) and error <= TOLERANCE:
        message = f"over the keys of a query: none negative, sum 1 (to {max(error, 1e-16):.0e}); written by hand"
        yield Finding("holds", "weights-sum-to-one", "weights", message, line)
        return
    is_read = not evidence.base.instance.sums
    if not is_read and (small := _beside_a_small_number(evidence)):
        message = (
            f"over the keys of a query: none negative, sum 1 but for {small:.0e} that is added to the sum of their "
            "exponentials; written by hand"
        )
        yield Finding("holds", "weights-sum-to-one", "weights", message, line)
        return
    if not is_read and _are_numerators(evidence):
        message = "its softmax is written by hand, and divided after the weighted sum: seen in its output alone"
        yield Finding("open", "weights-divided-later", "weights", message, line)
        return
    over = other_sums(evidence, TOLERANCE)
    if over:
        message = (
            f"the weights sum to 1 over {over}, and to {float(live.min()):.4g} to {float(live.max()):.4g} over keys"
        )
        yield Finding("violation", "softmax-over-keys", "weights", f"{message} of a query", line)
        return
    crossed = None if is_read else _by_sums_of_other_queries(evidence, line)
    if crossed is not None:
        yield crossed
        return
    if is_read and float(sums.max()) > 1 + TOLERANCE:
        message = f"the weights of a query, read off the output, sum to {float(sums.max()):.4g} over its keys, not to 1"
        yield Finding("violation", "weights-sum-to-one", "weights", message, line)
        return
    if is_read and (smaller := _of_some_queries(evidence, live)):
        message = (
            f"the weights of a query, read off the output, sum to {smaller:.4g} over its keys, and those of others to "
            "1: what they are divided by is not the sum of their exponentials"
        )
        yield Finding("violation", "weights-sum-to-one", "weights", message, line)
        return
    found = _sink(evidence, sums, line) if len(live) and bool((live < 1).all()) else None
    message = "its softmax is written by hand: seen in its output, not by itself"
    yield found or Finding("open", "weights-by-hand", "weights", message, line)


def _of_some_queries(evidence: Evidence, sums: Tensor) -> float:
    """The least sum of exponentials of scores, where it is not 1, and that of other queries is 1; 0 elsewhere.

    A sink takes a share of the weights of each query, however small.
    """
    is_one = (sums - 1).abs() <= EXACT
    fit = fit_scores(evidence) if bool(is_one.any()) and float(sums.min()) < 1 - NOTICEABLE else None
    return float(sums.min()) if fit is not None and fit.linear else 0.0


def _by_sums_of_other_queries(evidence: Evidence, line: CodeLocation | None) -> Finding | None:
    """Weights of key j that are divided by the sum of query j, as where the sums lost their axis of keys."""
    table = evidence.base
    exponentials, divided_at = _exponentials(table, line)
    numbers, weights = (table.dense(each) for each in (exponentials, table.weight))
    if numbers.shape[-1] != numbers.shape[-2] or bool(numbers.isnan().any()):
        return None
    if not torch.allclose(weights, numbers / numbers.sum(-1)[..., None, :], rtol=TOLERANCE, atol=0):
        return None
    sums = weights.sum(-1)
    message = (
        "the weight of key j is divided by the sum of query j's exponentials, not of its own query's: weights of a "
        f"query sum to {float(sums.min()):.4g} to {float(sums.max()):.4g}"
    )
    return Finding("violation", "weights-sum-to-one", "weights", message, divided_at)


def _exponentials(table: AttentionTable, line: CodeLocation | None) -> tuple[Tensor, CodeLocation | None]:
    """(scores): the exponential of each, NaN where there is none; and the line that divides them."""
    run, row_of = table.instance.run, table.rows_of_tags()
    exponentials, divided_at = torch.full_like(table.weight, torch.nan), line
    for operation in run.trace:
        rows = row_of[run.tags.outputs[operation.index][0]] if run.tags.outputs[operation.index] else row_of[:0]
        known = rows >= 0
        if operation.name.rstrip("_") in ("exp", "exp2") and bool(known.any()):
            exponentials[rows[known]] = operation.outputs[0].data[known].double()
        elif operation.name.rstrip("_") == "div" and bool(known.any()):
            divided_at = operation.location
    return exponentials, divided_at


def _beside_a_small_number(evidence: Evidence) -> float:
    """What is added to every query's sum of exponentials, where it is small; 0 where weights are made otherwise.

    Where the largest score of all is taken out of the exponents, the sums of some queries are small as well.
    """
    table, rows = evidence.base, query_numbers(evidence)
    exponentials, _ = _exponentials(table, None)
    if bool(exponentials.isnan().any()):
        return 0.0
    sums = sums_by(rows, exponentials)
    live = exponentials > 0
    if not bool(live.any()):
        return 0.0
    added = (exponentials / table.weight - sums[rows])[live]
    least, most = float(added.min()), float(added.max())
    return most if least > 0 and most - least <= NOTICEABLE * most and most <= TOLERANCE else 0.0


def _sink(evidence: Evidence, sums: Tensor, line: CodeLocation | None) -> Finding | None:
    """What takes the rest of the weights: the score that a key with this rest would have."""
    table, rows = evidence.base, query_numbers(evidence)
    fit = fit_scores(evidence)
    if fit is None or not fit.linear or float(fit.bias.nan_to_num().abs().max()) > TOLERANCE:
        return None
    scores = torch.tensor(fit.scales)[table.head].double() * table.product
    live = table.weight > TOLERANCE**2
    if not bool(live.any()):
        return None
    count = len(sums)
    denominators = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(
        0, rows[live], (scores - table.weight.log())[live], "amax"
    )
    largest = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(0, rows[live], scores[live], "amax")
    rest = (1 - sums).log() + denominators
    known = rest.isfinite()
    heads = torch.zeros(count, dtype=torch.long).scatter(0, rows, table.head)[known]
    rests = [(rest[known][heads == each], largest[known][heads == each]) for each in sorted(set(heads.tolist()))]
    if int(known.sum()) < MIN_QUERIES or any(len(each) < MIN_QUERIES for each, _ in rests):
        return None
    told = [*dict.fromkeys(f"{float(each.mean()):.4g}" for each, _ in rests)]
    if all(float(each.max() - each.min()) < TOLERANCE for each, _ in rests):
        each_head = "" if len(told) == 1 else " of its head"
        message = f"a sink of score {', '.join(told)}{each_head} takes a share of the weights of each query"
        return Finding("design", "sinks", "weights", message, line)
    if all(_is_above_the_largest(*each) for each in rests):
        message = (
            "the rest of the weights, 1 less their sum, is that of a key whose score is the same beside the largest of "
            "the query's scores: what was taken out of the exponents is missing in the denominator"
        )
        return Finding("violation", "sink-score", "weights", message, line)
    return None


def _is_above_the_largest(rest: Tensor, largest: Tensor) -> bool:
    """Whether what takes the rest of the weights has one score c beside the largest, or beside c if that is larger."""
    one = (rest - largest).median()
    return bool((((rest - largest - one).abs() < TOLERANCE) | ((rest - 2 * one).abs() < TOLERANCE)).all())


def _are_numerators(evidence: Evidence) -> bool:
    """Whether nothing is multiplied or divided between the exponentials of scores and the weighted sums."""
    instance = evidence.base.instance
    run, own = instance.run, {each.operation.index for each in instance.scores}
    last = max(each.operation.index for each in instance.sums)
    steps = [
        operation.name.rstrip("_")
        for operation in run.trace.operations[:last]
        if any(run.owner_of(tags) & own for tags in run.tags.inputs[operation.index])
    ]
    after = steps[max(at for at, name in enumerate(steps) if name in ("exp", "exp2")) :]
    return not {"div", "mul"} & set(after)
