"""Masks that are handed over: exactly the blocked keys have no weight, and the others share what these had."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks import ZERO_WEIGHT, allowed_of, built_in_pattern
from regard.check.properties.sums import query_numbers
from regard.check.properties.weights import SUM_TOLERANCE
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.target.signature import source_of
from regard.check.trace.operation import Trace

__all__ = ["MaskOutcome", "flag_findings", "kept", "mask_argument_findings", "masked_weights", "violated"]

SHAPES = ("bhqk", "b1qk", "qk", "bqk", "b11k", "bk", "b1k")
"""Axes of a mask: samples, heads, queries, keys."""
PADDING_NAMES = re.compile("pad|key_mask|kpm|lengths|valid")
OTHER_SEQUENCE = re.compile("enc|memory|mem_|context|cross")
"""Names of masks of a sequence that need not be there."""
SAID = {
    "allowed": "True in {name} means allowed",
    "blocked": "True in {name} means blocked",
    "added": "{name} is added to the scores: 0 and -inf",
    "keep": "1 in {name} means allowed",
    "keep, whole": "1 in {name} means allowed",
    "block": "1 in {name} means blocked",
    "block, whole": "1 in {name} means blocked",
}


@dataclass(frozen=True, eq=False)
class MaskOutcome:
    """What a mask in one form and shape did."""

    form: str
    shape: str
    value: Tensor
    """What was handed over."""
    free: Tensor
    """(scores): the weights where everything is allowed."""
    weight: Tensor
    """(scores): with the mask."""
    allowed: Tensor
    """(scores): whether mask and code allow it."""
    blocked: Tensor
    """(scores): whether the weight is zero."""

    @property
    def exact(self) -> bool:
        """Whether exactly those that are not allowed have no weight."""
        return torch.equal(self.blocked, ~self.allowed)


def mask_argument_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """For each mask that can be handed over: in one form and shape at least it has to hide what it blocks."""
    crossed = any(each.role in ("context", "k") for each in invocation.streams)
    names = [name for name in invocation.masks if crossed or not OTHER_SEQUENCE.search(name)]
    for name in names[:2]:
        outcomes = list(_outcomes(invocation, evidence, name))
        if not outcomes:
            yield Finding(
                "open", "mask-open", "mask", f"no mask was found that {name} takes: its masking was not judged"
            )
            continue
        exact = [(each, list(kept(evidence, each, name))) for each in outcomes if each.exact]
        if exact:
            outcome, found = min(exact, key=lambda each: len(each[1]))
            yield from found or _with_flag(invocation, evidence, outcome, name)
            message = f"{name} hides exactly the keys that it blocks; {SAID[outcome.form].format(name=name)}"
            yield Finding("holds", "mask-form", "mask", message)
            continue
        yield from violated(evidence, outcomes, name)


def flag_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A flag that says causal makes it causal."""
    for name in invocation.causal_flags[:1]:
        run = record_invocation(invocation, {**invocation.arguments, name: True})
        weight = masked_weights(evidence, run)
        if weight is None:
            continue
        allowed = evidence.base.dense((weight > ZERO_WEIGHT).double(), 0.0)[0, 0] > 0
        pattern, wrong = built_in_pattern(allowed)
        if pattern == "full":
            wrong = f"{name}=True changes nothing: a query sees later keys"
        line = evidence.base.instance.scores_location
        if wrong:
            yield Finding("violation", "mask-pattern", "mask", wrong, line)
        elif pattern == "causal":
            message = f"{name}=True: a query sees keys up to its own position"
            yield Finding("holds", "mask-flag", "mask", message, line)


def _outcomes(invocation: Invocation, evidence: Evidence, name: str) -> Iterator[MaskOutcome]:
    table = evidence.base
    samples, heads, queries, keys = table.dense(table.product).shape
    given = invocation.arguments.get(name)
    axes = given.ndim if isinstance(given, Tensor) else None
    forms = _forms(invocation, name)
    for shape in SHAPES:
        if PADDING_NAMES.search(name) and "q" in shape:
            continue
        sizes = [{"b": samples, "h": heads, "q": queries, "k": keys, "1": 1}[letter] for letter in shape]
        pattern = _pattern(sizes)
        whole = _spread(pattern, shape, samples, heads, queries, keys)
        ran = False
        for form in forms:
            value = write_mask(pattern, form)
            free = table.weight if axes is None else _free(invocation, evidence, name, sizes, form)
            if free is None or axes not in (None, value.ndim):
                continue
            run = record_invocation(invocation, {**invocation.arguments, name: value})
            weight = masked_weights(evidence, run)
            if weight is None:
                continue
            ran = True
            blocked = ~(weight.abs() > ZERO_WEIGHT)
            places = (table.query.sample.clamp(min=0), table.head, table.query.token, table.key.token)
            built_in = allowed_of(evidence)[places] if axes is None else free > ZERO_WEIGHT
            for allowed in (whole[places] & built_in, whole[places]):  # with or in the place of its own mask
                outcome = MaskOutcome(form, shape, value, free, weight, allowed, blocked)
                yield outcome
                if outcome.exact and next(kept(evidence, outcome, name), None) is None:
                    return
        if ran and shape != "bhqk" and "q" in shape:
            return


def _forms(invocation: Invocation, name: str) -> list[str]:
    """Those that the code may mean: one of 0 and 1 where it takes it from 1, of booleans where it asks for these."""
    source = source_of(invocation.target)
    if re.search(rf"\b1(?:\.0?)?\s*-\s*{re.escape(name)}\b", source):
        return [form for form in MASK_FORMS if form.startswith("keep")]
    if re.search(rf"\b{re.escape(name)}\.dtype\s*(?:==|is)\s*torch\.bool", source):
        return ["allowed", "blocked"]
    return list(MASK_FORMS)


def _with_flag(invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, name: str) -> Iterator[Finding]:
    """A mask and a flag that says causal hide together what each of them hides."""
    for flag in invocation.causal_flags[:1]:
        opened = write_mask(torch.ones(outcome.value.shape, dtype=torch.bool), outcome.form)
        causal, both = (
            masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, flag: True, name: value}))
            for value in (opened, outcome.value)
        )
        if causal is None or both is None:
            continue
        allowed = outcome.allowed & (causal.abs() > ZERO_WEIGHT)
        blocked = ~(both.abs() > ZERO_WEIGHT)
        together = replace(outcome, free=causal, weight=both, allowed=allowed, blocked=blocked)
        if not together.exact:
            yield from violated(evidence, [together], f"{name} with {flag}=True")


def _free(invocation: Invocation, evidence: Evidence, name: str, sizes: list[int], form: str) -> Tensor | None:
    """The weights under a mask that blocks nothing."""
    opened = write_mask(torch.ones(sizes, dtype=torch.bool), form)
    return masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: opened}))


def _pattern(sizes: list[int]) -> Tensor:
    """A mask in which no two rows are alike, the first key is allowed, and no axis looks like another."""
    *rows, keys = sizes
    if keys < 3:
        return torch.arange(keys).expand(sizes) == 0
    inner = min(keys - 2, 16)
    number = torch.arange(math.prod(rows)).reshape([*rows, 1]) * 5 + 3  # odd: no two are alike up to 2**inner
    pattern = torch.zeros(sizes, dtype=torch.bool)
    pattern[..., 1 : inner + 1] = (number >> torch.arange(inner)) & 1 > 0
    pattern[..., 0] = True
    return pattern


def _spread(pattern: Tensor, shape: str, samples: int, heads: int, queries: int, keys: int) -> Tensor:
    """The mask as (samples, heads, queries, keys)."""
    view = pattern.reshape([pattern.shape[shape.index(letter)] if letter in shape else 1 for letter in "bhqk"])
    return view.expand(samples, heads, queries, keys)


def masked_weights(evidence: Evidence, run: Trace) -> Tensor | None:
    """The weights of the attention in a run with more operations; None where it is not found again."""
    if run.error:
        return None
    table, base = evidence.base, evidence.base.instance.run.trace
    parts = []
    for product in table.instance.sums:
        operation = product.operation
        same = (operation.name, operation.outputs[0].shape)
        place = [
            each.index for each in base if (each.name, each.outputs[0].shape if each.outputs else ()) == same
        ].index(operation.index)
        found = [each for each in run if (each.name, each.outputs[0].shape if each.outputs else ()) == same]
        if place >= len(found):
            return None
        index, number = table.instance.weights_place(product)
        taken = found[place].inputs
        if operation.index != index or number >= len(taken):
            return None
        terms = table.instance.weight_terms(product)
        data = taken[number].data.flatten()
        if data.numel() != base.operations[index].inputs[number].data.numel():
            return None
        width = table.values.score.shape[-1]
        parts.append(torch.nn.functional.pad(data[terms], (0, width - terms.shape[-1])))
    known = table.values.score >= 0
    weight = torch.full((len(table.weight),), float("nan"), dtype=torch.float64)
    weight[table.values.score[known]] = torch.cat(parts)[known].double()
    return weight


def kept(evidence: Evidence, outcome: MaskOutcome, name: str) -> Iterator[Finding]:
    """What is allowed has weights that sum to one and stand to one another as without the mask."""
    table, rows = evidence.base, query_numbers(evidence)
    line = table.instance.scores_location
    before = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).index_add_(0, rows, outcome.free)
    sums = torch.zeros_like(before).index_add_(0, rows, outcome.weight)
    if bool(((sums - before).abs() > SUM_TOLERANCE).any()) and not bool(table.with_sink.any()):
        worst = float(sums[(sums - before).abs().argmax()])
        yield Finding(
            "violation",
            "weights-sum-to-one",
            "weights",
            f"with {name} the weights of a query sum to {worst:.4g}, not to 1: they are masked after the softmax",
            line,
        )
        return
    live = (outcome.weight > 1e-9) & (outcome.free > 1e-9)  # a mask may stand in the place of the code's own
    ratio = torch.where(live, (outcome.weight / outcome.free.clamp(min=1e-300)), float("nan"))
    for row in range(int(rows.max()) + 1):
        mine = ratio[(rows == row) & live]
        if len(mine) > 1 and float(mine.max() - mine.min()) > 1e-6 * float(mine.max()):
            yield Finding(
                "violation",
                "mask-argument",
                "mask",
                f"{name} changes the weights of allowed keys among themselves",
                line,
            )
            return


def violated(evidence: Evidence, outcomes: list[MaskOutcome], name: str) -> Iterator[Finding]:
    """The outcome that comes nearest to what a mask has to do, and where it does not."""
    table = evidence.base
    line = table.instance.scores_location
    if all(bool((each.weight - each.free).abs().max() < 1e-9) for each in outcomes):
        if bool((outcomes[0].free.abs() <= ZERO_WEIGHT).any()):
            message = f"whatever {name} holds, the code's own mask stands in its place"
            yield Finding("design", "mask-form", "mask", message, line)
            return
        yield Finding("violation", "mask-argument", "mask", f"{name} has no effect on any weight", line)
        return
    best = max(outcomes, key=lambda each: int((each.blocked == ~each.allowed).sum()))
    leaks = best.allowed.logical_not() & ~best.blocked
    at = int(leaks.nonzero()[0]) if bool(leaks.any()) else int((best.allowed & best.blocked).nonzero()[0])
    verb = (
        f"has weight {float(best.weight[at]):.3g} where {name} blocks it"
        if bool(leaks.any())
        else (f"has no weight where {name} allows it")
    )
    yield Finding(
        "violation",
        "mask-argument",
        "mask",
        f"key {int(table.key.token[at])} {verb} for query {int(table.query.token[at])} of sample "
        f"{int(table.query.sample[at])}, head {int(table.head[at])} ({int((best.blocked != ~best.allowed).sum())} of "
        f"{len(best.blocked)} scores)",
        line,
    )
