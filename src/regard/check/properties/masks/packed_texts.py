"""Texts that are packed into one row: each is read as if it stood there alone.

By what the documentation says, or because one layer of several keeps them apart where a token closes the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.code import documentation_of_file, documentation_of_functions
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
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
    rf"[^.;]*\b{_TEXTS}\b"
    r"|\b(?:never|not|cannot|no|nothing)\b[^.;]*\b(?:attend\w*|sees?|read)\b[^.;]*\bacross\b[^.;]*\b(?:bo[sd]|eo[std])\b",
    re.I,
)
"""What is said of texts in one row: none sees anything of another one."""
_BEGUN = re.compile(r"\b(?:starts?|begins?|begun|opened|preceded)\b[^.;]*\b(?:bos|bod)\b", re.I)
_CLOSED = re.compile(
    r"\b(?:ends?|closed|ended|terminated|followed|separated)\b[^.;]*\b(?:eos|eot|eod)\b|\bacross an? eo[std]\b", re.I
)
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
    if len(invocation.streams) != 1 or not several:
        return
    target = invocation.target
    said_of = documentation_of_file(target), documentation_of(target), documentation_of_functions(target)
    told = " ".join(". ".join(said_of).split())
    is_told = _PACKED.search(told) is not None and _APART.search(told) is not None
    if invocation.masks or invocation.documents or invocation.boundaries:
        return  # it is for who calls it to say where texts begin
    (stream,) = invocation.streams
    ids = invocation.arguments[stream.argument]
    if ids.is_floating_point() or ids.ndim != 2 or (stream.batch_axis, stream.token_axes) != (0, (1,)):
        return
    begins, ends = (special_ids(target, kind) for kind in ("begin", "end"))
    cut, apart = ids.shape[1] // 2, {*begins, *ends, invocation.paddings[stream.argument]}
    words = [each for each in torch.unique(ids).tolist() if each not in apart]
    if ids.shape[1] < FEWEST or len(words) < 2:
        return
    for said, found, places, at in ((_BEGUN, begins, [0, cut], 1), (_CLOSED, ends, [cut - 1], 0)):
        layers = _layers(several)
        is_promised = is_told and said.search(told) is not None
        if len(found) != 1 or not (is_promised or layers):
            continue
        (boundary,) = found
        text = torch.tensor(words)[torch.arange(ids.numel()).view(ids.shape) % len(words)].to(ids.dtype)
        text[:, places] = boundary
        if (partly := _kept_apart_in_some(invocation, layers, stream.argument, text, cut, boundary)) is not None:
            yield partly
            return
        if not is_promised:
            continue
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


def _layers(several: Sequence[Evidence]) -> list[Evidence]:
    """Attentions of tokens to those of their own sequence that are computed by one line; none where it is only one."""
    lines = {each.base.instance.scores_location for each in several}
    tables = [each.base for each in several if len(each.base.weight)]
    is_own = all(bool(((each.query.stream == each.key.stream) & (each.query.stream >= 0)).all()) for each in tables)
    return [*several] if len(lines) == 1 and len(tables) == len(several) > 1 and is_own else []


def _kept_apart_in_some(
    invocation: Invocation, layers: Sequence[Evidence], name: str, text: Tensor, cut: int, boundary: int
) -> Finding | None:
    """A layer in which the second text of a row sees the first one, where another layer hides all of it.

    Args:
        invocation: the call.
        layers: attentions of one kind.
        name: of the ids.
        text: (samples, tokens): two texts.
        cut: where the second one begins.
        boundary: the id that begins or closes each.
    """
    run = record_invocation(invocation, {**invocation.arguments, name: text}) if layers else None
    if run is None or run.error or not run.same_operations(layers[0].base.instance.run.trace):
        return None
    apart, joined = list[Evidence](), list[Evidence]()
    for evidence in layers:
        base = evidence.base
        of_both = (base.query.token >= cut) & (base.key.token < cut - 1) & (base.weight > ZERO_WEIGHT)
        if not bool(of_both.any()):
            continue
        seen = base.of_run(run).weight[of_both] > ZERO_WEIGHT
        (joined if bool(seen.all()) else apart if not bool(seen.any()) else list[Evidence]()).append(evidence)
    if not apart or not joined:
        return None
    first, other = apart[0].base.instance, joined[0].base.instance
    message = (
        f"where {boundary} parts two texts, as in {text[0].tolist()}, the second sees nothing of the first in "
        f"{first.module or 'one attention'}, and sees it in {other.module or 'another'}"
    )
    return Finding("violation", "sequences-apart", "mask", message, other.scores_location, other.module)
