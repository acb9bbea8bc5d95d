"""Two-stream attention: a stream of content and one of queries, whose keys are both of the content."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from regard.check.properties.code import sentences_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation

__all__ = ["two_stream_findings"]

_TWO_STREAMS = re.compile(r"\btwo[-\s]stream\s+(?:self[-\s]?)?attention\b", re.I)
_OF_CONTENT = re.compile(r"\bXLNet\b|\bcontent[-\s]stream\b|\bstream\b[^.]*\bcontent\b", re.I)
"""Else the streams may be of two pictures, each of which is read by itself."""
_NOT = re.compile(r"\b(?:no|not|without|unlike|instead|optional(?:ly)?|either|if|when)\b", re.I)


def two_stream_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Each of two sequences attends to itself, and neither to the other, in what is said to be two-stream attention.

    Yang et al. 2019, "XLNet", section 2.3: the query stream has no content of its own tokens, and reads that of the
    others from the content stream. (Of two streams that are called so as in ViLBERT, each reads the other.)

    Args:
        invocation: a call of several sequences.
        several: the evidence of its attentions.
    """
    text = name_and_documentation(invocation.target)
    said = any(_TWO_STREAMS.search(each) and not _NOT.search(each) for each in sentences_of(text))
    if not said or not _OF_CONTENT.search(text):
        return
    pairs = {_sides(each): each for each in reversed(several)}
    if None in pairs:
        return  # not of one sequence each
    alone = [each.argument for each in invocation.streams if (each.argument, each.argument) in pairs]
    for one, other in itertools.combinations(alone, 2):
        if (one, other) in pairs or (other, one) in pairs:
            continue
        instance = pairs[one, one].base.instance
        message = (
            f"by its documentation it has two streams, and {one} and {other} attend to themselves alone: the queries "
            "of one of them have to meet keys of the other, the content"
        )
        yield Finding(
            "violation", "keys-of-the-content", "projections", message, instance.scores_location, instance.module
        )
        return


def _sides(evidence: Evidence) -> tuple[str, str] | None:
    """The sequences of the queries and of the keys; None where these are not one each."""
    table = evidence.base
    sides = [set(each.stream.tolist()) for each in (table.query, table.key)]
    if table.streams != tuple(evidence.roles) or any(len(each) != 1 or min(each) < 0 for each in sides):
        return None
    query, key = (table.streams[each.pop()] for each in sides)
    return query, key
