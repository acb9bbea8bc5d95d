"""Ids of padding, which a model hides by itself: what the attention of one layer hides, those of all layers hide."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.mask_arguments import masked_weights
from regard.check.properties.masks import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import Owners
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in

__all__ = ["padding_id_findings"]

MIN_TOKENS = 3


def padding_id_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Layers that see the padding that other layers of the same kind hide.

    Nothing is said where no layer hides it: the mask may be an argument.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    padded = _padded(invocation)
    if padded is None or len(several) < 2:
        return
    stream, ids, padding = padded
    run = record_invocation(invocation, {**invocation.arguments, stream: ids})
    hiding: dict[str, str] = {}
    seeing: dict[str, tuple[Evidence, int, float]] = {}
    for evidence in several:
        table, weight = evidence.base, masked_weights(evidence, run)
        if weight is None or _streams(evidence) != {stream}:
            continue
        shown = _at(ids, table.key) == padding  # to tokens that are none
        shown &= _at(ids, table.query) != padding
        kind = re.sub(r"\d+", "", table.instance.module)
        seen = (shown & (weight.abs() > ZERO_WEIGHT)).nonzero().flatten()
        if len(seen):
            seeing.setdefault(kind, (evidence, int(seen[0]), float(weight[seen[0]])))
        elif bool(shown.any()):
            hiding.setdefault(kind, table.instance.module)
    for kind, (evidence, at, number) in seeing.items():
        if kind in hiding:
            table = evidence.base
            message = (
                f"key {int(table.key.token[at])}, which {hiding[kind]} hides as padding (id {padding}), has weight "
                f"{number:.3g} for query {int(table.query.token[at])}"
            )
            line = table.instance.scores_location
            yield Finding("violation", "padding-in-every-layer", "mask", message, line, table.instance.module)


def _streams(evidence: Evidence) -> set[str]:
    """Whose tokens queries and keys are; empty where not every score is of two tokens."""
    table = evidence.base
    numbers = {*table.query.stream.tolist(), *table.key.stream.tolist()}
    return {table.streams[each] for each in numbers if each >= 0} if table.whole else set()


def _at(ids: Tensor, owners: Owners) -> Tensor:
    """The id of each token."""
    return ids[owners.sample.clamp(min=0), owners.token]


def _padded(invocation: Invocation) -> tuple[str, Tensor, int] | None:
    """The argument of ids, with padding at the end of the first sample; None where no embedding says which id it is."""
    stream = next((each for each in invocation.streams if each.role == "ids"), None)
    found = {
        each.padding_idx
        for module in modules_in(invocation.target)
        for each in module.modules()
        if isinstance(each, nn.Embedding) and each.padding_idx is not None
    }
    if stream is None or len(found) != 1 or (stream.batch_axis, stream.token_axes) != (0, (1,)):
        return None
    padding = found.pop()
    ids = invocation.arguments[stream.argument]
    if ids.ndim != 2 or ids.shape[1] < MIN_TOKENS:
        return None
    other = next(each for each in (1, 2) if each != padding)
    ids = torch.where(ids == padding, other, ids)
    ids[0, -1] = padding
    return stream.argument, ids, padding
