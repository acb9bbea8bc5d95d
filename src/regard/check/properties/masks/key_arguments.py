"""Lengths, prefixes and documents that are handed over: keys that they hide have no weight, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import are_scores_others, masked_weights
from regard.check.properties.masks.memory import mask_memory_findings
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.outcome_findings import WITHOUT_EFFECT, kept, own_mask_lost, violated
from regard.check.properties.masks.subsampled_lengths import are_of_more_tokens
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.names import call_meaning

__all__ = ["key_argument_findings", "stacked_key_argument_findings"]


def key_argument_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """What is hidden by arguments that say how many keys there are, or of which text each token is."""
    table = evidence.base
    sample, query, key = table.query.sample.clamp(min=0), table.query.token, table.key.token
    samples, keys = int(sample.max()) + 1, int(key.max()) + 1
    if keys < 3:
        return
    of_keys = samples > 1 and not are_of_more_tokens(invocation, keys)
    for name in invocation.lengths if of_keys else ():
        lengths = torch.arange(samples) % (keys - 1) + 1
        whole, allowed = torch.full((samples,), keys), key < lengths[sample]
        of_itself = torch.equal(table.query.stream, table.key.stream)
        judged = query < lengths[sample] if of_itself else torch.ones_like(allowed)
        says = "hides the keys of padding"
        yield from _judged(invocation, evidence, name, (lengths, whole), (allowed, judged), says)
    for name in invocation.prefixes:
        given, two = invocation.arguments.get(name), torch.full((samples,), 2)
        is_number = not isinstance(given, Tensor)
        if given is None:
            is_number = bool(record_invocation(invocation, {**invocation.arguments, name: two}).error)
        sizes = two if is_number else torch.arange(samples) % (keys - 1) + 1
        whole, allowed = torch.full((samples,), keys), (key <= query) | (key < sizes[sample])
        values = (2, keys) if is_number else (sizes, whole)
        says = "is seen by all tokens of its row, and what comes after it by later ones"
        yield from _judged(invocation, evidence, name, values, (allowed, torch.ones_like(allowed)), says)
    for name in invocation.documents:
        texts = (torch.arange(keys)[None, :] > torch.arange(samples)[:, None] % (keys - 1)).long()
        same = texts[sample, query.clamp(max=keys - 1)] == texts[sample, key]
        if invocation.arguments[name].ndim < 2:  # of one sequence
            texts = texts[0]
        one = torch.zeros_like(texts)
        says, judged = "keeps the texts of a row apart", torch.ones_like(same)
        if call_meaning(name) != "documents" and all(
            _hides_nothing(invocation, evidence, name, each, same) for each in (texts, 1 - texts)
        ):
            continue  # numbers that are alike may be told to the scores by a bias as well
        one_way = _one_way(invocation, evidence, name, texts, same)
        if one_way is not None:
            yield one_way
            continue
        yield from _judged(invocation, evidence, name, (texts, one), (same, judged), says)


def stacked_key_argument_findings(
    invocation: Invocation, several: Sequence[Evidence]
) -> Iterator[tuple[str, list[Finding]]]:
    """The same of layers one after the other, all of one line and of one sequence, by the name of the argument.

    Of these the first is asked: the scores of the others change with what it read. What it does not read may be of
    something else, as lengths by which the output is pooled.

    Args:
        invocation: the call.
        several: the evidence of all of its attentions.
    """
    lines = {each.base.instance.scores_location for each in several}
    is_of_itself = all(torch.equal(each.base.query.stream, each.base.key.stream) for each in several)
    if len(several) < 2 or len(invocation.streams) > 1 or len(lines) > 1 or not is_of_itself:
        return
    first = several[0]
    for name in (*invocation.lengths, *invocation.prefixes, *invocation.documents):
        lengths, prefixes, documents = (
            [each for each in names if each == name]
            for names in (invocation.lengths, invocation.prefixes, invocation.documents)
        )
        alone = replace(invocation, lengths=lengths, prefixes=prefixes, documents=documents)
        found = [replace(each, module=first.base.instance.module) for each in key_argument_findings(alone, first)]
        if found and all(each.kind != "open" and WITHOUT_EFFECT not in each.message for each in found):
            yield name, found


def _hides_nothing(invocation: Invocation, evidence: Evidence, name: str, texts: Tensor, same: Tensor) -> bool:
    """Whether each text of a row sees all others, as far as it saw them as one text."""
    weight, free = (
        masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: value}))
        for value in (texts, torch.zeros_like(texts))
    )
    if weight is None or free is None:
        return True
    return not bool(((free > ZERO_WEIGHT) & (weight.abs() <= ZERO_WEIGHT))[~same].any())


def _one_way(invocation: Invocation, evidence: Evidence, name: str, texts: Tensor, same: Tensor) -> Finding | None:
    """What is found where later texts see earlier ones, unless the numbers of the texts fall."""
    table, line = evidence.base, evidence.base.instance.scores_location
    rising, falling, one = (
        masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: value}))
        for value in (texts, 1 - texts, torch.zeros_like(texts))
    )
    if rising is None or falling is None or one is None or not torch.equal(rising, one):
        return None
    leaks = ~same & (rising > ZERO_WEIGHT)
    if torch.equal(falling, one) or not bool(leaks.any()) or bool((leaks & (falling > ZERO_WEIGHT)).any()):
        return None
    at = int(leaks.nonzero()[0])
    message = (
        f"query {int(table.query.token[at])} of the second text in {name} sees key {int(table.key.token[at])} of the "
        f"first with weight {float(rising[at]):.3g}; it does not where the numbers of the texts fall: they are "
        "compared by size"
    )
    return Finding("violation", "mask-argument", "mask", message, line)


def _judged(
    invocation: Invocation,
    evidence: Evidence,
    name: str,
    values: tuple[Tensor | int, Tensor | int],
    wanted: tuple[Tensor, Tensor],
    says: str,
) -> Iterator[Finding]:
    """What a value does, beside one that hides nothing; wanted: what it allows, and which scores are judged."""
    runs = [record_invocation(invocation, {**invocation.arguments, name: value}) for value in values]
    weight, free = (masked_weights(evidence, run) for run in runs)
    if weight is None or free is None:
        yield Finding("open", "mask-open", "mask", f"{name}: not exercised")
        return
    allowed, judged = wanted[0] & (free > ZERO_WEIGHT), wanted[1]
    outcome = MaskOutcome(
        "",
        "",
        torch.as_tensor(values[0]),
        free,
        weight,
        allowed,
        ~(weight.abs() > ZERO_WEIGHT),
        judged,
        are_scores_others(evidence, runs[0]),
    )
    if not outcome.exact or torch.equal(weight, free):
        yield from violated(evidence, [outcome], name)
        return
    yield from kept(evidence, outcome, name)
    if name not in invocation.prefixes:  # which opens what is masked
        yield from own_mask_lost(evidence, outcome, name)
    yield from mask_memory_findings(invocation, name, values[1], values[0])
    yield Finding("holds", "mask-form", "mask", f"{name} {says}")
