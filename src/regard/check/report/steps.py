"""The steps of the definition in a report: which hold, which do not, which there are not, which were not seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from regard.check.properties.analysis import OPEN_QUESTIONS, Analysis
from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.finding import Finding
from regard.check.report.records import AttentionResult, FoundMistake, StepResult, StepStatus

__all__ = ["STEPS", "attention_results", "merged_steps", "report_step", "step_order", "step_results", "with_mistakes"]

STEPS = (
    "projections",
    "positions",
    "scores",
    "scaled",
    "biased",
    "masked",
    "weights",
    "output",
    "heads",
    "projected",
)
"""As a report lists them; "call" stands before them and "block" after them, where one is violated."""
OTHER_NAMES = {
    "q": "projections",
    "k": "projections",
    "v": "projections",
    "scale": "scaled",
    "bias": "biased",
    "mask": "masked",
    "weighted sum": "output",
    "heads joined": "heads",
}
"""Steps as mistakes and properties name them."""
STATUS_OF: Mapping[str, StepStatus] = {
    "violation": "violated",
    "design": "design",
    "holds": "holds",
    "open": "not exercised",
    "absent": "absent",
}
"""By the kind of a finding; what stands first is told where a step has several."""
UNSEEN = "no property could be held against it"
WITHOUT_A_MASK = frozenset({"no-mask-argument", "mask-handed-over"})
"""Of calls without a mask, or with one that hides nothing: not told beside what masks do that are handed over."""
AFTER_A_VIOLATION = "not judged: another step is wrong"


def report_step(name: str) -> str:
    """The step of a report that a mistake's or a property's step is."""
    return OTHER_NAMES.get(name, name)


def step_order(name: str) -> int:
    """Where a step stands among the others, by any of its names."""
    order = ("call", *STEPS, "block")
    step = report_step(name)
    return order.index(step) if step in order else len(order)


def step_results(findings: Iterable[Finding]) -> tuple[StepResult, ...]:
    """One result for each step, from what the properties say of an attention; of all of a model's, the worst."""
    by_step: dict[str, list[Finding]] = {step: [] for step in STEPS}
    for found in findings:
        known = PROPERTIES.get(found.property)
        by_step.setdefault(report_step(known.step if known is not None else found.step), []).append(found)
    violated = any(found.kind == "violation" for several in by_step.values() for found in several)
    return tuple(_result(step, by_step[step], violated=violated) for step in STEPS)


def _result(step: str, findings: Sequence[Finding], *, violated: bool) -> StepResult:
    texts: dict[str, dict[str, str]] = {kind: {} for kind in STATUS_OF}
    for found in findings:
        if found.kind in texts:
            texts[found.kind].setdefault(found.property, found.message)  # the first call's numbers
    kind = next((kind for kind, said in texts.items() if said), "")
    if not kind:
        return StepResult(step, "not exercised", AFTER_A_VIOLATION if violated else UNSEEN)
    said = list(texts[kind].values())
    if kind == "open":
        said = [*texts["absent"].values(), *said]
    elif kind in ("design", "holds"):
        said += [text for name, text in texts["open"].items() if name not in WITHOUT_A_MASK]
    return StepResult(step, STATUS_OF[kind], "; ".join(said))


def merged_steps(by_property: Sequence[StepResult], by_output: Sequence[StepResult]) -> tuple[StepResult, ...]:
    """What the properties say of each step; where they say nothing, and of masks as arguments, what the recipes say."""
    if not by_property or not by_output:
        return tuple(by_property or by_output)
    others = {each.step: each for each in by_output}
    return tuple(_merged(mine, others[mine.step]) for mine in by_property)


def _merged(mine: StepResult, other: StepResult) -> StepResult:
    if mine.status in ("violated", "design"):
        return mine
    told = mine.step == "masked" and other.status != "not exercised"
    return other if told or (mine.status == "not exercised" and other.status != "not exercised") else mine


def with_mistakes(steps: Sequence[StepResult], mistakes: Sequence[FoundMistake]) -> tuple[StepResult, ...]:
    """The steps, violated where a mistake is made; none where no step was seen."""
    if not steps:
        return ()
    said: dict[str, str] = {}
    for mistake in mistakes:
        said.setdefault(report_step(mistake.step), mistake.message)
    made = {each.step: each for each in steps}
    made |= {step: StepResult(step, "violated", text) for step, text in said.items()}
    return tuple(sorted(made.values(), key=lambda each: step_order(each.step)))


def attention_results(analyses: Sequence[Analysis]) -> tuple[AttentionResult, ...]:
    """The verdict of each attention by itself, where there are several."""
    modules = list(dict.fromkeys(module for each in analyses for module in each.modules))
    if len(modules) < 2:
        return ()
    return tuple(
        _attention(module, [found for each in analyses for found in each.findings if found.module == module])
        for module in modules
    )


def _attention(module: str, findings: Sequence[Finding]) -> AttentionResult:
    def texts(kind: Literal["violation", "design", "open"]) -> str:
        return "; ".join(dict.fromkeys(found.message for found in findings if found.kind == kind))

    if said := texts("violation"):
        return AttentionResult(module, "wrong", said)
    open_questions = {"not-seen", *OPEN_QUESTIONS}
    if any(found.property in open_questions for found in findings):
        return AttentionResult(module, "undetermined", texts("open"))
    if said := texts("design"):
        return AttentionResult(module, "different by design", said)
    return AttentionResult(module, "right", "")
