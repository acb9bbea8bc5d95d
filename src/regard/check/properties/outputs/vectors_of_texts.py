"""Vectors of texts: read at the token that closes a text, where that is said, and the same however far it is padded."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.code import documentation_of_file, sentences_of
from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.token_ids import special_ids
from regard.check.trace.operation import Operation, Trace

__all__ = ["text_vector_findings"]

_AT_THE_END = re.compile(
    r"\b(?:states?|vectors?|features?|embeddings?|outputs?|representations?|pool\w*|taken?|read|selected)\b[^.;]*?"
    r"\b(?:at|of|from|on)\b[^.;]{0,20}?\b(?:eos|eot|end[- ]of[- ](?:text|sequence|sentence))\b",
    re.I,
)
"""What is said of a text: it is the state at the token that closes it."""
_BY_ITS_NUMBER = re.compile(
    r"\b(?:highest|largest|greatest|biggest|max(?:imum|imal)?|last)\b[^.;]*\b(?:ids?|numbers?|vocab\w*|ind(?:ex|ices)|"
    r"values?)\b|argmax",
    re.I,
)
"""That it is found as the largest id, so that the id that is told is not that of the vocabulary."""
_PADDED_BEHIND = re.compile(
    r"\bright[-\s]padd(?:ed|ing)\b"
    r"|\b(?:padd(?:ed|ing)|pads|zeros)\b(?:\s+\w+)?\s+(?:on|at|to)\s+the\s+(?:right|end|back)\b"
    r"|\b(?:followed|filled up) (?:by|with) (?:zeros|pads|padding)\b",
    re.I,
)
_WHATEVER_PADDING = re.compile(
    r"\b(?:(?:does|do) not (?:depend|change)|independent|invariant|unaffected)\b[^.;]*\bpadd(?:ed|ing)\b"
    r"|\bsame\b[^.;]*\b(?:however|no matter how)\b[^.;]*\bpadded\b",
    re.I,
)
"""What is said of a text's vector: padding, which the code finds by its id, does not change it."""
_ON_CONDITION = re.compile(r"\b(?:if|unless|when|provided|given|as long as|should|must)\b", re.I)
_NOT_MEANT = re.compile(
    r"\b(?:not|no|never|cannot|without|un\w+|must|should|caller\w*|if|unless|either|or)\b|n't", re.I
)
"""In the same sentence: that it is not taken, or that somebody else sees to it."""
PADDED = 2
"""Tokens of padding."""
TEXTS = 8
"""Batches of texts, in some of which the word before the end is neither the largest id nor the smallest."""
MOVED = 1e-9
SAME = 1e-6
"""Beside the largest number that is returned."""


def text_vector_findings(
    invocation: Invocation, base: Trace, several: Sequence[Evidence], hidden: Collection[str] = ()
) -> Iterator[Finding]:
    """A vector that is not of the token that closes its text, or that changes with the padding behind the text.

    Args:
        invocation: a call of ids.
        base: its run.
        several: the evidence of its attentions.
        hidden: the properties that hold of them: whether padding is hidden by its id.
    """
    if len(invocation.streams) != 1 or not base.outputs:
        return
    (stream,) = invocation.streams
    ids = invocation.arguments[stream.argument]
    if ids.is_floating_point() or ids.ndim != 2 or (stream.batch_axis, stream.token_axes) != (0, (1,)):
        return
    if ids.shape[1] < PADDED + 2 or any(each.data.ndim != 2 or len(each.data) != len(ids) for each in base.outputs):
        return
    yield from _not_at_the_end(invocation, base, stream.argument)
    yield from _changed_by_padding(invocation, base, stream.argument, several, is_hidden="padding-by-ids" in hidden)


def _not_at_the_end(invocation: Invocation, base: Trace, name: str) -> Iterator[Finding]:
    """A text whose vector does not change with the word before its end: it is read somewhere before that."""
    said = [" ".join(documentation_of(invocation.target).split()), *comments_of(invocation.target)]
    ends = special_ids(invocation.target, "end")
    if len(ends) != 1 or not any(map(_AT_THE_END.search, said)) or any(map(_BY_ITS_NUMBER.search, said)):
        return
    (end,), padding = ends, invocation.paddings[name]
    apart = {end, padding, *special_ids(invocation.target, "begin")}
    given = invocation.arguments[name]
    tables = [each.inputs[0] for each in base if each.name == "embedding" and torch.equal(each.inputs[1].data, given)]
    vocab = min((each.shape[0] for each in tables), default=0)
    words = [each for each in range(vocab) if each not in apart]
    at = given.shape[1] - (1 if padding == end else 2)
    if len(words) < 3 or not 0 <= end < vocab:
        return
    generator = torch.Generator().manual_seed(0)
    for _ in range(TEXTS):
        drawn = torch.randint(len(words), given.shape, generator=generator)
        text, other = (torch.tensor(words)[each] for each in (drawn, (drawn + 1) % len(words)))
        text[:, at:] = padding
        text[:, at] = end
        changed = text.clone()
        changed[:, at - 1] = other[:, at - 1]
        runs = [record_invocation(invocation, {**invocation.arguments, name: each}) for each in (text, changed)]
        gaps = _gaps(*runs)
        if gaps is None:
            return
        if bool((gaps <= MOVED).any()):
            sample = int((gaps <= MOVED).nonzero()[0])
            line = _taken(base, given)
            message = (
                f"by its documentation a text is read at the token that closes it, {end}; what is returned for "
                f"{text[sample].tolist()} does not change with the token before that"
            )
            yield Finding("violation", "read-at-the-end", "output", message, None if line is None else line.location)
            return


def _changed_by_padding(
    invocation: Invocation, base: Trace, name: str, several: Sequence[Evidence], *, is_hidden: bool
) -> Iterator[Finding]:
    """A text whose vector is another one with padding behind it, which no attention reads."""
    told = f"{documentation_of_file(invocation.target)}\n\n{documentation_of(invocation.target)}"
    sentences = [" ".join(each.split()) for each in sentences_of(told, ".;:")]
    is_said = any(_WHATEVER_PADDING.search(each) and not _ON_CONDITION.search(each) for each in sentences)
    is_said = is_said and is_hidden and not invocation.masks and not invocation.lengths
    if not is_said and not any(_PADDED_BEHIND.search(each) and not _NOT_MEANT.search(each) for each in sentences):
        return
    ids, padding = invocation.arguments[name], invocation.paddings[name]
    if bool((ids == padding).any()):
        return
    masks = _masks_of_padding(invocation, ids)
    if masks is None:
        return
    padded, hidden = ids.clone(), {mask: each.clone() for mask, each in masks.items()}
    padded[:, -PADDED:] = padding
    for each in hidden.values():
        each[:, -PADDED:] = 1 - each[:, -PADDED:].int()
    cut = {mask: each[:, :-PADDED] for mask, each in masks.items()}
    behind, alone = (
        record_invocation(invocation, {**invocation.arguments, **each})
        for each in ({name: padded, **hidden}, {name: ids[:, :-PADDED], **cut})
    )
    gaps = _gaps(behind, alone)
    if gaps is None or not (is_said or all(_is_hidden(each, behind, ids.shape[1] - PADDED) for each in several)):
        return
    if float(gaps.max()) > SAME * max(float(each.data.abs().max()) for each in alone.outputs):
        line = _taken(base, ids)
        told = "does not change the vector of a text" if is_said else "follows a text"
        which = "" if is_said else ", which no token before them attends to,"
        message = (
            f"by its documentation padding {told}; {PADDED} tokens of it ({name} is {padding}){which} change what is "
            f"returned for the text by up to {float(gaps.max()):.2g}"
        )
        yield Finding("violation", "padding-behind-unread", "output", message, None if line is None else line.location)


def _masks_of_padding(invocation: Invocation, ids: Tensor) -> dict[str, Tensor] | None:
    """The masks that are handed over, each with one 0 or 1 for every id, all the same; None where one is another.

    None as well where one may be left out, and is: it would say what is padding.
    """
    if any(name not in invocation.arguments for name in invocation.masks):
        return None
    given = {name: invocation.arguments[name] for name in invocation.masks if name in invocation.arguments}
    for each in given.values():
        is_of_ids = isinstance(each, Tensor) and each.shape == ids.shape and not each.is_complex()
        if not is_of_ids or each.flatten()[0] not in (0, 1) or bool((each != each.flatten()[0]).any()):
            return None
    return given


def _gaps(one: Trace, other: Trace) -> Tensor | None:
    """(samples): the largest difference of what two runs return; None where one fails or returns other shapes."""
    if one.error or other.error or [each.shape for each in one.outputs] != [each.shape for each in other.outputs]:
        return None
    pairs = zip(one.outputs, other.outputs, strict=True)
    gaps = torch.stack([(a.data - b.data).abs().flatten(1).amax(1) for a, b in pairs]).amax(0)
    return gaps if bool(gaps.isfinite().all()) else None


def _is_hidden(evidence: Evidence, run: Trace, count: int) -> bool:
    """Whether the tokens before some place attend to none behind it, in a run whose attention is of tokens."""
    table = evidence.base
    if table.streams != tuple(evidence.roles) or not run.same_operations(table.instance.run.trace):
        return False
    if bool((table.query.token < 0).any()) or bool((table.key.token < 0).any()):
        return False
    behind = (table.query.token < count) & (table.key.token >= count)
    return not bool((table.of_run(run).weight[behind] > ZERO_WEIGHT).any())


def _taken(base: Trace, ids: Tensor) -> Operation | None:
    """The last operation that makes a row for each sample of a row for each of its tokens."""
    for operation in reversed(base.operations):
        given, made = operation.inputs[:1], operation.outputs[:1]
        if not given or not made or given[0].data.ndim != 3 or given[0].shape[:2] != ids.shape:
            continue
        if made[0].data.ndim == 2 and made[0].shape == (len(ids), given[0].shape[2]):
            return operation
    return None
