"""Attention whose steps do not show its weights: they are read off its output, and judged as any others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from regard.check.location import CodeLocation
from regard.check.properties.analysis import BY_HAND
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import mask_findings
from regard.check.properties.modules.slopes import slope_findings
from regard.check.properties.scores.formula import fit_scores, score_findings
from regard.check.properties.sums import query_numbers, sums_by
from regard.check.properties.weights.chunk_weights import chunk_findings, with_final_weights
from regard.check.properties.weights.delta_rule import delta_rule_findings, says_delta_rule
from regard.check.properties.weights.later_division import later_division
from regard.check.properties.weights.softmax import weight_findings
from regard.check.roles.influence import influence_of
from regard.check.roles.instances import TaggedRun
from regard.check.roles.reading import reader_of
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["confirmed", "linear_findings", "read_findings"]

EXPONENTIALS = frozenset({"exp", "exp2", "_softmax", "_safe_softmax", "_log_softmax", "logsumexp"})
DIVISIONS = frozenset({"div", "mul"})
Maker = Callable[[AttentionTable, AttentionTable], Evidence]
"""Adds to the tables of two runs what else is known of a call."""
_FEATURES = re.compile(
    r"\bfeature[\s-]*mapped\b|\b(?:positive|non-?negative)\s+(?:(?:\w+\s+)?features\b|q(?:uery|ueries)?\b)"
    r"|\b(?:positive|non-?negative)\)[^.\n]{0,9}\bq(?:uery|ueries)?\b|\bq(?:uery|ueries)?\b[^.:\n]*:[^.\n]*"
    r"\b(?:all positive|(?:are|must be) (?:positive|non-?negative))\b",
    re.I,
)
"""In documentation: that the caller has made features of queries and keys, none of which is negative."""
SUM_TOLERANCE = 1e-4
"""Of the weights of linear attention: a small number in its denominator is larger beside its small features."""


def read_evidence(invocation: Invocation, run: TaggedRun, fresh: Mapping[str, Any], make: Maker) -> Evidence | None:
    """The weights of a function of q, k and v by its output alone; None where they cannot be read.

    Args:
        invocation: the call.
        run: of it.
        fresh: its arguments with all tokens drawn anew.
        make: see `Maker`.
    """
    reader = reader_of(invocation)
    if reader is None:
        return None
    base = reader.table(run, invocation.arguments)
    other = reader.table(run, fresh) if base is not None else None
    if base is None or other is None or len(other.weight) != len(base.weight):
        return None
    return make(base, other)


def read_findings(invocation: Invocation, run: TaggedRun, fresh: Mapping[str, Any], make: Maker) -> list[Finding]:
    """What is found of a function of q, k and v in whose steps no attention was seen; nothing where none is read."""
    if _FEATURES.search(documentation_of(invocation.target)):
        fresh = _features(invocation, fresh)
        invocation = replace(invocation, arguments=_features(invocation, invocation.arguments))
    reader = reader_of(invocation)
    if found := delta_rule_findings(invocation):
        return found
    if reader is None:
        return []
    evidence = read_evidence(invocation, run, fresh, make)
    if evidence is None:
        order = reader.channel_order()
        return [_channels(order)] if order is not None and order != sorted(order) else []
    message = "an output is a weighted sum of the values, and no more"
    in_order = "a channel of the output holds the same channel of the values"
    return [
        Finding("holds", "value-of-the-key", "weighted sum", message),
        Finding("holds", "output-of-the-head", "heads joined", in_order),
        Finding("absent", "projected-once", "projected", "none: the heads are returned without a further matrix"),
        *(
            replace(each, message=f"{each.message} (read off the output)") if each.kind == "holds" else each
            for each in _judged(invocation, evidence)
        ),
    ]


def _features(invocation: Invocation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with queries and keys that are features: none negative."""
    asking = {each.argument for each in invocation.streams if each.role in ("q", "k")}
    return {name: value.abs() if name in asking else value for name, value in arguments.items()}


def _judged(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    found = list(weight_findings(evidence))
    if any(each.property == "weights-not-negative" for each in found) and says_delta_rule(invocation.target):
        message = "its weights are those of the delta rule, and of something else besides: they were not judged"
        found = [Finding("open", "weights-by-hand", "weights", message)]
    yield from found
    if any(each.kind == "violation" for each in found):
        return
    yield from mask_findings(evidence)
    fit = fit_scores(evidence) if all(each.kind == "holds" for each in found) else None
    if fit is None:
        message = "its weights are no softmax, or too few of them are not zero: its scores were not judged"
        yield Finding("open", "scores-bilinear", "scores", message)
    elif fit.linear or invocation.arrays or _has_exponentials_of_scores(invocation, evidence.base.instance.run.trace):
        yield from score_findings(evidence, fit)
        if fit.linear:
            message = "none: queries, keys and values are multiplied as they are handed over"
            yield Finding("absent", "query-of-one-token", "projections", message)
            message = "none: the same token is the same everywhere"
            yield Finding("absent", "positions", "positions", message)
    else:
        message = (
            "its weights sum to 1 and are no exponentials of scores: another function of queries and keys (linear "
            "attention)"
        )
        yield Finding("design", "linear-attention", "scores", message)


def _has_exponentials_of_scores(invocation: Invocation, trace: Trace) -> bool:
    """Whether an exponential is of a query and a key: one of each alone is a feature map of linear attention."""
    taken = [each for each in trace if each.name in EXPONENTIALS]
    if not taken:
        return False
    names = {each.role: each.argument for each in invocation.streams}
    sides = [names.get(role) for role in "qk"]
    influence = influence_of(invocation, trace, keep=lambda each: each.kind == "token" and each.stream in sides)
    rows = [[row for row, (source, _) in enumerate(influence.runs) if source.stream == side] for side in sides]
    if not all(rows):
        return True  # not known
    return any(all(bool(influence.of(each.index, 0)[side].any()) for side in rows) for each in taken)


def _channels(order: list[int]) -> Finding:
    at = next(number for number, each in enumerate(order) if number != each)
    message = f"what is read from channel {order[at]} of the values is returned in channel {at}"
    return Finding("violation", "output-of-the-head", "heads joined", message)


def confirmed(
    invocation: Invocation, evidence: Evidence, found: list[Finding], fresh: Mapping[str, Any]
) -> tuple[list[Finding], Evidence]:
    """What is found of the weights, after what becomes of the weighted sums, where the output shows that.

    Args:
        invocation: the call of one attention.
        evidence: of it, by the weights that its weighted sums take.
        found: what these say.
        fresh: the arguments with all tokens drawn anew.
    """
    if all(each.kind == "holds" or each.step == "mask" or each.property == "sinks" for each in found):
        return found, evidence  # of who is weighed, the output says no more
    if any(each.property == "softmax-of-scores" for each in found):  # whatever the output's weights sum to
        return found, evidence
    run = evidence.base.instance.run
    read = read_evidence(invocation, run, fresh, lambda base, other: replace(evidence, base=base, fresh=other))
    if read is None:
        is_open = any(each.property in BY_HAND for each in found)
        unsummed = [each.property for each in found if each.kind == "violation"] == ["weights-sum-to-one"]
        later = later_division(invocation, evidence) if is_open or unsummed else None
        final = with_final_weights(invocation, evidence, fresh) if is_open else None
        if final is not None and (wrong := list(chunk_findings(evidence, final))):
            return wrong, evidence
        if unsummed and later is not None and later.kind == "violation":
            return found, evidence
        if later is None or later.kind != "holds":
            return found if later is None else [later], evidence
        if slopes := list(slope_findings(invocation)):  # the sum may be computed without gradients
            return slopes, evidence
        is_known = final is not None and not bool(final.base.weight.isnan().any())
        found = [later, *([_of_features(evidence)] if unsummed else [])]
        return found, final if final is not None and is_known else evidence
    again = list(weight_findings(read))
    violated = any(each.kind == "violation" for each in found)
    if (violated and any(each.kind == "violation" for each in again)) or not again:
        return found, evidence  # its line is known
    line = evidence.base.instance.sums_location
    names = {"weights-sum-to-one": "weights-sum-later"}
    return [
        replace(
            each,
            location=each.location or line,
            property=names.get(each.property, each.property) if each.kind == "holds" else each.property,
        )
        for each in again
    ], read


def _of_features(evidence: Evidence) -> Finding:
    """What weights are that are divided by their sum after the weighted sum, and are no exponentials."""
    message = "the weights of a query are no exponentials, and are divided by their sum later (linear attention)"
    return Finding("design", "feature-weights", "scores", message, evidence.base.instance.scores_location)


def linear_findings(invocation: Invocation, run: TaggedRun, fresh: Mapping[str, Any], make: Maker) -> list[Finding]:
    """Whether linear attention that is normalized has weights that sum to 1; of the delta rule, what it writes."""
    if found := delta_rule_findings(invocation):
        return found
    evidence = read_evidence(invocation, run, fresh, make)
    if evidence is None:
        return []
    sums = sums_by(query_numbers(evidence), evidence.base.weight)
    error = (sums - 1).abs()
    if float(error.max()) <= SUM_TOLERANCE:
        message = f"over the keys of a query: sum 1 (to {max(float(error.max()), 1e-16):.0e})"
        return [Finding("holds", "weights-sum-to-one", "weights", message)]
    divisions = list(_divisions(run))
    if not divisions:
        return []
    worst = float(sums[error.argmax()])
    message = (
        f"the weights of a query, read off the output, sum to {worst:.4g} over its keys, not to 1: "
        "what it is divided by is not the sum of its weights"
    )
    return [Finding("violation", "weights-sum-to-one", "weights", message, divisions[0])]


def _divisions(run: TaggedRun) -> Iterator[CodeLocation | None]:
    """The lines where one product of what was handed over is divided by another, or multiplied by its inverse."""
    own = {each.operation.index for each in run.bilinear}
    for operation in run.trace:
        if operation.name.rstrip("_") in DIVISIONS and len(operation.inputs) == 2:
            above, below = (run.owner_of(tags) & own for tags in run.tags.inputs[operation.index])
            if above and below and above != below:
                yield operation.location
