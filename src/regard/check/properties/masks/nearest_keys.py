"""Keys that a query keeps by their distance from it: the nearest ones, where the code speaks of neighbours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation

__all__ = ["farthest_key_findings", "farthest_of_more_findings"]

NEAREST_KEPT = "nearest-kept"
MORE = 3
"""How many times as many points a second call has: code that is told how many to keep may keep all of a few."""
MIN_QUERIES = 8
"""Of fewer, the farthest points may be kept by chance."""
_NEIGHBOURS = re.compile(r"k_?nn(?![a-z])|nearest|neighbou?r", re.I)
_FARTHEST = re.compile(r"far_?thest|furthest|dilat", re.I)
"""How code says that it means near points, or others."""


def farthest_key_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether each query keeps the keys whose points are the farthest from its own, itself aside.

    Args:
        invocation: the call; its points are any vectors that it was given for each token.
        evidence: an attention whose keys are chosen by numbers.
    """
    if not _NEIGHBOURS.search(evidence.code) or _FARTHEST.search(evidence.code):
        return
    for name, points in _points(invocation).items():
        kept = _kept(evidence, *points.shape[:2])
        if kept is None:
            return
        others = ~torch.eye(points.shape[1], dtype=torch.bool)
        asks = kept.any(-1)
        near, far = (kept & others)[asks], (~kept & others)[asks]
        if len(near) < MIN_QUERIES or not bool((near.any(-1) & far.any(-1)).all()):
            continue
        distance = torch.cdist(points.double(), points.double())[asks]
        nearest_kept = distance.masked_fill(~near, torch.inf).amin(-1)
        if bool((nearest_kept > distance.masked_fill(~far, -torch.inf).amax(-1)).all()):
            count = int(kept[asks][0].sum())
            message = (
                f"each query keeps the {count} keys of {kept.shape[-1]} that are the farthest from it by {name}, where "
                "the code speaks of neighbours"
            )
            yield Finding("violation", NEAREST_KEPT, "mask", message, evidence.base.instance.scores_location)
            return


def farthest_of_more_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """The same with more points.

    Args:
        analysis: of a call without violations.
        judge: what analyzes another call.
    """
    invocation = analysis.invocation
    points = _points(invocation)
    if not points or not any(each.property == "sparse-by-content" for each in analysis.designs):
        return
    draw = torch.Generator().manual_seed(0)
    given = dict(invocation.arguments)
    for name, value in points.items():
        shape = (value.shape[0], MORE * value.shape[1], *value.shape[2:])
        given[name] = torch.randn(shape, generator=draw, dtype=value.dtype)
    others = [each for name, each in given.items() if name not in points and isinstance(each, Tensor)]
    if others:  # they are of as many tokens as the call had
        return
    judged = judge(replace(invocation, arguments=given))
    yield from (each for each in judged.violations if each.property == NEAREST_KEPT)


def _points(invocation: Invocation) -> dict[str, Tensor]:
    """What was given with a vector for each token of each sample, by the argument."""
    streams = [each for each in invocation.streams if each.batch_axis == 0 and each.token_axes == (1,)]
    sizes = {invocation.arguments[each.argument].shape[:2] for each in streams}
    return {
        name: each
        for name, each in invocation.arguments.items()
        if isinstance(each, Tensor) and each.is_floating_point() and each.ndim == 3 and {each.shape[:2]} == sizes
    }


def _kept(evidence: Evidence, samples: int, tokens: int) -> Tensor | None:
    """(samples, queries, keys): whether they are scored; None where these are no tokens of one sequence."""
    query, key = evidence.base.query, evidence.base.key
    ends = ((query.sample, samples), (query.token, tokens), (key.token, tokens))
    if not all(len(each) and 0 <= int(each.min()) <= int(each.max()) < end for each, end in ends):
        return None
    kept = torch.zeros(samples, tokens, tokens, dtype=torch.bool)
    kept[query.sample, query.token, key.token] = True
    return kept
