"""What the search for a recipe says of each step: it saw the output alone, and knows what gives the same."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.report import StepResult
from regard.check.report.steps import STEPS
from regard.check.search.stage import Stage

__all__ = ["steps_by_output"]

STEP_OF_SLOT = {
    "linear": "projections",
    "groups": "scores",
    "split": "heads",
    "merge": "heads",
    "bias": "biased",
    "seen": "masked",
    "softmax": "weights",
    "scale": "scaled",
}
"""Of a design's choice in a recipe; "rounds" is of positions or of the projections, by its name."""
WITHOUT_EFFECT = frozenset({"output-v", "output-mean"})
"""Mistakes after which neither scores nor weights have an effect."""


def steps_by_output(stages: Sequence[Stage], *, function: bool, has_mask: bool) -> tuple[StepResult, ...]:
    """One result for each step; none where a call of it stays unexplained.

    Args:
        stages: what was found, of each way to mask it.
        function: whether it is a function of q, k and v, without weights of its own.
        has_mask: whether it takes a mask or a flag for one.
    """
    explained = [stage for stage in stages if stage.found is not None and stage.observed]
    if not explained or len(explained) < len(stages):
        return ()
    causes = {known.id for stage in explained if stage.found is not None for known, _ in stage.found.causes}
    number = sum(len(stage.observed) for stage in explained)
    calls = f"in {number} call{'s' if number != 1 else ''}"
    same = "with the mistake below, the definition gives the same" if causes else "equal to the definition's"
    made = dict.fromkeys(STEPS, StepResult("", "holds", f"judged by its output: {same} to 1e-9 {calls}"))
    made["positions"] = StepResult("", "absent", "none: without positions the definition gives the same output")
    made["biased"] = StepResult("", "absent", "none: without a bias the definition gives the same output")
    if function:
        made["projections"] = StepResult("", "absent", "none: queries, keys and values are handed over")
        made["projected"] = StepResult("", "absent", "none: a function of q, k and v has no weights")
    made["masked"] = _masked(explained, has_mask=has_mask, calls=calls)
    if causes & WITHOUT_EFFECT:
        unseen = StepResult("", "not exercised", "without effect on the output")
        made |= dict.fromkeys(("positions", "scores", "scaled", "biased", "masked", "weights"), unseen)
    for stage in explained:
        for each in stage.found.otherwise if stage.found is not None else ():
            if each.kind == "design":
                slot, choice = next(iter(each.recipe.items()))
                step = STEP_OF_SLOT.get(slot, "positions" if "rotary" in str(choice) else "projections")
                made[step] = StepResult("", "design", each.message)
    return tuple(StepResult(step, made[step].status, made[step].text) for step in STEPS)


def _masked(stages: Sequence[Stage], *, has_mask: bool, calls: str) -> StepResult:
    own = "causal: a query sees keys up to its own position" if stages[0].asked == "built-in" else ""
    handed = [stage for stage in stages if stage.asked in ("flag", "mask", "padding")]
    if handed:
        names = ", ".join(dict.fromkeys(stage.mask for stage in handed))
        judged = f"{names}: hides exactly what it blocks, {calls}"
        return StepResult("", "holds", f"{own}; {judged}" if own else judged)
    if own:
        return StepResult("", "holds", own)
    why = "its mask was not exercised" if has_mask else "no mask argument: masking by an argument not exercised"
    return StepResult("", "not exercised", f"every query sees every key; {why}")
