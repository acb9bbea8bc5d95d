"""Masks of two sequences whose names say nothing else: each is of the one whose name it shares a word with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from regard.check.target.token_ids import side_of

__all__ = ["OF_ASKING_TOKENS", "documents_alone", "masks_of_sequences", "numbers_of_texts"]

OF_ASKING_TOKENS = "mask of queries"
"""The role of a mask that says which tokens of the sequence that asks are padding: it hides no key."""
_SAYS_NOTHING = frozenset(("mask", "masks", "pad", "padding", "key", "attn", "attention", "valid", "is"))


def masks_of_sequences(told: Mapping[str, str], masks: Iterable[str]) -> dict[str, str]:
    """The role of each mask of x or of its context, as vid_mask and txt_mask are of src_vid and src_txt.

    That of a translation, as trg_mask beside trg, hides the later tokens of this from its own attention.

    Args:
        told: roles of sequences by their names.
        masks: names of masks.
    """
    names = {role: name for name, role in told.items()}
    if set(names) != {"x", "context"} or side_of(names["x"]) < 0:
        return {}
    of_x, of_context = _words(names["x"]), _words(names["context"])
    of_x, of_context = of_x - of_context, of_context - of_x
    found = {}
    for name in masks:
        words = _words(name) - _SAYS_NOTHING
        if words and words <= of_x:
            found[name] = OF_ASKING_TOKENS
        elif words and words <= of_context:
            found[name] = "padding"
    return found if {*found.values()} == {OF_ASKING_TOKENS, "padding"} else {}


def documents_alone(told: Mapping[str, str | None]) -> dict[str, str]:
    """The role of documents that are all that has to be given: they are texts, and not the number of each token's text.

    Args:
        told: roles of what has to be given, by their names.
    """
    return dict.fromkeys(told, "ids") if [*told.values()] == ["documents"] else {}


def numbers_of_texts(told: Mapping[str, str | None], source: str) -> dict[str, str]:
    """The role of segments that the code compares with themselves, query by key: they say which text a token is of.

    Args:
        told: roles of what has to be given, by their names.
        source: of the code.
    """
    found = {}
    for name in [each for each, role in told.items() if role == "token types"]:
        of_query, of_key = (
            rf"(?<![\w.]){re.escape(name)}(?:\[(?::,\s*){{{before}}}None(?:,\s*:){{{after}}}\]|\.unsqueeze\((?:{axes})\))"
            for before, after, axes in ((2, 0, "-1|2"), (1, 1, "-2|1"))
        )
        of_query = rf"(?:{of_query}|(?<![\w.]){re.escape(name)}\[\.\.\.,\s*None\])"
        if re.search(rf"{of_query}\s*[=!<>]=\s*{of_key}|{of_key}\s*[=!<>]=\s*{of_query}", source):
            found[name] = "documents"
    return found


def _words(name: str) -> set[str]:
    return {*re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")} - {""}
