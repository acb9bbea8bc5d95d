"""Masks that are handed over: exactly the blocked keys have no weight, and the others share what these had."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.documented import (
    documented_forms,
    documented_mask_findings,
    documented_shape_findings,
    takes_causal_masks_alone,
)
from regard.check.properties.masks.drawn import causal_mask, drawn_mask, open_mask, padding_mask, spread
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.memory import mask_memory_findings
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.patterns import FROM_FIRST_KEY, allowed_of, built_in_pattern, square
from regard.check.properties.masks.settings import not_chosen, switched_off
from regard.check.properties.saturation import BLOCKED, ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.properties.weights.softmax import SUM_TOLERANCE
from regard.check.roles.influence import record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.mask_values import HEADS_LAST, MASK_FORMS, write_mask
from regard.check.target.names import call_meaning
from regard.check.target.signature import source_of

__all__ = [
    "flag_findings",
    "kept",
    "mask_argument_findings",
    "own_mask_lost",
    "shared_mask_findings",
    "violated",
]

SHAPES = ("bhqk", "b1qk", "qk", "bqk", "b11k", "bk", "b1k", "bqkh", "kb", "k")
"""Axes of a mask: samples, heads, queries, keys."""
PADDING_NAMES = re.compile("pad|key_mask|kpm|lengths|valid|present|presence|exists")
OTHER_SEQUENCE = re.compile("enc|memory|mem_|context|cross|^inputs_")
"""Names of masks of a sequence that need not be there."""
NOT_OF_KEYS = re.compile("^(?:q|query|queries)_|prefix")
"""Names of masks that hide no key: of queries that are padding, whose outputs are of no use, and of a prefix."""
GRAPH = re.compile("adj(?:acency)?(?:_?(?:mat|matrix))?")
"""Names of the edges of a graph."""
OWN_MASKS = frozenset({"causal", "causal window", FROM_FIRST_KEY})
"""Masks of the code itself that a mask of padding has to be joined with."""
MOST_UNREAD = 12
"""Masks that change no weight of an attention, after which it is taken not to read them."""
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
        outcomes = list(_outcomes(invocation, evidence, name))
        if not outcomes:
            yield Finding(
                "open", "mask-open", "mask", f"no mask was found that {name} takes: its masking was not judged"
            )
            continue
        exact = [(each, list(kept(evidence, each, name))) for each in outcomes if each.exact]
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
        unread = not_chosen(invocation, name) if _have_no_effect(outcomes) else None
        yield from violated(evidence, outcomes, name) if unread is None else [unread]


def shared_mask_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[tuple[str, list[Finding]]]:
    """What is found of each mask that one of several attentions hides exactly by, or that none of them reads.

    Else nothing is said against the mask: which attention it is of is not known.
    """
    crossed = any(each.role in ("context", "k") for each in invocation.streams)
    names = [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]
    for name in [each for each in names if crossed or not OTHER_SEQUENCE.search(each)][:2]:
        unread = 0
        for number, evidence in enumerate(several):
            outcomes: list[MaskOutcome] = []
            for outcome in _outcomes(invocation, evidence, name):
                outcomes.append(outcome)
                if outcome.exact or sum(torch.equal(each.weight, each.free) for each in outcomes) > MOST_UNREAD:
                    break
            unread += bool(outcomes) and all(torch.equal(each.weight, each.free) for each in outcomes)
            if not outcomes or not outcomes[-1].exact:
                continue
            outcome = outcomes[-1]
            is_first = all(_is_unmoved(invocation, earlier, name, outcome) for earlier in several[:number])
            found = list(kept(evidence, outcome, name)) if is_first else []
            message = f"{name} hides exactly the keys that it blocks; {SAID[outcome.form].format(name=name)}"
            found = found or list(documented_mask_findings(invocation, evidence, outcome, outcomes, name))
            yield name, found or [Finding("holds", "mask-form", "mask", message)]
            break
        if unread == len(several) and _is_without_effect(invocation, several[0], name, outcomes):
            line = several[0].base.instance.scores_location
            message = f"{name} has no effect on any weight, nor on what is returned"
            yield name, [Finding("violation", "mask-argument", "mask", message, line)]


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
        if not all(torch.equal(one.data, other.data) for one, other in zip(before, run.outputs, strict=True)):
            return False
    return True


def flag_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A flag that says causal makes it causal."""
    for name in invocation.causal_flags[:1]:
        run = record_invocation(invocation, {**invocation.arguments, name: True})
        weight = masked_weights(evidence, run)
        if weight is None:
            continue
        allowed = square(evidence, evidence.base.dense((weight > ZERO_WEIGHT).double(), 0.0)[0, 0] > 0)
        pattern, wrong = built_in_pattern(allowed)
        if pattern == "full":
            wrong = f"{name}=True changes nothing: a query sees later keys"
        line = evidence.base.instance.scores_location
        if wrong:
            yield Finding("violation", "mask-pattern", "mask", wrong, line)
        elif pattern == "causal":
            message = f"{name}=True: a query sees keys up to its own position"
            yield Finding("holds", "mask-flag", "mask", message, line)
            yield from mask_memory_findings(invocation, name, True, False)


def _outcomes(invocation: Invocation, evidence: Evidence, name: str) -> Iterator[MaskOutcome]:
    """What masks do, in every form and shape that the call takes, until one hides exactly what it blocks."""
    sides = SIDES if _is_counted(invocation, name) else ("anywhere",)
    for side in sides:
        for outcome in _outcomes_of(invocation, evidence, name, side):
            yield outcome
            if outcome.exact and next(kept(evidence, outcome, name), None) is None:
                return


def _is_counted(invocation: Invocation, name: str) -> bool:
    """Whether the code asks a mask how many keys it blocks or leaves: these stand together, at one end."""
    name = re.escape(name)
    counted = rf"\b{name}(?:\.\w+\([^()]*\))*\.sum\(|\bsum\(\s*~?{name}\b"
    return re.search(counted, source_of(invocation.target)) is not None


def _outcomes_of(invocation: Invocation, evidence: Evidence, name: str, side: str) -> Iterator[MaskOutcome]:
    table = evidence.base
    samples, heads, queries, keys = table.dense(table.product).shape
    given = invocation.arguments.get(name)
    axes = given.ndim if isinstance(given, Tensor) else None
    forms = _forms(invocation, name)
    is_causal = takes_causal_masks_alone(invocation) and not PADDING_NAMES.search(name)
    for shape in _shapes(name, given, is_causal=is_causal):
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
            blocked = ~(weight.abs() > ZERO_WEIGHT)
            row = (table.query.sample.clamp(min=0), table.head, table.query.token)
            built_in = allowed_of(evidence)[*row, table.key.token] if axes is None else free > ZERO_WEIGHT
            judged = _of_real_queries(evidence, whole, shape) & ~_without_any_key(invocation, evidence, name, free)
            judged &= ~_has_a_zero(evidence, free)
            if not bool(judged.any()):
                continue
            itself = (table.query.token == table.key.token) & ("q" in shape and _are_of_one_sequence(table))
            for told in [whole[*row, column] for column in _columns(table)]:
                # With or in the place of its own mask.
                for allowed in (told & built_in, told, *([told & built_in | itself] if bool(itself.any()) else [])):
                    seeing, own = judged & _has_a_key(evidence, allowed), bool((allowed & ~told).any())
                    yield MaskOutcome(form, shape, value, free, weight, allowed, blocked, seeing, own)


def _shapes(name: str, given: object, *, is_causal: bool) -> list[str]:
    """The axes that a mask may have, by its name and by what had to be given for it."""
    shapes = [each for each in SHAPES if "q" not in each] if PADDING_NAMES.search(name) else [*SHAPES]
    shapes += [HEADS_LAST] if isinstance(given, Tensor) and given.ndim == 3 and given.shape[-1] == 1 else []
    return [each for each in shapes if "q" in each or not is_causal]


def _columns(table: AttentionTable) -> list[Tensor]:
    """(scores): the column of a mask that a key stands in, the likeliest order first.

    Keys may be made of two sequences, one behind the other, and the asking one may come last (Perceiver's resampler).
    """
    streams, token = table.key.stream, table.key.token
    last = streams == streams.max()
    if bool(last.all()) or bool((streams[~last] != streams.min()).any()):
        return [token]
    begin = token[last].min()
    return [token, torch.where(last, token - begin, token + (token.max() + 1 - begin))]


def _has_a_key(evidence: Evidence, allowed: Tensor) -> Tensor:
    """(scores): whether the query has a key that it may attend to: of others every code makes its own."""
    rows = query_numbers(evidence)
    count = torch.zeros(int(rows.max()) + 1, dtype=torch.long).index_add_(0, rows, allowed.long())
    return count[rows] > 0


def _has_a_zero(evidence: Evidence, free: Tensor) -> Tensor:
    """(scores): whether its query has weights that are 0 by their scores alone, whatever hides their keys."""
    rows = query_numbers(evidence)
    is_zero = (free.abs() <= ZERO_WEIGHT) & (evidence.base.masked > BLOCKED)
    return torch.isin(rows, rows[is_zero])


def _of_real_queries(evidence: Evidence, whole: Tensor, shape: str) -> Tensor:
    """(scores): whether its query is a token that the mask does not hide as a key."""
    table = evidence.base
    if "q" in shape or not _are_of_one_sequence(table) or not evidence.num_tokens:
        return torch.ones(len(table.weight), dtype=torch.bool)
    real = pad(whole, (0, max(0, whole.shape[-2] - whole.shape[-1])))  # a token that no query sees is not judged
    return real[table.query.sample.clamp(min=0), table.head, 0, table.query.token]


def _without_any_key(invocation: Invocation, evidence: Evidence, name: str, free: Tensor) -> Tensor:
    """(scores): whether another mask hides all keys of its query, so that each has the same weight."""
    others = [invocation.arguments.get(each) for each in invocation.masks if each != name]
    if not any(isinstance(each, Tensor) and bool((each != each.flatten()[0]).any()) for each in others):
        return torch.zeros(len(free), dtype=torch.bool)
    rows = query_numbers(evidence)
    mean = torch.zeros(int(rows.max()) + 1, dtype=free.dtype).index_add_(0, rows, free) / rows.bincount()
    is_other = ((free - mean[rows]).abs() > SUM_TOLERANCE).long()
    return torch.zeros(len(mean), dtype=torch.long).index_add_(0, rows, is_other)[rows] == 0


def _are_of_one_sequence(table: AttentionTable) -> bool:
    """Whether queries and keys are made of the same tokens, by themselves or by projections of the same tensor."""
    if torch.equal(table.query.stream, table.key.stream):
        return True
    run = table.instance.run
    taken: list[set[int]] = [set(), set()]
    for each in table.instance.scores:
        for mine, (index, number) in zip(taken, (each.left_place, each.right_place), strict=True):
            projections = (run.trace.operations[one] for one in run.owner_of(run.tags.inputs[index][number]))
            mine.update(one.storage for made in projections for one in made.inputs if not one.learned)
    return bool(taken[0] & taken[1])


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
    yield from documented_shape_findings(invocation, evidence, outcome, outcomes, name)
    yield from mask_memory_findings(invocation, name, open_mask(outcome.value.shape, outcome.form), outcome.value)


def own_mask_lost(evidence: Evidence, outcome: MaskOutcome, name: str) -> Iterator[Finding]:
    """A mask that has one entry for each key cannot say what comes later: it is joined with the code's own mask."""
    if "q" in outcome.shape:
        return
    own = allowed_of(evidence)
    pattern, _ = built_in_pattern(own[0, 0])
    table = evidence.base
    later = ~own[table.query.sample.clamp(min=0), table.head, table.query.token, table.key.token]
    seen = outcome.judged & later & ~outcome.blocked
    if pattern not in OWN_MASKS or not bool(seen.any()):
        return
    at = int(seen.nonzero()[0])
    message = (
        f"with {name} its own mask ({pattern}) is dropped: query {int(table.query.token[at])} sees key "
        f"{int(table.key.token[at])} with weight {float(outcome.weight[at]):.3g}"
    )
    yield Finding("violation", "masks-joined", "mask", message, table.instance.scores_location)


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


def kept(evidence: Evidence, outcome: MaskOutcome, name: str) -> Iterator[Finding]:
    """What is allowed has weights that sum to one and stand to one another as without the mask."""
    table, rows = evidence.base, query_numbers(evidence)
    line = table.instance.scores_location
    weight, free = (torch.where(outcome.judged, each, 0.0) for each in (outcome.weight, outcome.free))
    before = torch.zeros(int(rows.max()) + 1, dtype=torch.float64).index_add_(0, rows, free)
    sums = torch.zeros_like(before).index_add_(0, rows, weight)
    is_normalized = (before - 1).abs() <= SUM_TOLERANCE  # linear attention without a denominator has other sums
    excess = torch.where(is_normalized, (sums - before).abs(), 0.0)
    if bool((excess > SUM_TOLERANCE).any()) and not bool(table.with_sink.any()):
        worst = float(sums[excess.argmax()])
        yield Finding(
            "violation",
            "weights-sum-to-one",
            "weights",
            f"with {name} the weights of a query sum to {worst:.4g}, not to 1: they are masked after the softmax",
            line,
        )
        return
    live = (weight > 1e-9) & (free > 1e-9)  # a mask may stand in the place of the code's own
    ratio = torch.where(live, weight / free.clamp(min=1e-300), float("nan"))
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


def _is_causal(evidence: Evidence, outcome: MaskOutcome) -> bool:
    """Whether a mask hid what comes later, and nothing else."""
    table = evidence.base
    later = table.key.token > table.query.token
    return _are_of_one_sequence(table) and bool(later.any()) and torch.equal(outcome.blocked, later)


def _have_no_effect(outcomes: Sequence[MaskOutcome]) -> bool:
    """Whether no mask changes any weight."""
    return all(bool((each.weight - each.free).abs().max() < 1e-9) for each in outcomes)


def violated(evidence: Evidence, outcomes: list[MaskOutcome], name: str) -> Iterator[Finding]:
    """The outcome that comes nearest to what a mask has to do, and where it does not."""
    table = evidence.base
    line = table.instance.scores_location
    if _have_no_effect(outcomes):
        if bool((outcomes[0].free.abs() <= ZERO_WEIGHT).any()):
            message = f"whatever {name} holds, the code's own mask stands in its place"
            yield Finding("design", "mask-form", "mask", message, line)
            return
        yield Finding("violation", "mask-argument", "mask", f"{name} has no effect on any weight", line)
        return
    if len(outcomes) > 1 and all(_is_causal(evidence, each) for each in outcomes):
        message = (
            f"whatever {name} holds, a query sees keys up to its own position: that it is given is all that is read"
        )
        yield Finding("design", "mask-flag", "mask", message, line)
        return
    of_numbers = [each for each in outcomes if bool(each.weight.isfinite().all())]
    best = min(of_numbers or outcomes, key=lambda each: int(each.wrong.sum()))
    leaks = best.leaks
    at = int((leaks if bool(leaks.any()) else best.wrong).nonzero()[0])
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
        f"{int(table.query.sample[at])}, head {int(table.head[at])} ({int(best.wrong.sum())} of "
        f"{len(best.blocked)} scores)",
        line,
    )
