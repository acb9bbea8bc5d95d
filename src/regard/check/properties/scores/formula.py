"""Scores: q . k of one head times one number, and what is added to it that depends on positions alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.lengths import length_ratios
from regard.check.properties.saturation import BLOCKED, is_saturated
from regard.check.properties.scores.bias import bias_findings
from regard.check.properties.scores.clamped_scores import clamped_scores
from regard.check.properties.scores.cosines import cosine_scores
from regard.check.properties.scores.distances import decayed_scores, distance_scores
from regard.check.properties.scores.exponentials import exponentiated_scores
from regard.check.properties.scores.learned_queries import learned_query_factor
from regard.check.properties.scores.merged_parts import merged_parts
from regard.check.properties.scores.selection import selected_scores
from regard.check.properties.scores.softmax_maximum import subtracted_maximum
from regard.check.properties.sums import query_numbers
from regard.check.roles.table import AttentionTable
from regard.check.trace.operation import Operation, Trace

__all__ = ["ScoreFit", "fit_scores", "score_findings"]

MIN_WEIGHT = 1e-9
"""Logarithms of smaller weights are not compared: their rounding is too large."""
LINEAR = 1e-6
"""The largest residual of scores that are a number times q . k, relative to the largest of them."""
SAME_NUMBER = 1e-5
SOFTCAP = re.compile(r"soft[-_ ]?cap", re.I)
MORE = 4
"""Times as many scores as factors: of fewer, any numbers can be written with them."""


@dataclass(frozen=True, eq=False)
class ScoreFit:
    """log(weight) = scale * q . k + bias, up to a number for each query."""

    scale: float
    """By which q . k, as they are multiplied, becomes the score; NaN where it is no single number."""
    scales: list[float]
    """The same of each head by itself."""
    bias: Tensor
    """(scores): what is added, less its mean over the keys of the query; NaN where the weight is zero."""
    linear: bool
    q_factor: float
    """By which a projected query is longer when it is multiplied; NaN where that differs among tokens."""
    k_factor: float
    width: int
    q_least: float = math.nan
    """The least factor of a query, where it differs among tokens."""
    parts: tuple[float, ...] = ()
    """The factors of the products that are added to q . k, where they are not those of q . k."""

    @property
    def total(self) -> float:
        """The scale of projected queries and keys."""
        return self.scale * self.q_factor * self.k_factor


def fit_scores(evidence: Evidence, *, before_softmax: bool = False) -> ScoreFit | None:
    """The numbers of an attention's scores; None where too few weights are not zero, or none is known.

    Args:
        evidence: the attention.
        before_softmax: whether they are read where the softmax takes them, as weights that are wrong do not show them.
    """
    base, fresh = evidence.base, evidence.fresh
    if len(base.weight) != len(fresh.weight):
        return None
    rows = query_numbers(evidence)
    live = (base.weight > MIN_WEIGHT) & (fresh.weight > MIN_WEIGHT)
    logs = [each.weight.clamp(min=1e-300).log() for each in (base, fresh)]
    if before_softmax or is_saturated(evidence):
        live = (base.masked > BLOCKED) & (fresh.masked > BLOCKED)
        logs = [each.masked for each in (base, fresh)]
    several = torch.zeros(int(rows.max()) + 1).index_add_(0, rows, live.float()) > 1
    live = live & several[rows] & ~(_uniform(base.weight, rows) | _uniform(fresh.weight, rows))
    logs = [_centered(each, rows, live) for each in logs]
    products = [_centered(each.product, rows, live) for each in (base, fresh)]
    y, x = (logs[0] - logs[1])[live], (products[0] - products[1])[live]
    if len(x) < 2 or float(x.abs().max()) < 1e-9 or float(y.abs().max()) < 1e-12:
        return None
    head = base.head[live]
    count = base.num_heads
    above, below = (torch.zeros(count, dtype=torch.float64).index_add_(0, head, each) for each in (x * y, x * x))
    scales = above / below.clamp(min=1e-300)
    residual = float((y - scales[head] * x).abs().max()) / max(float(y.abs().max()), 1e-12)
    bias = torch.where(live, logs[0] - scales[base.head] * products[0], float("nan"))
    width, of_parts = base.width, ()
    apart = None if residual < LINEAR else _with_own_factors(base, fresh, rows, live, logs)
    if apart is not None:
        factors, residual, bias = apart
        scales, width = factors[:, 0], base.q.shape[-1]
        of_parts = tuple(factors[0, 1:].tolist())
    same = float(scales.max() - scales.min()) < SAME_NUMBER * float(scales.abs().max())
    return ScoreFit(
        float(scales.mean()) if same else math.nan,
        scales.tolist(),
        bias,
        residual < LINEAR,
        _query_factor(base, fresh),
        _factor(base.k - fresh.k, base.k_source - fresh.k_source),
        width,
        _least_factor(base.q - fresh.q, base.q_source - fresh.q_source),
        of_parts,
    )


def _with_own_factors(
    base: AttentionTable, fresh: AttentionTable, rows: Tensor, live: Tensor, logs: list[Tensor]
) -> tuple[Tensor, float, Tensor] | None:
    """The same where q . k and what is added to it by learned vectors have factors of their own; None of all others.

    Returns:
        (heads, products): the factors, that of q . k first; the residual; and the bias.
    """
    depends, count = base.instance.run.depends, base.parts.shape[-1] + 1
    added = [each for each in base.instance.added if each.operation.index not in base.instance.handed_on]
    of_both = any(depends >= {each.left_place, each.right_place} for each in added)
    if of_both and not _is_of_another_sequence(base):
        return None  # parts of queries and keys, which have one factor
    if count < 2 or int(base.head[live].bincount(minlength=base.num_heads).min()) < MORE * count:
        return None
    several = []
    for each in (base, fresh):
        columns = torch.cat([(each.product - each.parts.sum(-1))[:, None], each.parts], -1)
        several.append(torch.stack([_centered(column, rows, live) for column in columns.unbind(-1)], -1))
    moved, wanted = (several[0] - several[1])[live], (logs[0] - logs[1])[live]
    factors = torch.stack(
        [
            torch.linalg.lstsq(moved[mine], wanted[mine, None], driver="gelsd").solution[:, 0]
            for mine in (base.head[live] == head for head in range(base.num_heads))
        ]
    )
    if of_both and float((factors[:, 1] - (base.width - base.q.shape[-1]) ** -0.5).abs().max()) > SAME_NUMBER:
        return None
    residual = float((wanted - (factors[base.head[live]] * moved).sum(-1)).abs().max())
    bias = torch.where(live, logs[0] - (factors[base.head] * several[0]).sum(-1), float("nan"))
    return factors, residual / max(float(wanted.abs().max()), 1e-12), bias


def _is_of_another_sequence(table: AttentionTable) -> bool:
    """Whether the scores of another sequence's queries and keys are added, as those of a layout to those of a text."""
    streams, lines = table.instance.run.streams, {each.operation.location for each in table.instance.added}
    own = frozenset[tuple[int, str]]().union(*(streams.get(each.operation.index, ()) for each in table.instance.scores))
    others = [streams.get(each.operation.index, frozenset()) for each in table.instance.added]
    return len(lines) == 1 and all(each and not each & own for each in others)


def _uniform(weight: Tensor, rows: Tensor) -> Tensor:
    """(scores): whether all keys of the query have the same weight: those of one with nothing to attend to."""
    count = int(rows.max()) + 1
    most = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(0, rows, weight, "amax")
    least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(0, rows, weight, "amin")
    return (most - least < 1e-12)[rows]


def _centered(numbers: Tensor, rows: Tensor, live: Tensor) -> Tensor:
    """Numbers less their mean over the live scores of the same query."""
    count = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).index_add_(
        0, rows[live], torch.ones(int(live.sum())).double()
    )
    total = torch.zeros_like(count).index_add_(0, rows[live], numbers[live])
    return numbers - (total / count.clamp(min=1))[rows]


def _query_factor(base: AttentionTable, fresh: AttentionTable) -> float:
    """The factor of queries; of learned ones, which no input changes, that of their projection."""
    if torch.equal(base.q, fresh.q):
        return learned_query_factor(base)
    return _factor(base.q - fresh.q, base.q_source - fresh.q_source)


def _factor(change: Tensor, source: Tensor) -> float:
    """How much longer the change of a vector is than that of what it was made of, if it is the same for all."""
    ratio = length_ratios(change, source)
    is_same = len(ratio) and float(ratio.max() - ratio.min()) < 1e-6 * float(ratio.max())
    return float(ratio.mean()) if is_same else math.nan


def _least_factor(change: Tensor, source: Tensor) -> float:
    ratio = length_ratios(change, source)
    return float(ratio.min()) if len(ratio) else math.nan


def _heads(table: AttentionTable) -> str:
    """How many heads there are, and how many of them share their keys."""
    if table.num_heads < 2:
        return ""
    heads = f" in each of {table.num_heads} heads"
    of_keys = table.keys_by_head
    groups = len({tuple(keys.flatten().tolist()) for keys in of_keys})
    if table.of_no_token and table.num_heads % groups == 0 and groups < table.num_heads:
        queries = f"{table.num_heads // groups} queries of no token"
        return f", {queries} in each of {groups} heads" if groups > 1 else f", {queries}"
    if groups == 1:
        return f"{heads}, which share one head of keys (multi-query attention)"
    if groups < table.num_heads and table.num_heads % groups == 0:
        return f"{heads}, {table.num_heads // groups} to a head of keys (grouped-query attention)"
    return heads


def score_findings(evidence: Evidence, fit: ScoreFit, documentation: str = "") -> Iterator[Finding]:
    """What scores are, beside q . k / sqrt(width).

    Args:
        evidence: of the attention.
        fit: what its scores are.
        documentation: of what was called.
    """
    table = evidence.base
    line = table.instance.scores_location
    if not fit.linear:
        yield (
            _capped(table, fit, evidence.code)
            or clamped_scores(evidence)
            or subtracted_maximum(evidence)
            or merged_parts(evidence)
            or distance_scores(evidence)
            or decayed_scores(evidence)
            or selected_scores(evidence)
            or cosine_scores(evidence)
            or exponentiated_scores(evidence, documentation)
            or Finding(
                "open",
                "scores-bilinear",
                "scores",
                "scores are not one number times q . k plus a bias of positions",
                line,
            )
        )
        return
    yield Finding("holds", "scores-of-two-tokens", "scores", f"q . k of one query and one key{_heads(table)}", line)
    right = fit.width**-0.5
    if fit.parts:
        listed = ", ".join(f"{each:.4g}" for each in fit.parts)
        message = f"q . k is times {fit.scales[0]:.4g}, what is added to it has a factor of its own: {listed}"
        yield Finding("design", "parts-scaled-apart", "scores", message, line)
    biased = list(bias_findings(evidence, fit.bias, fit.scale))
    yield from biased
    if table.instance.handed_on:
        message = "the scores of an attention before it are added to its own (residual attention, RealFormer)"
        yield Finding("design", "residual-scores", "scores", message, line)
    elif not biased:
        yield Finding("absent", "bias", "bias", "none: nothing is added to q . k but a mask", line)
    if math.isnan(fit.scale):
        listed = ", ".join(f"{each:.4g}" for each in fit.scales)
        yield Finding("design", "scale-by-head", "scale", f"each head has a scale of its own: {listed}", line)
        return
    if math.isnan(fit.total):
        if table.normalized:
            yield Finding(
                "design",
                "qk-norm",
                "projections",
                f"queries and keys are normalized; scores are times {fit.scale:.4g}",
                line,
            )
        elif abs(fit.scale * fit.q_least * fit.k_factor - right) < SAME_NUMBER * right:
            message = f"1/sqrt({fit.width}) = {right:.4g}, for the query that is scaled least"
            yield Finding("holds", "scale", "scale", message, line)
        elif math.isnan(fit.q_factor) and not math.isnan(fit.k_factor):
            yield _beside_the_queries(fit, line)
        elif math.isnan(fit.q_factor) and math.isnan(fit.k_factor):
            yield from _behind_activations(fit, table.num_heads, line)
        return
    if abs(fit.total - right) > SAME_NUMBER * right:
        learned = any(each.property in ("relative-bias", "bias-by-distance") for each in biased)
        if learned and abs(fit.total - 1) < SAME_NUMBER:
            yield Finding("design", "no-scale", "scale", "scores are not scaled (T5: the initialization does it)", line)
            return
        yield Finding(
            "violation",
            "scale",
            "scale",
            f"q . k is multiplied by {fit.total:.4g}{_known(fit.total)}, not by 1/sqrt({fit.width}) = {right:.4g}",
            line,
        )
        return
    yield Finding("holds", "scale", "scale", f"1/sqrt({fit.width}) = {right:.4g}", line)


def _beside_the_queries(fit: ScoreFit, line: CodeLocation | None) -> Finding:
    """The scale of learned queries, which may hold a factor themselves."""
    right, number = fit.width**-0.5, fit.scale * fit.k_factor
    if abs(number - right) < SAME_NUMBER * right:
        return Finding("holds", "scale", "scale", f"1/sqrt({fit.width}) = {right:.4g}", line)
    if abs(number - 1 / right) < SAME_NUMBER / right:
        message = f"q . k is multiplied by {number:.4g}{_known(number)}, not divided by it"
        return Finding("violation", "scale", "scale", message, line)
    return Finding("open", "scale-open", "scale", "queries have factors of their own: not judged", line)


def _behind_activations(fit: ScoreFit, heads: int, line: CodeLocation | None) -> Iterator[Finding]:
    """The scale of queries and keys that no one factor makes of what their matrices return, as behind a ReLU.

    Such a function may hold any factor: but none makes the number of heads the width of one.
    """
    right = fit.width**-0.5
    if abs(fit.scale - right) < SAME_NUMBER * right:
        yield Finding("holds", "scale", "scale", f"1/sqrt({fit.width}) = {right:.4g}", line)
    elif heads > 1 and abs(fit.scale * heads**0.5 - 1) < SAME_NUMBER:
        message = (
            f"q . k is multiplied by {fit.scale:.4g} = 1/sqrt({heads}), by the number of heads, not by "
            f"1/sqrt({fit.width}) = {right:.4g}, by the width of one"
        )
        yield Finding("violation", "scale", "scale", message, line)


def _known(number: float) -> str:
    """How a number may have come about."""
    if abs(number - 1) < SAME_NUMBER:
        return " (not scaled)"
    if number <= 0:
        return ""
    square = (1 / number) ** 2
    if abs(square - round(square)) < 1e-4 * square and round(square) > 1:
        return f" = 1/sqrt({round(square)})"
    return f" = sqrt({round(number**2)})" if abs(number**2 - round(number**2)) < 1e-4 * number**2 else ""


def _capped(table: AttentionTable, fit: ScoreFit, code: str) -> Finding | None:
    """What is found of scores that go through tanh; None where they do not.

    Those of a pointer network are 10 tanh(score): whether they were to be divided by the cap, the code says.
    """
    run = table.instance.run
    own = {each.operation.index for each in table.instance.scores}
    for operation in run.trace:
        if operation.name != "tanh" or not run.owner_of(run.tags.inputs[operation.index][0]) & own:
            continue
        rows = table.layout.row_of[run.tags.inputs[operation.index][0]].flatten()
        taken = operation.inputs[0].data.flatten().double()
        known = (rows >= 0) & taken.isfinite()
        products = _all_products(table)[rows[known]]
        slope = float((taken[known] @ products) / (products @ products))
        factor = _factor_after(operation, run.trace, known)
        line = operation.location
        if math.isnan(factor) and table.of_no_token and _is_by_learned_numbers(table):
            message = "scores are tanh(w . k) with a learned vector w: those of a perceptron (Ma et al. 2017, IAN)"
            return Finding("design", "softcap", "scale", message, line)
        if math.isnan(factor):
            message = "scores are capped by tanh and not multiplied by the cap again: they lie between -1 and 1"
            return Finding("violation", "softcap-restored", "scale", message, line)
        if abs(slope * factor * fit.q_factor * fit.k_factor - 1) < SAME_NUMBER:
            message = "scores are capped before they are scaled, not after"
            return Finding("violation", "softcap-of-scaled", "scale", message, line)
        divided = slope * fit.q_factor * fit.k_factor * fit.width**0.5  # by the cap: what is left of a score
        is_undivided = abs(divided - 1) < SAME_NUMBER
        if is_undivided and abs(factor - 1) > SAME_NUMBER and SOFTCAP.search(code):
            message = f"scores are not divided by the cap before tanh: small ones are multiplied by {factor:.4g}"
            return Finding("violation", "softcap-restored", "scale", message, line)
        if abs(factor - divided) < SAME_NUMBER * factor and abs(factor - 1) > SAME_NUMBER:
            times = f"divided by {1 / factor:.4g}" if factor < 1 else f"multiplied by {factor:.4g}"
            message = f"scores are {times} before tanh and after it as well: they lie within {factor:.4g} of 0"
            return Finding("violation", "softcap-restored", "scale", message, line)
        return Finding("design", "softcap", "scale", "scores are soft-capped by tanh", line)
    return None


def _is_by_learned_numbers(table: AttentionTable) -> bool:
    """Whether a factor of each score is a parameter as it is, in which the inputs have no part."""
    run = table.instance.run
    return all(
        any(run.trace.taken(place).learned and place not in run.depends for place in each.places)
        for each in table.instance.scores
    )


def _factor_after(operation: Operation, trace: Trace, known: Tensor) -> float:
    """By which the results of an operation are multiplied next; NaN where they are not."""
    for later in trace.operations[operation.index + 1 :]:
        if later.name.rstrip("_") not in ("mul", "div") or not later.inputs:
            continue
        if later.inputs[0].storage == operation.outputs[0].storage:
            result = later.outputs[0].data.flatten()[known].double()
            before = operation.outputs[0].data.flatten()[known].double()
            return float((result @ before) / (before @ before))
    return math.nan


def _all_products(table: AttentionTable) -> Tensor:
    """Q . k of every score that is computed."""
    return torch.cat([each.output.data.flatten() for each in table.instance.scores]).double()
