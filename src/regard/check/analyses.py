"""The analyses of the calls of one target: of other sizes, and of other readings of its axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import TOO_LARGE, analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.shape_search import SEQUENCE_LETTERS
from regard.check.time_limit import is_over

__all__ = ["analyzed", "with_open_shapes"]

MAX_CALLS = 4
"""Calls of other sizes or arguments that are analyzed."""
OF_EQUAL_NUMBERS = frozenset({"keys-seen", "logits-of-the-query"})
"""Properties that code for as many keys as queries need not have for other numbers."""
OF_MIXED_SAMPLES = frozenset({"output-of-the-token", "samples-apart", "value-of-the-sample"})
"""Properties that are violated as well where rows of all samples are cut into chunks, and no sample has whole ones."""
OF_ANY_SHAPES = frozenset(
    {
        "bias-as-documented",
        "default-runs",
        "dropout-handed-on",
        "gate-mixes-others",
        "mix-as-documented",
        "parameters-kept",
        "results-read",
        "scale",
        "sizes-of-its-own",
        "stays-in-eval",
        "weights-cumulated",
    }
)
"""Properties that hold whatever the shapes of the inputs are meant to be."""
_OF_ONE_SAMPLE = re.compile(r"(?:\w+=\(1, T, D,\)(?:, )?)+")
"""Shapes of sequences as usual, where what a module keeps is of one sample: no others are meant."""


def analyzed(calls: Iterator[Invocation]) -> tuple[list[Analysis], Exception | None]:
    """The analyses of some calls of one target, up to the first with a violation; why there are no more."""
    found: list[Analysis] = []
    unseen: Analysis | None = None
    joined: Analysis | None = None
    first: dict[str, object] = {}
    try:
        for invocation in calls:
            layout = {each.argument: (each.batch_axis, each.token_axes, each.head_axis) for each in invocation.streams}
            is_other = any(first.get(name, axes) != axes for name, axes in layout.items())
            if is_other and not (found and (found[0].is_kind_alone or _is_unjudged_sequence(found[0], invocation))):
                continue  # another reading of the same call, less likely than the first
            # Where sizes coincide, a mask with its axes in another order would run as well.
            is_asked_again = bool(found) and not _are_numbers_other(invocation) and found[0].refuses_masks
            analysis = analyze(
                invocation, masks=not found or is_other or is_asked_again, is_first=not found or is_other
            )
            if is_asked_again:  # this one says what is known of the masks that the first refused
                found[0].findings = [each for each in found[0].findings if each.property != "mask-refused"]
            if (is_other and not analysis.has_scores) or (found and found[0].is_in_chunks > analysis.is_in_chunks):
                continue
            if found and found[0].has_scores and analysis.missing == [TOO_LARGE]:
                found[0].findings.append(
                    Finding("note", "other-sizes", "scores", "not judged with other sizes as well")
                )
                continue
            violated = {each.property for each in analysis.violations}
            if (invocation.two_widths and violated != {"scale"}) or (invocation.switched_on and not violated):
                continue
            may_be_meant = bool(violated) and violated <= OF_EQUAL_NUMBERS and _are_numbers_other(invocation)
            if may_be_meant and unseen is None and not found:
                unseen, first = analysis, {**layout}
                continue
            if violated and violated <= OF_MIXED_SAMPLES and not _takes_one_sample(invocation):
                joined = joined or analysis
                continue
            if is_other:  # what was taken for channels are tokens
                found, first = [], {}
            first = {**layout, **first}
            found.append(analysis)
            if len(found) == MAX_CALLS or found[-1].violations:
                break
            if is_over():
                told = f"judged by the first {len(found)} of its calls: they took long, and no others were made"
                found[0].findings.append(Finding("note", "time-over", "scores", told))
                break
    except Exception as error:
        return _with_unseen_keys(_with_joined_samples(found, joined), unseen), error
    return _with_unseen_keys(_with_joined_samples(found, joined), unseen), None


def with_open_shapes(analyses: list[Analysis]) -> list[Analysis]:
    """What the properties say of calls; where errors alone tell their shapes, what hangs on these is asked about.

    Other shapes may be meant. A scale, say, is the same with any, unless nothing tells how wide the queries are.
    """
    shapes = next((each.invocation.by_errors for each in analyses if each.invocation.by_errors), "")
    for analysis in analyses if shapes and not _OF_ONE_SAMPLE.fullmatch(shapes) else ():
        for found in analysis.violations:
            if found.property in OF_ANY_SHAPES and not (found.property == "scale" and _are_of_any_width(shapes)):
                continue
            why = f'it runs with --args "{shapes}", as its errors tell; with such inputs {found.message}'
            analysis.missing.append(f"{why}. Hand these over if they are meant, or others")
            analysis.findings[analysis.findings.index(found)] = replace(found, kind="open")
    return analyses


def _are_of_any_width(shapes: str) -> bool:
    """Whether the last axis of the first argument that errors told the shape of is as long as nothing else says."""
    first = re.match(r"\w+=\((?:[^()]*,\s*)?(\w+),?\)", shapes)
    return first is not None and first[1] in SEQUENCE_LETTERS


def _are_numbers_other(invocation: Invocation) -> bool:
    """Whether its sequences have different numbers of tokens."""
    shapes = [(invocation.arguments[each.argument].shape, each.token_axes) for each in invocation.streams]
    return len({tuple(shape[axis] for axis in axes) for shape, axes in shapes}) > 1


def _is_unjudged_sequence(analysis: Analysis, other: Invocation) -> bool:
    """Whether nothing was said of a sequence alone, and another call hands a batch of such over."""
    streams = analysis.invocation.streams
    if analysis.has_scores or not analysis.missing or len(streams) != 1 or len(other.streams) != 1:
        return False
    return streams[0].batch_axis is None and other.streams[0].batch_axis is not None


def _takes_one_sample(invocation: Invocation) -> bool:
    """Whether the call runs as well with the first sample of each sequence alone."""
    axes = {each.argument: each.batch_axis for each in invocation.streams}
    given = dict(invocation.arguments)
    for name, value in invocation.arguments.items():
        axis = axes.get(name)
        if isinstance(value, Tensor) and axis is not None:
            given[name] = value.narrow(axis, 0, 1)
    try:
        invocation.run(given)
    except Failed:
        return False
    return True


def _with_joined_samples(found: list[Analysis], joined: Analysis | None) -> list[Analysis]:
    """The analyses, with that of a call that mixes samples and runs with no sample alone, where all run so.

    As of windows, where a sample is of no whole number of them: those of two samples are, and run by accident.
    """
    if joined is None or any(each.violations or _takes_one_sample(each.invocation) for each in found):
        return found
    return [*found, joined]


def _with_unseen_keys(found: list[Analysis], unseen: Analysis | None) -> list[Analysis]:
    """The analyses, and that of a call with other numbers of keys than queries: a note where others are right."""
    if unseen is None or (found and any(each.violations for each in found)):
        return found
    if not found:
        return [unseen]
    told = (f"with another number of keys than queries {each.message}" for each in unseen.violations)
    found[0].findings += [Finding("note", "keys-seen", "scores", each) for each in told]
    return found
