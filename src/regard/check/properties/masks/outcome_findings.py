"""What is said of what masks did: of what they hide, and of the weights that are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.patterns import FROM_FIRST_KEY, allowed_of, built_in_pattern
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.sums import query_numbers
from regard.check.properties.weights.softmax import SUM_TOLERANCE
from regard.check.roles.table import AttentionTable

__all__ = ["WITHOUT_EFFECT", "are_of_one_sequence", "have_no_effect", "kept", "own_mask_lost", "violated"]

OWN_MASKS = frozenset({"causal", "causal window", FROM_FIRST_KEY})
"""Masks of the code itself that a mask of padding has to be joined with."""

WITHOUT_EFFECT = "has no effect on any weight"


def are_of_one_sequence(table: AttentionTable) -> bool:
    """Whether queries and keys are made of the same tokens, by themselves or by projections of the same tensor."""
    if torch.equal(table.query.stream, table.key.stream):
        return True
    run = table.instance.run
    taken: list[set[int]] = [set(), set()]
    for each in table.instance.scores:
        for mine, (index, number) in zip(taken, each.places, strict=True):
            projections = (run.trace.operations[one] for one in run.owner_of(run.tags.inputs[index][number]))
            mine.update(one.storage for made in projections for one in made.inputs if not one.learned)
    return bool(taken[0] & taken[1])


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
    if outcome.are_scores_others:
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
    return are_of_one_sequence(table) and bool(later.any()) and torch.equal(outcome.blocked, later)


def have_no_effect(outcomes: Sequence[MaskOutcome]) -> bool:
    """Whether no mask changes any weight."""
    return all(bool((each.weight - each.free).abs().max() < 1e-9) for each in outcomes)


def violated(evidence: Evidence, outcomes: list[MaskOutcome], name: str) -> Iterator[Finding]:
    """The outcome that comes nearest to what a mask has to do, and where it does not."""
    table = evidence.base
    line = table.instance.scores_location
    if have_no_effect(outcomes):
        if bool((outcomes[0].free.abs() <= ZERO_WEIGHT).any()):
            message = f"whatever {name} holds, the code's own mask stands in its place"
            yield Finding("design", "mask-form", "mask", message, line)
            return
        yield Finding("violation", "mask-argument", "mask", f"{name} {WITHOUT_EFFECT}", line)
        return
    are_alike = all(torch.allclose(each.weight, outcomes[0].weight, 0.0, 1e-9) for each in outcomes)
    if len(outcomes) > 1 and are_alike and all(_is_causal(evidence, each) for each in outcomes):
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
