"""Texts that are packed into one row, by what the documentation says: each is read as if it stood there alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.code import documentation_of_file
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.token_ids import special_ids

__all__ = ["packed_text_findings"]

_PACKED = re.compile(r"\bpack(?:ed|s|ing)\b|\bconcatenat(?:ed|es|ion)\b", re.I)
_TEXTS = r"(?:documents?|sequences?|texts?|segments?|examples?)"
_APART = re.compile(
    r"\bas (?:if|though) (?:it|they|each|every)\b[^.;]*\b(?:alone|by (?:it|them)sel\w+|separate\w*)\b"
    rf"|\battention\b[^.;]*\b(?:stays?|remains?|(?:is|be) (?:kept|limited|restricted|confined))\b[^.;]*\b{_TEXTS}\b"
    rf"|\b(?:never|not|cannot|no|nothing)\b[^.;]*\b(?:attend\w*|sees?)\b[^.;]*\b(?:other|another|different|across)\b"
    rf"[^.;]*\b{_TEXTS}\b",
    re.I,
)
"""What is said of texts in one row: none sees anything of another one."""
_BEGUN = re.compile(r"\b(?:starts?|begins?|begun|opened|preceded)\b[^.;]*\b(?:bos|bod)\b", re.I)
_CLOSED = re.compile(r"\b(?:ends?|closed|ended|terminated|followed|separated)\b[^.;]*\b(?:eos|eot|eod)\b", re.I)
"""What is said of the token that begins each, or that closes it."""
FEWEST = 4
"""Tokens of which two texts can be made, the first with a word of its own."""
MOVED = 1e-9


def packed_text_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A token of a text that changes what is returned for the text behind it in the same row.

    Args:
        invocation: a call of ids, of which one tells where a text begins or ends.
        several: the evidence of its attentions.
    """
    told = " ".join(f"{documentation_of_file(invocation.target)}. {documentation_of(invocation.target)}".split())
    if len(invocation.streams) != 1 or not several or not _PACKED.search(told) or not _APART.search(told):
        return
    if invocation.masks or invocation.documents or invocation.boundaries:
        return  # it is for who calls it to say where texts begin
    (stream,) = invocation.streams
    ids = invocation.arguments[stream.argument]
    if ids.is_floating_point() or ids.ndim != 2 or (stream.batch_axis, stream.token_axes) != (0, (1,)):
        return
    begins, ends = (special_ids(invocation.target, kind) for kind in ("begin", "end"))
    cut, apart = ids.shape[1] // 2, {*begins, *ends, invocation.paddings[stream.argument]}
    words = [each for each in torch.unique(ids).tolist() if each not in apart]
    if ids.shape[1] < FEWEST or len(words) < 2:
        return
    for said, found, places, at in ((_BEGUN, begins, [0, cut], 1), (_CLOSED, ends, [cut - 1], 0)):
        if len(found) != 1 or not said.search(told):
            continue
        (boundary,) = found
        text = torch.tensor(words)[torch.arange(ids.numel()).view(ids.shape) % len(words)].to(ids.dtype)
        text[:, places] = boundary
        other = text.clone()
        other[:, at] = torch.tensor([words[0] if each != words[0] else words[1] for each in text[:, at].tolist()])
        runs = [
            record_invocation(invocation, {**invocation.arguments, stream.argument: each}) for each in (text, other)
        ]
        if any(run.error or not run.outputs or run.outputs[0].shape[:2] != ids.shape for run in runs):
            continue
        one, two = (run.outputs[0].data[:, cut:] for run in runs)
        if one.shape == two.shape and float((one - two).abs().max()) > MOVED:
            line, kind = several[0].base.instance.scores_location, "begins" if said is _BEGUN else "closes"
            message = (
                f"by its documentation texts in one row are kept apart; where {boundary} {kind} each, as in "
                f"{text[0].tolist()}, token {at}, of the first text, changes what is returned for the second one"
            )
            yield Finding("violation", "sequences-apart", "mask", message, line)
            return
