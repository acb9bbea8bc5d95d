"""Masks that are handed over: exactly the blocked keys have no weight, and the others share what these had."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.asked_for_truth import asked_for_truth
from regard.check.properties.masks.blanked_outputs import blanks_outputs
from regard.check.properties.masks.blanked_tokens import blanked_tokens
from regard.check.properties.masks.documented import (
    documented_forms,
    documented_mask_findings,
    documented_shape_findings,
    takes_causal_masks_alone,
)
from regard.check.properties.masks.drawn import causal_mask, drawn_mask, open_mask, padding_mask, spread
from regard.check.properties.masks.graph_edges import GRAPH, weighed_edges
from regard.check.properties.masks.judged_scores import has_a_key, has_a_zero, of_real_queries, without_any_key
from regard.check.properties.masks.key_columns import KeyColumns, columns_of_all, columns_of_sequences, shift_of
from regard.check.properties.masks.masked_weights import are_scores_others, masked_weights
from regard.check.properties.masks.memory import mask_memory_findings
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.outcome_findings import (
    are_of_one_sequence,
    have_no_effect,
    kept,
    own_mask_lost,
    violated,
)
from regard.check.properties.masks.patterns import allowed_of
from regard.check.properties.masks.read_in_vain import prepared_in_vain, read_in_vain
from regard.check.properties.masks.settings import (
    EXPLAINED,
    NOT_OF_KEYS,
    OTHER_SEQUENCE,
    is_counted,
    switched_off,
)
from regard.check.properties.masks.together import beside_others
from regard.check.properties.masks.two_meanings import two_meanings_findings
from regard.check.properties.masks.unread_in_layers import unread_in_layers
from regard.check.properties.masks.written_into import written_mask_findings
from regard.check.properties.masks.zeroed_keys import zeroed_keys
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.mask_values import HEADS_LAST, MASK_FORMS, OF_EACH_TOKEN, write_mask
from regard.check.target.names import call_meaning

__all__ = ["are_layers", "mask_argument_findings", "mask_outcomes", "shared_mask_findings", "those_sharing"]

MOST_SHARING = 2
"""Attentions that a mask is tried on where it may be of any of them: those of a decoder's layer."""

SHAPES = ("bhqk", "b1qk", "qk", "bqk", "b11k", "bk", "b1k", "bqkh", "kb", "k")
"""Axes of a mask: samples, heads, queries, keys."""
PADDING_NAMES = re.compile("pad|key_mask|kpm|lengths|valid|present|presence|exists")
MOST_UNREAD = 12
"""Masks that change no weight of an attention, after which it is taken not to read them."""
UNREAD = 1e-9
"""More than rounding may change a weight."""
SIDES = ("anywhere", "end", "front")
"""Where the keys stand that a mask blocks."""
SAID = {
    "allowed": "True in {name} means allowed",
    "blocked": "True in {name} means blocked",
    "added": "{name} is added to the scores: 0 and -inf",
    "keep": "1 in {name} means allowed",
    "keep, whole": "1 in {name} means allowed",
    "block": "1 in {name} means blocked",
    "block, whole": "1 in {name} means blocked",
}


def mask_argument_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """For each mask that can be handed over: in one form and shape at least it has to hide what it blocks."""
    crossed = any(each.role in ("context", "k") for each in invocation.streams)
    names = [name for name in invocation.masks if crossed or not OTHER_SEQUENCE.search(name)]
    for name in filter(NOT_OF_KEYS.search, names):
        yield Finding("open", "mask-open", "mask", f"{name} says of no key that it is hidden: not judged")
    for name in [each for each in names if not NOT_OF_KEYS.search(each)][:2]:
        if (unread := switched_off(invocation, name)) is not None:
            yield unread
            continue
        outcomes = list(mask_outcomes(invocation, evidence, name))
        if not outcomes:
            refused = f"no mask was found that {name} takes: its masking was not judged"
            yield (
                _of_fewer_keys(invocation, evidence, name)
                or asked_for_truth(invocation, evidence, name)
                or Finding("open", "mask-refused", "mask", refused)
            )
            continue
        # What is blocked at the end is hidden by the code's own causal mask in any case: it tells nothing of this one.
        exact = [
            (each, list(kept(evidence, each, name))) for each in outcomes if each.exact and not have_no_effect([each])
        ]
        if exact:
            outcome, found = min(exact, key=lambda each: len(each[1]))
            found = found or list(_beyond_hiding(invocation, evidence, outcome, outcomes, name))
            yield from found
            if any(each.kind == "violation" for each in found):
                continue
            message = f"{name} hides exactly the keys that it blocks; {SAID[outcome.form].format(name=name)}"
            message += "; a token sees itself all the same" if outcome.with_itself else ""
            yield Finding("holds", "mask-form", "mask", message)
            continue
        hides = functools.partial(_hides, invocation, evidence)
        explained = (*EXPLAINED, functools.partial(_together, evidence), functools.partial(blanks_outputs, hides))
        reasons = (
            [reason for each in explained if (reason := each(invocation, name))] if have_no_effect(outcomes) else []
        )
        yield from (
            reasons[:1]
            or blanked_tokens(invocation, evidence, outcomes, name)
            or read_in_vain(invocation, evidence, outcomes, name)
            or prepared_in_vain(invocation, outcomes, name)
            or zeroed_keys(invocation, evidence, outcomes, name)
            or weighed_edges(invocation, evidence, outcomes, name)
            or violated(evidence, outcomes, name)
        )


def _hides(invocation: Invocation, evidence: Evidence, name: str) -> bool:
    """Whether a mask hides exactly the keys that it blocks."""
    return any(each.exact and not have_no_effect([each]) for each in mask_outcomes(invocation, evidence, name))


def _of_fewer_keys(invocation: Invocation, evidence: Evidence, name: str) -> Finding | None:
    """What a mask does that has a column for each token of a sequence, beside which there are other keys.

    The code makes it longer, so that the other keys are seen: at the side where they stand.
    """
    table, shifted = evidence.base, list[str]()
    for columns in columns_of_sequences(invocation, evidence):
        for outcome in _outcomes_of(invocation, evidence, name, SIDES[0], columns):
            if outcome.exact and next(kept(evidence, outcome, name), None) is None:
                message = f"{name} hides exactly the keys that it blocks; {SAID[outcome.form].format(name=name)}"
                return Finding("holds", "mask-form", "mask", message + "; other keys are seen by all")
            if (far := shift_of(table, outcome, columns)) is not None:
                shifted.append(
                    f"{name} has {columns.count} columns for {int(table.key.token.max()) + 1} keys, and lies on the "
                    f"wrong ones: it hides the key {abs(far)} places {'after' if far > 0 else 'before'} the one that "
                    "it blocks"
                )
    line = table.instance.scores_location
    return Finding("violation", "mask-argument", "mask", shifted[0], line) if shifted else None


def _together(evidence: Evidence, invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect alone hides exactly what it blocks beside another one that blocks nothing; or None."""
    for beside, other in beside_others(invocation, evidence, name):
        for outcome in mask_outcomes(beside, evidence, name):
            if outcome.exact and not torch.equal(outcome.weight, outcome.free):
                message = f"{name} hides exactly the keys that it blocks, and only where {other} is given as well; "
                return Finding("holds", "mask-form", "mask", message + SAID[outcome.form].format(name=name))
    return None


def shared_mask_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[tuple[str, list[Finding]]]:
    """What is found of each mask that one of several attentions hides exactly by, or that none of them reads.

    Else something is said against the mask where all are layers of one kind, each to its own sequence, or the first one
    is of the only sequence: of others it is not known which of them it is of.
    """
    is_of_layers = are_layers(several)
    crossed = any(each.role in ("context", "k") for each in invocation.streams)
    names = [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]
    for name in [each for each in names if crossed or not OTHER_SEQUENCE.search(each)][:2]:
        unread, of_first, is_told = 0, list[MaskOutcome](), False
        for number, evidence in enumerate(several):
            outcomes: list[MaskOutcome] = []
            for outcome in mask_outcomes(invocation, evidence, name):
                outcomes.append(outcome)
                if outcome.exact or sum(map(_is_unread, outcomes)) > MOST_UNREAD:
                    break
            of_first = of_first or outcomes
            unread += bool(outcomes) and all(map(_is_unread, outcomes))
            if not outcomes or not outcomes[-1].exact:
                continue
            outcome = outcomes[-1]
            is_first = all(_is_unmoved(invocation, earlier, name, outcome) for earlier in several[:number])
            found = list(kept(evidence, outcome, name)) if is_first else []
            message = f"{name} hides exactly the keys that it blocks; {SAID[outcome.form].format(name=name)}"
            found = found or list(documented_mask_findings(invocation, evidence, outcome, outcomes, name))
            found = found or list(two_meanings_findings(invocation, evidence, outcome, name))
            found = found or list(written_mask_findings(invocation, name, outcome.value))
            if is_of_layers:
                found = found or list(_other_layers(invocation, several, number, outcome, name))
            yield name, found or [Finding("holds", "mask-form", "mask", message)]
            is_told = True
            break
        is_known = is_of_layers or (len(invocation.streams) == 1 and are_layers(several[:1]))
        if not is_told and is_known and of_first and not have_no_effect(of_first):
            yield name, [each for each in violated(several[0], of_first, name) if each.kind == "violation"]
        if unread < len(several):
            continue
        if not _is_without_effect(invocation, several[0], name, outcomes):
            in_vain = unread_in_layers(invocation, several, name, outcomes)
            if in_vain is not None:
                yield name, [in_vain]
        else:
            if reasons := [reason for each in EXPLAINED if (reason := each(invocation, name))]:
                yield name, reasons[:1]
                continue
            line = several[0].base.instance.scores_location
            message = f"{name} has no effect on any weight, nor on what is returned"
            yield name, [Finding("violation", "mask-argument", "mask", message, line)]


def _is_unread(outcome: MaskOutcome) -> bool:
    """Whether a mask changes no weight by more than rounding: a number that is added to all scores of a query does."""
    return float((outcome.weight - outcome.free).abs().max()) < UNREAD


def _other_layers(
    invocation: Invocation, several: Sequence[Evidence], number: int, outcome: MaskOutcome, name: str
) -> Iterator[Finding]:
    """A layer of the same list that a mask changes nothing in, where it hides keys in another one.

    Args:
        invocation: the call.
        several: the evidence of its attentions.
        number: the one in which the mask hides exactly what it blocks.
        outcome: of that one.
        name: the argument.
    """
    place = several[number].base.instance.module
    for other in several if re.search(r"\d", place) else ():
        path = other.base.instance.module
        weight = masked_weights(other, record_invocation(invocation, {**invocation.arguments, name: outcome.value}))
        is_sibling = path != place and re.sub(r"\d+", "0", path) == re.sub(r"\d+", "0", place)
        if not is_sibling or weight is None:
            continue
        blocked = _blocked_in(other.base, several[number].base, outcome.blocked)
        if bool(blocked.any()) and not bool((weight.abs() <= ZERO_WEIGHT)[blocked].any()):
            message = f"{name} hides keys in {place}, and {path} attends to them"
            yield Finding("violation", "mask-argument", "mask", message, other.base.instance.scores_location)
            return


def _blocked_in(other: AttentionTable, own: AttentionTable, blocked: Tensor) -> Tensor:
    """(scores of the other): those of the keys that a mask hides in one layer; of as many scores, the same ones.

    As where all nodes of a graph attend to each other in a layer, and one learned query attends to them in the next.
    """
    if len(other.weight) == len(blocked):
        return blocked
    mine, others = ((each.query.sample.clamp(min=0), each.key.token) for each in (own, other))
    hidden = {(int(one), int(two)) for one, two in zip(*(each[blocked] for each in mine), strict=True)}
    hidden -= {(int(one), int(two)) for one, two in zip(*(each[~blocked] for each in mine), strict=True)}
    return torch.tensor([(int(one), int(two)) in hidden for one, two in zip(*others, strict=True)])


def are_layers(several: Sequence[Evidence]) -> bool:
    """Whether some attentions are computed by the same line, each of the tokens that ask."""
    lines = {each.base.instance.scores_location for each in several}
    return len(lines) == 1 and all(are_of_one_sequence(each.base) for each in several)


def _is_unmoved(invocation: Invocation, evidence: Evidence, name: str, outcome: MaskOutcome) -> bool:
    """Whether an attention has the same weights with a mask as with none."""
    weight = masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: outcome.value}))
    return weight is not None and torch.equal(weight, evidence.base.weight)


def _is_without_effect(invocation: Invocation, evidence: Evidence, name: str, outcomes: Sequence[MaskOutcome]) -> bool:
    """Whether no mask changes what is returned."""
    before = evidence.base.instance.run.trace.outputs
    for value in [each.value for each in outcomes[:MOST_UNREAD]]:
        run = record_invocation(invocation, {**invocation.arguments, name: value})
        if run.error or len(run.outputs) != len(before):
            return False
        pairs = [(one.data, other.data) for one, other in zip(before, run.outputs, strict=True)]
        if not all(one.shape == other.shape and torch.allclose(one, other, 0.0, UNREAD) for one, other in pairs):
            return False
    return True


def mask_outcomes(invocation: Invocation, evidence: Evidence, name: str) -> Iterator[MaskOutcome]:
    """What masks do, in every form and shape that the call takes, until one hides exactly what it blocks."""
    sides = SIDES if is_counted(invocation, name) else ("anywhere",)
    for side in sides:
        for outcome in _outcomes_of(invocation, evidence, name, side):
            yield outcome
            if outcome.exact and next(kept(evidence, outcome, name), None) is None:
                return


def _outcomes_of(
    invocation: Invocation, evidence: Evidence, name: str, side: str, columns: KeyColumns | None = None
) -> Iterator[MaskOutcome]:
    table = evidence.base
    samples, heads, queries, _ = table.dense(table.product).shape
    columns, of_some = columns or columns_of_all(table), columns is not None
    keys = columns.count
    given = invocation.arguments.get(name)
    axes = given.ndim if isinstance(given, Tensor) else None
    forms = _forms(invocation, name)
    is_causal = takes_causal_masks_alone(invocation) and not PADDING_NAMES.search(name)
    for shape in _shapes(name, given, is_causal=is_causal, of_keys=of_some):
        keys_last = shape.replace("k", "") + "k"
        sizes = [{"b": samples, "h": heads, "q": queries, "k": keys, "1": 1}[letter] for letter in keys_last]
        if is_causal:
            pattern = causal_mask(sizes, keys_last)
        elif side == "anywhere":
            pattern = drawn_mask(sizes, of_queries="q" in shape)
        else:
            pattern = padding_mask(sizes, side)
        whole = spread(pattern, keys_last, samples, heads, queries, keys)
        pattern = pattern.movedim(-1, shape.index("k"))
        for form in forms:
            value = write_mask(pattern, form)
            free = table.weight if axes is None else _free(invocation, evidence, name, value.shape, form)
            if free is None or axes not in (None, value.ndim):
                continue
            if axes is not None and not bool((free > ZERO_WEIGHT).any()):
                continue  # what lets every key be seen hides all of them: it is the other form
            run = record_invocation(invocation, {**invocation.arguments, name: value})
            weight = masked_weights(evidence, run)
            if weight is None:
                continue
            others = are_scores_others(evidence, run)
            blocked = ~(weight.abs() > ZERO_WEIGHT)
            row = (table.query.sample.clamp(min=0), table.head, table.query.token)
            built_in = allowed_of(evidence)[*row, table.key.token] if axes is None else free > ZERO_WEIGHT
            judged = of_real_queries(evidence, whole, shape) & ~without_any_key(invocation, evidence, name, free)
            judged &= ~has_a_zero(evidence, free)
            if not bool(judged.any()):
                continue
            itself = (table.query.token == table.key.token) & ("q" in shape and are_of_one_sequence(table))
            for column in columns.orders:
                told = (column < 0) | whole[*row, column.clamp(min=0)]
                # With or in the place of its own mask.
                for allowed in (told & built_in, told, *([told & built_in | itself] if bool(itself.any()) else [])):
                    seeing, own = judged & has_a_key(evidence, allowed), bool((allowed & ~told).any())
                    yield MaskOutcome(form, shape, value, free, weight, allowed, blocked, seeing, others, own)


def _shapes(name: str, given: object, *, is_causal: bool, of_keys: bool = False) -> list[str]:
    """The axes that a mask may have, by its name and by what had to be given for it."""
    shapes = [each for each in SHAPES if "q" not in each] if of_keys or PADDING_NAMES.search(name) else [*SHAPES]
    is_last_one = isinstance(given, Tensor) and given.ndim == 3 and given.shape[-1] == 1
    shapes += [OF_EACH_TOKEN, HEADS_LAST] if is_last_one else []
    return [each for each in shapes if "q" in each or not is_causal]


def _forms(invocation: Invocation, name: str) -> list[str]:
    """Those that the code may mean: one of 0 and 1 where it takes it from 1, of booleans where it asks for these.

    First those that the documentation means.
    """
    source, forms = source_of(invocation.target), list(MASK_FORMS)
    if GRAPH.fullmatch(name.lower()):  # an edge is there where it is not 0
        forms = [form for form in MASK_FORMS if form in ("allowed", "keep", "keep, whole")]
    elif call_meaning(name) == "ids":
        forms = [form for form in MASK_FORMS if form.endswith("whole")]
    elif re.search(rf"\b1(?:\.0?)?\s*-\s*{re.escape(name)}\b", source):
        forms = [form for form in MASK_FORMS if form.startswith("keep")]
    elif re.search(rf"\b{re.escape(name)}\.dtype\s*(?:==|is)\s*torch\.bool", source):
        forms = ["allowed", "blocked"]
    meant = documented_forms(invocation, name)
    # Code that asks whether a number is 0 takes one of 0 and -inf for True and False.
    return sorted(forms, key=lambda form: (form not in meant, form == "added"))


def _beyond_hiding(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, outcomes: Sequence[MaskOutcome], name: str
) -> Iterator[Finding]:
    """What may be wrong with a mask that hides what it blocks."""
    yield from own_mask_lost(evidence, outcome, name)
    yield from _with_flag(invocation, evidence, outcome, name)
    yield from documented_mask_findings(invocation, evidence, outcome, outcomes, name)
    # Those that were tried end with the first that is exact: whether other shapes are taken too is asked of all.
    taken = _outcomes_of(invocation, evidence, name, SIDES[0])
    yield from documented_shape_findings(invocation, evidence, outcome, taken, name)
    yield from two_meanings_findings(invocation, evidence, outcome, name)
    yield from written_mask_findings(invocation, name, outcome.value)
    if not takes_causal_masks_alone(invocation):  # of one length there is one causal mask: no call has another
        yield from mask_memory_findings(invocation, name, open_mask(outcome.value.shape, outcome.form), outcome.value)


def _with_flag(invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, name: str) -> Iterator[Finding]:
    """A mask and a flag that says causal hide together what each of them hides."""
    for flag in invocation.causal_flags[:1]:
        opened = open_mask(outcome.value.shape, outcome.form)
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


def _free(invocation: Invocation, evidence: Evidence, name: str, sizes: Sequence[int], form: str) -> Tensor | None:
    """The weights under a mask that blocks nothing."""
    run = record_invocation(invocation, {**invocation.arguments, name: open_mask(sizes, form)})
    return masked_weights(evidence, run)


def those_sharing(several: list[Evidence], *, is_one: bool) -> list[Evidence]:
    """The attentions that a mask is asked in: all, or the first layers of many where there is only one sequence.

    Args:
        several: the evidence of all.
        is_one: whether they have one sequence: the mask is of its tokens.
    """
    if len(several) <= MOST_SHARING or are_layers(several):
        return several
    first = [*itertools.takewhile(lambda each: are_layers([several[0], each]), several)]
    return first if is_one else []
