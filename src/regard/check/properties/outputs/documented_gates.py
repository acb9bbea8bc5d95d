"""A gate that a documentation makes of the input, and that the code makes of what was attended to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation

__all__ = ["documented_gate_findings"]

_FORMULA = re.compile(
    r"(?:sigmoid|\u03c3)\s*\(\s*(?:self\.)?\w+(?:\s*[@*\u00b7(]\s*|\s+)\(?\s*(?P<of>[A-Za-z]\w*)\s*(?:\)|\+)", re.I
)
"""As in sigmoid(W_g x), or sigmoid(gate(x))."""
_PROSE = re.compile(
    r"\bgat(?:e[sd]?|ing)\b[^.;]{0,40}?\b(?:computed|made|predicted|derived|projected|produced|conditioned|depends?)\s+"
    r"(?:from|of|on)\s+(?:the\s+)?(?:(?:module|layer|block|attention)(?:'s|s')?\s+)?"
    r"(?P<of>inputs?|[A-Za-z]\w*)\b",
    re.I,
)
_QUALIFIED = re.compile(r"\b(?:not|instead|rather|unlike|either|or|whether|if|optional(?:ly)?|original(?:ly)?)\b", re.I)
_SENTENCE = re.compile(r"(?<=[.;])\s+|\n\s*\n")
_GATES = frozenset({"sigmoid", "hardsigmoid"})
_INPUT = re.compile(r"inputs?", re.I)


def documented_gate_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether every gate of a call is made of what its attention returned, where one of the input is promised.

    Args:
        invocation: the call.
        evidence: of its one attention.
    """
    given = {each.argument.lower() for each in invocation.streams}
    said = next((each for each in _promises(documentation_of(invocation.target), given)), None)
    if said is None:
        return
    instance = evidence.base.instance
    trace = instance.run.trace
    read = trace.made_of(each.output.storage for each in instance.sums)
    gates = [each for each in trace if each.name.rstrip("_") in _GATES]
    if gates and all(each.inputs[0].storage in read for each in gates):
        message = f'the gate is made of what was attended to; the documentation has "{said}"'
        yield Finding("violation", "gate-as-documented", "output", message, gates[0].location)


def _promises(text: str, given: set[str]) -> Iterator[str]:
    """What a documentation says of a gate that is made of an argument."""
    for sentence in _SENTENCE.split(text):
        if _QUALIFIED.search(sentence):
            continue
        for pattern in (_FORMULA, _PROSE):
            found = pattern.search(sentence)
            if found is not None and (found["of"].lower() in given or _INPUT.fullmatch(found["of"])):
                yield " ".join(found[0].split())
