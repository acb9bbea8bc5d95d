"""Outputs that have the tokens where the input has the samples: as is written, or by mistake."""

from __future__ import annotations

import re

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target.documented_shapes import letters_of

__all__ = ["exchanged_axes"]

_RETURNED = re.compile(r"\breturns?\b(?P<said>.*)", re.I | re.S)
_SHAPE = re.compile(r"[\[(]\s*(?P<axes>\w+(?:\s*(?:,|\bx\b)\s*\w+){2,})\s*[\])]")
_BETWEEN = re.compile(r"\s*(?:,|\bx\b)\s*")


def exchanged_axes(documentation: str, line: CodeLocation | None) -> Finding:
    """That an output has its tokens where the input has its samples: a design where the documentation says so.

    Args:
        documentation: of the call.
        line: where its weighted sums are made.
    """
    if _returns_tokens_first(documentation):
        message = "what is returned has the tokens first and then the samples, as its documentation says"
        return Finding("design", "output-of-the-token", "heads joined", message, line)
    message = "the output has the tokens where the input has the samples: a token's output is returned as a sample's"
    return Finding("violation", "output-of-the-token", "heads joined", message, line)


def _returns_tokens_first(documentation: str) -> bool:
    """Whether it writes a shape of tokens, samples and channels behind "Returns", as `[tgt_len x batch x dim]`."""
    found = _RETURNED.search(documentation)
    if found is None:
        return False
    shapes = (tuple(_BETWEEN.split(each["axes"].strip())) for each in _SHAPE.finditer(found["said"]))
    return any(letters_of(each) == "tbd" for each in shapes)
