"""Buckets of distances, as those of T5: half of them for one distance each, the others for ranges that grow."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.learned_tables import lookups, run_of_tokens
from regard.check.target import Invocation
from regard.check.target.names import constructor_meaning
from regard.check.target.told_numbers import numbers_told

__all__ = ["bucket_findings"]

MAX_TOKENS = 200
"""Farther distances are not asked."""
ROUNDING = 1e-4
"""Of the place of a distance among the buckets: logarithms are often computed in float32."""


def bucket_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Distances that share an entry of the table where T5 parts them, or the other way round.

    Those of Raffel et al. 2020, section 2.1, as published: of n buckets for a side, distances up to n/2 have one each,
    and from there on ranges grow up to the largest distance. Of both sides, each has half of the buckets.

    Args:
        invocation: the call; its modules say how many buckets there are, and the largest distance.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    told = {constructor_meaning(name.strip("_")): number for name, number in numbers_told(invocation)}
    count, farthest = told.get("buckets", 0), told.get("distance", 0)
    if count < 4 or farthest <= count // 2:
        return
    tokens = min(farthest + evidence.num_tokens, MAX_TOKENS)
    run = run_of_tokens(invocation, tokens)
    for entries, index, line in [] if run is None else lookups(run, tokens):
        past = index[-1].flip(0)
        if entries != count or len(torch.unique(past)) == 1:
            continue
        parted = past.diff() != 0
        gaps = [_unlike(parted, side, farthest) for side in (count, count // 2)]
        if all(gaps):
            at = gaps[0][0]
            what = (
                "have an entry each, and share one in T5" if parted[at] else "share an entry, and have one each in T5"
            )
            message = f"of {count} buckets up to distance {farthest}, distances {at} and {at + 1} {what}"
            yield Finding("violation", "bucket-of-each-distance", "bias", message, line)
            return


def _unlike(parted: Tensor, count: int, farthest: int) -> list[int]:
    """The distances that are parted from the next where T5's are not, or the other way round.

    Args:
        parted: (distances), whether each has another entry than the next.
        count: the buckets of this side.
        farthest: the largest distance.
    """
    exact = count // 2

    def places(distance: int) -> set[int]:
        if distance < exact:
            return {distance}
        place = exact + math.log(distance / exact) / math.log(farthest / exact) * (count - exact)
        return {min(int(place + each), count - 1) for each in (-ROUNDING, ROUNDING)}

    found = list[int]()
    for distance, is_parted in enumerate(parted.tolist()):
        one, two = places(distance), places(distance + 1)
        if len(one) == len(two) == 1 and (one != two) != is_parted:
            found.append(distance)
    return found
