"""What a sentence says of the values of a mask: whether 1, or True, is of a key that is seen or of a hidden one."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["ADDED", "VALUE", "meanings_of"]

_WRITTEN = r"(?<![\w.\-])[`'\"*]*(1s?|true|0s?|false|(?<!the )(?<!other )ones|zeros)[`'\"*]*(?![\w.]\w)"
VALUE = re.compile(
    _WRITTEN + r"\s*(?:values?\s+|positions?\s+|entries\s+)?"
    r"(?:=+>?|:|->|→|-|is\b|are\b|will\b|mean(?:s|ing)?\b|mark(?:s|ing)?\b|for\b|at\b|where\b|wherever\b|if\b|in\b"
    r"|on\b|to\b|indicat(?:es?|ing)\b|denot(?:es?|ing)\b|represent(?:s|ing)?\b|stands? for\b|correspond(?:s|ing)? to\b"
    r"|signif(?:y|ies)\b|refers? to\b)",
    re.I,
)
_WRITTEN_LAST = re.compile(
    r"(?P<what>(?:[\w<>\[\]-]+\s+){0,3}[\w<>\[\]-]+)\s*"
    r"(?:=+|->|→|\bare(?: marked (?:as|with|by)| set to)?|\bis(?: marked (?:as|with|by)| set to)?|\bset to|"
    r"\bmarked (?:as|with|by))\s*" + _WRITTEN + r"\s*$",
    re.I,
)
"""The tokens first, and their value at the end: padding is True."""
_END = re.compile(r"[,;()\n]|\.\s|\band\b|\bor\b|\belse\b|\botherwise\b")
_NEGATED = re.compile(r"\b(?:not|non|no|nothing|none|never|cannot|without|un\w+|in(?:valid|visible))\b|n't", re.I)
_BLOCKED = re.compile(
    r"\b(?:hid(?:e|es|den)|masked|mask out|(?<=to )mask|block(?:ed|s)?|ignored?|pad(?:s|ded|ding)?|forbidden"
    r"|missing|absent|outside|beyond|excluded?|drop(?:ped|s)?|removed|skip(?:ped|s)?|disregard(?:ed)?|empty|gone)\b",
    re.I,
)
_ALLOWED = re.compile(
    r"\b(?:keep|kept|attend(?:s|ed)?|sees?|seen|visible|valid|real|allow(?:s|ed)?|takes? part|participates?"
    r"|inside|within|exists?|present|available|observed|actual|genuine|usable|occupied|belongs?)\b",
    re.I,
)
_IN_OTHER_WORDS = (
    (re.compile(r"\bnon[- ]?pad\w*|\bnot (?:a )?pad\w*|\bun-?(?:masked|padded)\b", re.I), "valid"),
    (
        re.compile(
            r"\b(?:in|non-?)valid\b|\b(?:does|do|did) not exist\b"
            r"|\b(?:is|are|must|may|can|should) ?not (?:be )?(?:attend|seen?\b|visible|valid|allowed|real|present)\w*",
            re.I,
        ),
        "hidden",
    ),
)
"""What is said by a negation, and the word for it."""
_OF_TOKENS = re.compile(
    r"(?:(?:all|the|every|each|real|valid|actual|non-?pad(?:ding|ded)?|pad(?:ding|ded|s)?|<pad>|\[pad\]|masked|hidden|ignored|blocked"
    r"|kept|missing|observed|present|visible)\s+)*"
    r"(?:tokens?|words?|positions?|places?|frames?|steps?|keys?|elements?|pad(?:ding|s)?|<pad>|\[pad\]|real|valid|masked)",
    re.I,
)
"""Words of tokens alone, and not of weights or of a loss, which are 0 as well."""
_TOKENS = re.compile(r"\b(?:tokens?|words?)\b", re.I)
ADDED = re.compile(r"\binf\b|infinity|additive|\badded\b|negative|-1e|\bbias\b", re.I)


def meanings_of(sentence: str) -> Iterator[tuple[int, str]]:
    """What is said of 0 and of 1: each time the value, and what 1 means by it."""
    if ADDED.search(sentence):
        return
    values = list(VALUE.finditer(sentence))
    for number, value in enumerate(values):
        end = values[number + 1].start() if number + 1 < len(values) else len(sentence)
        said = _END.split(sentence[value.end() : end].lstrip())[0]
        for words, word in _IN_OTHER_WORDS:
            said = words.sub(word, said)
        yield from _meaning(value[1], said)
    for clause in _END.split(sentence):
        last = _WRITTEN_LAST.search(clause)
        if last is not None and not VALUE.search(clause) and _OF_TOKENS.fullmatch(last["what"]):
            said = last["what"]
            for words, word in _IN_OTHER_WORDS:
                said = words.sub(word, said)
            yield from _meaning(last[2], said)


def _meaning(value: str, said: str) -> Iterator[tuple[int, str]]:
    """What 1 means where this is said of the tokens that have a value."""
    if _NEGATED.search(said):
        return
    blocked, allowed = bool(_BLOCKED.search(said)), bool(_ALLOWED.search(said))
    allowed = allowed or (not blocked and bool(_TOKENS.search(said)))
    if blocked != allowed:
        is_one = value.lower()[0] in "1to"
        yield int(is_one), "blocked" if blocked == is_one else "allowed"
