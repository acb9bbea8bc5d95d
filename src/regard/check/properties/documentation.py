"""What the documentation of an implementation promises of its masks: read only where it says so in plain words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

__all__ = ["documentation_of", "is_inclusive", "mask_meaning", "name_and_documentation", "promises_causality"]

_SENTENCES = re.compile(r"(?<=[.;])\s+|\n\s*\n|\n(?=\s*[`*]*\w+[`*]*\s*(?:\(.*?\))?\s*:)")
_VALUE = re.compile(
    r"(?<![\w.\-])[`'\"*]*(1s?|true|0s?|false)[`'\"*]*(?![\w.]\w)"
    r"\s*(?:values?\s+)?(?:=+>?|:|->|→|-|is\b|are\b|will\b|means?\b|marks?\b|for\b|at\b|where\b|wherever\b|if\b|in\b"
    r"|on\b|to\b|indicates?\b|denotes?\b)",
    re.I,
)
_END = re.compile(r"[,;()\n]|\.\s|\band\b|\bor\b|\belse\b|\botherwise\b")
_NEGATED = re.compile(r"\b(?:not|non|no|never|cannot|without|un\w+|in(?:valid|visible))\b|n't", re.I)
_BLOCKED = re.compile(
    r"\b(?:hid(?:e|es|den)|masked|mask out|(?<=to )mask|block(?:ed|s)?|ignored?|pad(?:s|ded|ding)?|forbidden)\b", re.I
)
_ALLOWED = re.compile(
    r"\b(?:keep|kept|attend(?:s|ed)?|sees?|seen|visible|valid|real|allow(?:s|ed)?|takes? part|participates?)\b", re.I
)
_TOKENS = re.compile(r"\b(?:tokens?|words?)\b", re.I)
_ADDED = re.compile(r"\binf\b|infinity|additive|\badded\b|negative|-1e|\bbias\b", re.I)
_INCLUSIVE = re.compile(
    r"\b(?:itself|own (?:position|token)|current (?:position|token))\s+(?:is\s+)?included"
    r"|\b(?:including|inclusive of|counting)\s+(?:itself|its own|the (?:query|current)|self)",
    re.I,
)

_CAUSAL = re.compile(r"(?<!non-)(?<!non )(?<!not )\b(?:causal(?:ly)?|auto-?regressive(?:ly)?)\b(?!\s*[=:])", re.I)
_QUALIFIED = re.compile(
    r"\b(?:if|when|where|whether|optional(?:ly)?|unless|or|not|no|non|may|can|cannot|bi-?directional(?:ly)?|full(?:y)?"
    r"|across|between|over|among)\b|[=?]",
    re.I,
)
"""What makes of a promise a choice, or one of blocks and not of tokens."""


def documentation_of(target: Any) -> str:
    """The documentation of a function, or of a class and its call."""
    if isinstance(target, nn.Module):
        kind = type(target)
        texts = [kind.__doc__, kind.forward.__doc__]
    else:
        texts = [inspect.getdoc(target)] if inspect.isroutine(target) else [type(target).__doc__]
    return "\n\n".join(inspect.cleandoc(each) for each in texts if each)


def name_and_documentation(target: Any) -> str:
    """The name of a function or a class, and its documentation."""
    kind = type(target) if isinstance(target, nn.Module) else target
    return f"{getattr(kind, '__name__', '')}\n\n{documentation_of(target)}"


def mask_meaning(text: str, name: str, *, is_only: bool) -> Literal["allowed", "blocked"] | None:
    """What 1, or True, in a mask means; None where nothing says it, or two sentences say different things.

    Args:
        text: the documentation.
        name: the argument.
        is_only: whether it is the only mask, so that "the mask" is this one.
    """
    about = re.compile(rf"\b{re.escape(name)}\b" + (r"|\bmask\b" if is_only else ""), re.I)
    told = {meaning for sentence in _SENTENCES.split(text) if about.search(sentence) for meaning in _meanings(sentence)}
    return told.pop() if len(told) == 1 else None  # type: ignore[return-value]


def _meanings(sentence: str) -> Iterator[str]:
    if _ADDED.search(sentence):
        return
    values = list(_VALUE.finditer(sentence))
    for number, value in enumerate(values):
        end = values[number + 1].start() if number + 1 < len(values) else len(sentence)
        said = _END.split(sentence[value.end() : end].lstrip())[0]
        if _NEGATED.search(said):
            continue
        blocked, allowed = bool(_BLOCKED.search(said)), bool(_ALLOWED.search(said))
        allowed = allowed or (not blocked and bool(_TOKENS.search(said)))
        if blocked != allowed:
            is_one = value[1].lower()[0] in "1t"
            yield "blocked" if blocked == is_one else "allowed"


def promises_causality(text: str) -> bool:
    """Whether it says of all tokens, without a condition, that none sees what comes later."""
    return any(_CAUSAL.search(each) and not _QUALIFIED.search(each) for each in _SENTENCES.split(text))


def is_inclusive(text: str) -> bool:
    """Whether it says of a window that a token itself is one of those that it sees."""
    return any("window" in each.lower() and _INCLUSIVE.search(each) for each in _SENTENCES.split(text))
