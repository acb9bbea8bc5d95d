"""What properties and recipes say together: violations first, a recipe's name for them, then what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from regard.check.diagnosis.judge import judge
from regard.check.diagnosis.verdict import findings_of
from regard.check.mistakes.catalog import MISTAKES
from regard.check.properties.analysis import Analysis, analyze
from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.smallest_input import smallest_input
from regard.check.report import FoundMistake
from regard.check.report.findings import Findings, Measurement
from regard.check.report.steps import attention_results, merged_steps, report_step, step_order, step_results
from regard.check.sandbox.answer import error_text, wants_memory
from regard.check.sandbox.faults import fault_reason
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.deadline import Deadline
from regard.check.search.subject import subject_of
from regard.check.target import NotCallable, invocations
from regard.check.target.invocation import EXAMPLE, from_factory
from regard.check.target.parse import InputFactory, parse_inputs
from regard.errors import InputError

__all__ = ["analyses_of", "conclude"]

MAX_CALLS = 4
"""Calls of other sizes or arguments that are analyzed."""
FIRST_CPU_SECONDS = 3.0
"""For the search for a recipe."""
FURTHER_CPU_SECONDS, NAMING_CPU_SECONDS = 6.0, 3.5
"""For a second one, where the first did not end and the properties leave something to be found, or a name alone."""
MAX_WALL_SECONDS = 30.0
NAMED_BY_NO_RECIPE = frozenset(
    {
        "keys-over-the-tokens",
        "keys-seen",
        "masks-of-both-softmaxes",
        "norm-used",
        "sink-score",
        "softmax-maximum",
        "softmaxes-subtracted",
        "value-residual",
    }
)
"""Properties that say all there is where nothing else is violated, as those of caches: no recipe has them."""
WITH_ANY = frozenset({"softmax-over-keys"})
"""Properties that no argument excuses, whatever it means."""
SPECIFIC = frozenset({"mask", "bias", "positions"})
"""Steps whose properties say by themselves what is wrong."""
AROUND = frozenset({"residual-missing"})
"""A mistake of a block: an attention that norms its input leaves the residual to the code that calls it."""
MIXED = frozenset({"batch-mixed", "batch-as-tokens", "absolute-axes"})
"""Mistakes that a property shows by itself: where it holds, the recipe took other axes for the samples."""
MASKING = frozenset({"mask-dropped", "mask-not-passed"})
"""Mistakes that are none where a mask in another form does hide keys."""
SCALES = frozenset(name for name, each in MISTAKES.items() if each.step == "scaled")
"""Mistakes that are none where something says that the scale is meant."""
CONTEXT = frozenset({"context-ignored"})
"""Mistakes that are none where a context need not be given: it is for another configuration, as a decoder's."""


def conclude(
    implementation: Any,
    args: Mapping[str, Any],
    settings: UserSettings,
    inputs: Mapping[str, Any] | str | None = None,
) -> Findings:
    """Everything that is found out about an implementation.

    Args:
        implementation: what is judged, or a factory without arguments that returns it, or it and its inputs.
        args: for its constructor.
        settings: PyTorch's settings during its calls.
        inputs: for its call, by name, or as a text for `parse_inputs`; what they leave open is guessed.

    Raises:
        InputError: it is nothing that can be called, or cannot be constructed.
    """
    implementation, made = from_factory(implementation, settings)
    given = parse_inputs(inputs) if isinstance(inputs, str) else {**made, **(inputs or {})}
    # The search comes first: code that counts its calls is not what it was after the many calls of the properties.
    searched, ended = _searched(implementation, args, settings, FIRST_CPU_SECONDS)
    analyses, refused = analyses_of(implementation, args, given, settings)
    if not analyses and isinstance(searched, InputError):
        raise searched
    if not ended and _said(analyses) != "right" and not _is_told(analyses):
        more = NAMING_CPU_SECONDS if _said(analyses) == "wrong" else FURTHER_CPU_SECONDS
        searched, _ = _searched(implementation, args, settings, more)
    if isinstance(searched, InputError):
        searched = Findings(_name(implementation), unexplained=(str(searched),))
    if analyses and not any(each.has_feed_forward for each in analyses):
        searched = _without(searched, AROUND)
    is_seen = any(each.num_attentions for each in analyses) and not any(each.violations for each in analyses)
    if is_seen and (given or any(each.has_batch for each in analyses)):  # else it may not be meant for a batch
        searched = _without(searched, MIXED)
    if _said(analyses) != "right":
        return _explained(_joined(searched, analyses, refused), analyses)
    if any(each.step == "scale" for one in analyses for each in one.designs):
        searched = _without(searched, SCALES)
    held = {each.property for one in analyses for each in one.findings if each.kind in ("holds", "open")}
    if held & {"mask-form", "mask-flag", "mask-pattern", "mask-given"}:
        searched = _without(searched, MASKING)
    if not any(each.has_context for each in analyses) and any(each.id in CONTEXT for each in searched.mistakes):
        searched = _without(searched, CONTEXT | MASKING)
    return _explained(_joined(searched, analyses, refused), analyses)


def _searched(
    implementation: Any, args: Mapping[str, Any], settings: UserSettings, cpu_seconds: float
) -> tuple[Findings | InputError, bool]:
    """What the recipes say, and whether they were searched to the end."""
    deadline = Deadline(cpu_seconds, MAX_WALL_SECONDS)
    try:
        found = findings_of(judge(subject_of(implementation, args, settings), deadline=deadline))
    except InputError as error:
        return error, True
    except Exception as error:
        if wants_memory(error):
            raise
        found = Findings(_name(implementation), undetermined=(fault_reason(error) or f"raised {error_text(error)}",))
    return found, not (found.reasons and deadline.passed)


def _name(implementation: Any) -> str:
    return getattr(implementation, "__name__", type(implementation).__name__)


def analyses_of(
    implementation: Any,
    args: Mapping[str, Any],
    inputs: Mapping[str, Any] | InputFactory,
    settings: UserSettings,
) -> tuple[list[Analysis], str]:
    """What the properties say of some calls; why there is none."""
    found: list[Analysis] = []
    first: dict[str, object] = {}
    try:
        for invocation in invocations(implementation, args=args, inputs=inputs, settings=settings):
            layout = {each.argument: (each.batch_axis, each.token_axes, each.head_axis) for each in invocation.streams}
            is_other = any(first.get(name, axes) != axes for name, axes in layout.items())
            if is_other and not (found and found[0].is_kind_alone):
                continue  # another reading of the same call, less likely than the first
            # Where sizes coincide, a mask with its axes in another order would run as well.
            analysis = analyze(invocation, masks=not found or is_other, is_first=not found or is_other)
            if is_other and not analysis.has_scores:
                continue
            if is_other:  # what was taken for channels are tokens
                found, first = [], {}
            first = {**layout, **first}
            found.append(analysis)
            if len(found) == MAX_CALLS or found[-1].violations:
                break
    except (NotCallable, InputError) as error:
        return found, str(error)
    except Exception as error:
        return found, fault_reason(error) or error_text(error)
    return found, ""


def _without(searched: Findings, mistakes: AbstractSet[str]) -> Findings:
    """What a recipe says less some mistakes; without any left, it says nothing."""
    if not searched.mistakes or not all(each.id in mistakes for each in searched.mistakes):
        return searched
    return replace(searched, mistakes=(), measurements=(), example=None, steps=())


def _said(analyses: Sequence[Analysis]) -> str:
    if any(each.violations for each in analyses):
        return "wrong"
    return "right" if analyses and all(each.complete for each in analyses) else "unknown"


def _is_told(analyses: Sequence[Analysis]) -> bool:
    """Whether one property is violated that says all there is, and the scale, judged last, was judged all the same."""
    several = [each for one in analyses for each in one.findings]
    violated = {each.property: each.step for each in several if each.kind == "violation"}
    if violated and all(each.startswith("cache-") or each in NAMED_BY_NO_RECIPE for each in violated):
        return True  # no recipe has a cache
    return len(violated) == 1 and {*violated.values()} <= SPECIFIC and any(each.step == "scale" for each in several)


def _explained(found: Findings, analyses: Sequence[Analysis]) -> Findings:
    """With what is known of each step and of each attention, and what else the properties have to tell."""
    guessed = any(
        each.guessed and each.violations and not any(found.property in WITH_ANY for found in each.violations)
        for each in analyses
    )
    several = [] if guessed and not found.mistakes else [each for one in analyses for each in one.findings]
    told = (each.message for each in several if each.kind == "note")
    violated = [each for each in several if each.kind == "violation"]
    lines = {report_step(PROPERTIES[each.property].step): each.location for each in reversed(violated)}
    return replace(
        found,
        mistakes=tuple(
            replace(each, location=each.location or lines.get(report_step(each.step))) for each in found.mistakes
        ),
        steps=merged_steps(step_results(several) if several else (), found.steps),
        attentions=attention_results(analyses) if several else (),
        notes=tuple(dict.fromkeys((*told, *found.notes))),
        assumptions=found.assumptions or tuple(dict.fromkeys(analyses[0].assumptions if analyses else ())),
    )


def _joined(searched: Findings, analyses: Sequence[Analysis], refused: str) -> Findings:
    violations = [found for each in analyses for found in each.violations]
    designs = tuple(dict.fromkeys(found.message for each in analyses for found in each.designs))
    missing = tuple(dict.fromkeys(text for each in analyses for text in each.missing))
    verdict = searched.verdict
    guessed = [name for each in analyses for name in each.guessed]
    if violations and guessed and verdict != "wrong" and not any(each.property in WITH_ANY for each in violations):
        why = f"nothing tells what {guessed[0]} is; with a guess for it, {violations[0].message}"
        return replace(searched, undetermined=(*searched.undetermined, f"{why}. Hand it over: {EXAMPLE}"))
    if violations:
        if verdict == "wrong" and not searched.reasons:
            return searched
        if verdict == "wrong":  # of several attentions, or ways to call it, some have mistakes that no recipe has
            known = {report_step(each.step) for each in searched.mistakes}
            others = [each for each in _mistakes(analyses) if report_step(each.step) not in known]
            mistakes = sorted((*searched.mistakes, *others), key=lambda each: step_order(each.step))
            return replace(searched, mistakes=tuple(mistakes))
        found = replace(searched, undetermined=(), unexplained=(), notes=(*searched.notes, *searched.undetermined))
        return replace(found, mistakes=tuple(_mistakes(analyses)))
    if searched.is_random:
        return searched
    if _said(analyses) == "right" and verdict == "undetermined":
        held = Measurement("", len(analyses), 0.0)
        why = "; ".join(searched.reasons) or "no recipe of the bank computes the same"
        notes = (*searched.notes, f"judged by its properties alone: {why}")
        found = replace(searched, undetermined=(), unexplained=(), measurements=(held,), conventions=(), notes=notes)
        return replace(found, designs=designs)
    if verdict == "undetermined":
        more = (refused,) if refused else ()
        return replace(searched, unexplained=(*searched.unexplained, *missing, *more))
    return searched


def _mistakes(analyses: Sequence[Analysis]) -> Iterator[FoundMistake]:
    """Each property that is violated once, with the smallest input that shows it."""
    seen = set()
    for analysis in analyses:
        for found in analysis.violations:
            if found.property in seen:
                continue
            seen.add(found.property)
            known = PROPERTIES[found.property]
            message = f"{found.module}: {found.message}" if found.module else found.message
            smallest = smallest_input(analysis, found.property)
            yield FoundMistake(known.id, known.step, message, known.impact, found.location, smallest=smallest)
