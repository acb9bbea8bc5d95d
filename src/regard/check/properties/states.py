"""States of a recurrence that a call may be handed, as that of an earlier part of a text."""

from __future__ import annotations

import re

from regard.check.target import Invocation
from regard.check.target.cache_forms import parameters_of

__all__ = ["goes_on", "optional_states"]

_STATE = re.compile(r"(?:\w+_)?states?")
"""Arguments for what a recurrence has come to."""
_GOES_ON = re.compile(
    r"\bstates?\b[^.;]*\b(?:continues?|continued|resumes?|resumed|go(?:es)? on|carried|carries|carry)\b"
    r"|\b(?:continues?|continued|resumes?|resumed|go(?:es)? on|carried|carries|carry)\b[^.;]*\bstates?\b"
    r"|\b(?:keeps?|kept|holds?|stores?|caches?)\b[^.;]*\bkeys\b[^.;]*\bvalues\b[^.;]*"
    r"\b(?:earlier|previous|past|former)\b[^.;]*\bstates?\b"
    r"|\bstates?\b[^.;]*\b(?:keeps?|kept|holds?|stores?|caches?)\b[^.;]*\bkeys\b[^.;]*\bvalues\b[^.;]*"
    r"\b(?:earlier|previous|past|former)\b"
    r"|\b(?:chunk by chunk|in chunks|streaming)\b[^.;]*\bstates?\b",
    re.I,
)
"""In a documentation: a later part of a text goes on from what an earlier one returned."""


def optional_states(invocation: Invocation) -> list[str]:
    """The arguments for what a recurrence has come to, which need not be handed over."""
    return [
        each
        for each, parameter in parameters_of(invocation.target).items()
        if parameter.default is None and invocation.arguments.get(each) is None and _STATE.fullmatch(each)
    ]


def goes_on(text: str) -> bool:
    """Whether a documentation says that a later part of a text goes on from the state of an earlier one."""
    return _GOES_ON.search(text) is not None
