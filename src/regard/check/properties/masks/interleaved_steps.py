"""Steps of several sequences in turn, as in a decision transformer: a mask of steps hides the tokens of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["interleaved_mask_findings"]

HIDDEN = 1
"""The step that a mask hides: one with others on both sides."""


def interleaved_mask_findings(
    invocation: Invocation, several: Sequence[Evidence]
) -> Iterator[tuple[str, list[Finding]]]:
    """A mask of one number for each step that hides tokens of other steps, by the name of the argument.

    As where it is repeated as a whole, while the tokens of a step stand side by side: (r_1, s_1, a_1, r_2, ...). The
    first of several layers is asked.

    Args:
        invocation: the call.
        several: the evidence of all of its attentions.
    """
    steps = _steps(invocation)
    if not several or not steps:
        return
    evidence = several[0]
    is_of_rows = bool((evidence.base.key.stream == evidence.base.key.stream[0]).all())
    if is_of_rows:
        of_step = _tokens_of(invocation, evidence)
        is_in_turn = of_step == list(range(HIDDEN * len(of_step), (HIDDEN + 1) * len(of_step)))
        if len(of_step) < 2 or not is_in_turn or evidence.num_tokens != steps * len(of_step):
            return
    else:  # tokens of several sequences, numbered one sequence after the other
        asked = evidence.base.key
        of_step = sorted({*_labels(evidence)[asked.token % steps == HIDDEN].tolist()})
        if bool((asked.token < 0).any()) or len({*evidence.base.query.stream.tolist()}) != len(of_step):
            return
    samples = invocation.arguments[invocation.streams[0].argument].shape[0]
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        of_forms = [_hidden(invocation, evidence, name, (samples, steps), form) for form in MASK_FORMS]
        hidden = min(filter(None, of_forms), key=len, default=[])
        line, module = evidence.base.instance.scores_location, evidence.base.instance.module
        if len(hidden) > len(of_step):
            continue  # it hides what it should show: of another form
        if hidden and set(hidden) <= set(of_step):
            message = f"{name} hides the tokens of a step, which stand side by side"
            yield name, [Finding("holds", "mask-form", "mask", message, line, module)]
        elif hidden:
            others = sum(each not in of_step for each in hidden)
            message = (
                f"{len(of_step)} tokens are of one step, and where {name} hides it, {others} of {len(hidden)} hidden "
                "tokens are of others: it is repeated in another order than the tokens"
            )
            yield name, [Finding("violation", "mask-argument", "mask", message, line, module)]


def _steps(invocation: Invocation) -> int:
    """How many tokens each of several sequences has, where all have as many, behind the samples; else 0."""
    counts = {
        invocation.arguments[each.argument].shape[1]
        for each in invocation.streams
        if (each.batch_axis, each.token_axes) == (0, (1,))
    }
    is_told = all((each.batch_axis, each.token_axes) == (0, (1,)) for each in invocation.streams)
    return counts.pop() if is_told and len(invocation.streams) > 1 and len(counts) == 1 else 0


def _tokens_of(invocation: Invocation, evidence: Evidence) -> list[int]:
    """The queries that change with the step `HIDDEN` of any sequence."""
    found, table = set[int](), evidence.base
    for stream in invocation.streams:
        given = invocation.arguments[stream.argument]
        changed = given.clone()
        part = changed.select(1, HIDDEN)
        part.copy_(part * -0.5 if given.is_floating_point() else (part == 0).to(part.dtype))
        run = record_invocation(invocation, {**invocation.arguments, stream.argument: changed})
        if run.error or not run.same_operations(table.instance.run.trace):
            return []
        found.update(table.query.token[(table.of_run(run).q != table.q).any(-1)].tolist())
    return sorted(found)


def _hidden(invocation: Invocation, evidence: Evidence, name: str, sizes: tuple[int, int], form: str) -> list[int]:
    """The keys that have no weight where a mask of a form hides a step, and have one where it hides none."""
    opened = torch.ones(sizes, dtype=torch.bool)
    closed = opened.clone()
    closed[:, HIDDEN] = False
    weights = list[Tensor]()
    for allowed in (opened, closed):
        run = record_invocation(invocation, {**invocation.arguments, name: write_mask(allowed, form)})
        found = masked_weights(evidence, run)
        if found is None:
            return []
        weights.append(found)
    free, masked = (each.nan_to_num(0.0).abs() > ZERO_WEIGHT for each in weights)
    return sorted({*_labels(evidence)[free & ~masked].tolist()})


def _labels(evidence: Evidence) -> Tensor:
    """(scores): a number for each key, as its sequences stand one behind the other."""
    key = evidence.base.key
    before = key.stream.clamp(min=0) * (int(key.token.max()) + 1)
    return before - before.min() + key.token
