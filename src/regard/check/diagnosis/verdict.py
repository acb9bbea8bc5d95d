"""What was found, in words: the mistakes with their numbers and lines, conventions and designs, an example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from regard.check.behaviour.dropout import without_dropout
from regard.check.diagnosis.output_steps import steps_by_output
from regard.check.mistakes.mistake import Mistake
from regard.check.mistakes.recipe_examples import leak, worked_example
from regard.check.recipes.recipe import first_step
from regard.check.recipes.state import STEP_NAMES, Choices, State
from regard.check.report import CodeLocation, Example, FoundMistake
from regard.check.report.findings import Findings, Measurement
from regard.check.search.lines import place_of, traced
from regard.check.search.observed import Observed
from regard.check.search.stage import Diagnosis, Stage

__all__ = ["example_of", "findings_of"]

AROUND = ("call", "positions", *STEP_NAMES, "block")
"""Every step that a cause may be in, in their order."""


def findings_of(diagnosis: Diagnosis) -> Findings:
    """A diagnosis as findings, in words and plain numbers."""
    subject = diagnosis.subject
    causes, example = [], None
    for known, choices, stage in _causes(diagnosis):
        causes.append(_cause(diagnosis, known, choices, stage))
        example = example or example_of(known, choices)
    for known, numbers in diagnosis.behaviour:
        if known.id not in {cause.id for cause in causes}:
            causes.append(_said(known, numbers))
            example = example or example_of(known, {})
    causes.sort(key=lambda cause: AROUND.index(cause.step))
    conventions, designs = _conventions(diagnosis)
    notes = list(diagnosis.notes)
    if note := subject.settings.note():
        notes.append(note)
    roles = set(subject.roles().values())
    has_mask = bool(roles & {"mask", "padding", "causal"})
    steps = steps_by_output(diagnosis.stages, function=subject.function is not None, has_mask=has_mask)
    if (
        not steps  # which say it
        and roles & {"x", "q"}
        and not has_mask
        and [stage.asked for stage in diagnosis.stages] == ["none"]
    ):
        notes.append("it has no mask argument: nothing can be masked")
    return Findings(
        subject.name,
        mistakes=tuple(causes),
        measurements=(*diagnosis.measurements, *_measurements(diagnosis.stages)),
        conventions=tuple(conventions),
        designs=tuple(designs),
        undetermined=tuple(diagnosis.why),
        unexplained=(*diagnosis.unexplained, *(stage.why for stage in diagnosis.stages if stage.found is None)),
        is_random=diagnosis.is_random,
        notes=tuple(dict.fromkeys(notes)),
        assumptions=tuple(dict.fromkeys(subject.assumptions)),
        example=example,
        steps=steps,
    )


def _measurements(stages: Sequence[Stage]) -> Iterator[Measurement]:
    """Of each attention, its calls without a mask that is an argument."""
    for stage in stages:
        if stage.asked in ("none", "built-in") and stage.found is not None and stage.observed:
            by_design = any(each.kind == "design" for each in stage.found.otherwise)
            several = stage.observed[:1] if by_design else stage.observed  # a design's numbers are the first call's
            errors = [observed.error(stage.found.choices) for observed in several]
            yield Measurement(stage.mask, len(errors), max(errors))


def _causes(diagnosis: Diagnosis) -> Iterator[tuple[Mistake, Choices, Stage]]:
    """Each cause once, from the first stage that shows it."""
    seen = set()
    for stage in diagnosis.stages:
        for known, choices in stage.found.causes if stage.found is not None else ():
            if known.id not in seen:
                seen.add(known.id)
                yield known, choices, stage


def _conventions(diagnosis: Diagnosis) -> tuple[list[str], list[str]]:
    """Layouts and conventions, and designs, with their numbers."""
    conventions, designs = list(diagnosis.conventions), list(diagnosis.designs)
    setting = diagnosis.setting
    if setting is not None:
        conventions += [setting.way.says] if setting.way.says else []
        call = setting.pairs[0][0]
        if call.which and call.which[0][1] != call.way.layout:
            conventions.append(f"returns ({_spelled(call.which[0][1])})")
        if call.which and call.which[0][0]:
            conventions.append(f"its output is element {call.which[0][0]} of what it returns, counted from 0")
        if setting.structure is not None:
            conventions += setting.structure.says
            designs += setting.structure.design
    numbers = _sizes(diagnosis.stages[0]) if diagnosis.stages and diagnosis.stages[0].observed else {}
    for stage in diagnosis.stages:
        conventions += [stage.says] if stage.says else []
        for otherwise in stage.found.otherwise if stage.found is not None else ():
            message = otherwise.message.format_map(_Open(numbers))
            if otherwise.kind == "precision":
                diagnosis.notes.append(message)
            else:
                (conventions if otherwise.kind == "convention" else designs).append(message)
    return list(dict.fromkeys(conventions)), list(dict.fromkeys(designs))


LETTERS = {"b": "batch", "h": "heads", "t": "tokens", "d": "width"}


def _spelled(layout: str) -> str:
    if layout == "bt(hd)":
        return "batch, tokens, heads * width"
    return ", ".join(LETTERS[letter] for letter in layout)


class _Open(dict[str, object]):
    """Numbers for a sentence; what is not known stays as it is."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def _sizes(stage: Stage) -> dict[str, object]:
    """How much there is of everything in a stage's first call."""
    right = stage.observed[0].state({})
    if right is None:
        return {}
    case = stage.observed[0].case
    before = case.weights.kv_heads if case.weights is not None else case.k.shape[1] if case.k is not None else 1
    heads, width = right.q.shape[1], right.q.shape[-1]
    return {
        "batch": len(right.q),
        "heads": heads,
        "kv_heads": before,
        "per": heads // max(1, before),
        "tokens": right.q.shape[-2],
        "count": right.k.shape[-2],
        "d": width,
        "d_value": right.v.shape[-1],
        "model": heads * width,
        "right": math.sqrt(width),
    }


def _cause(diagnosis: Diagnosis, known: Mistake, choices: Choices, stage: Stage) -> FoundMistake:
    """A cause that a recipe shows."""
    if not stage.observed or not choices:
        numbers = {"what": diagnosis.subject.name, **diagnosis.numbers}
        return _said(known, numbers)
    assert stage.found is not None
    observed = stage.observed[0]
    is_measured = isinstance(choices.get("scale"), float)  # the number is the first call's
    if known.id == "scale-tokens" and not is_measured:
        # Where queries and keys are not as many, it shows which are counted.
        observed = next((one for one in stage.observed if _lengths(one.state({}))), observed)
    yours, right = observed.state(stage.found.choices), observed.state({})
    numbers = _sizes(stage)
    if yours is not None and right is not None:
        number = 1 / yours.scaling if yours.scaling else 0.0
        numbers["count"] = right.k.shape[-2] if choices.get("scale") != "queries" else right.q.shape[-2]
        fill = choices.get("fill")
        if isinstance(fill, tuple):
            fill = fill[1]
        numbers |= {
            "number": fill if isinstance(fill, float) else number,
            "inverse": yours.scaling,
            "known": _root(number),
            "row": yours.weights[0, 0, 0].sum().item(),
            "what": known.words(choices),
            "mask": stage.mask,
            "seen": "later positions only" if "inverted" in choices.values() else "itself and later positions",
            "leak": leak(observed.case, yours.weights),
        }
    location = _location(stage, observed, yours, known, choices, diagnosis)
    return _said(known, numbers, location)


def _lengths(state: State | None) -> bool:
    return state is not None and state.scores.shape[-1] != state.scores.shape[-2]


def _said(known: Mistake, numbers: Mapping[str, object], location: CodeLocation | None = None) -> FoundMistake:
    message, impact = known.message.format_map(_Open(numbers)), known.impact.format_map(_Open(numbers))
    if not impact:
        impact = "Queries attend to blocked keys."
    return FoundMistake(known.id, known.step, message, impact, location, known.references)


def _root(number: float) -> str:
    square = number * number
    return f" = sqrt({round(square)})" if abs(square - round(square)) < 1e-6 * square and round(square) > 1 else ""


def _location(
    stage: Stage, observed: Observed, yours: State | None, known: Mistake, choices: Choices, diagnosis: Diagnosis
) -> CodeLocation | None:
    """The line that computes the first step in which a cause shows."""
    setting, subject = diagnosis.setting, diagnosis.subject
    if yours is None or setting is None or subject.file is None:
        return None
    call = stage.call or setting.pairs[0][0]
    with without_dropout():
        records = traced(call, observed.case, subject.file)
    first = first_step(choices)
    for name in STEP_NAMES[STEP_NAMES.index(first) :]:
        mine: Tensor | None = getattr(yours, name)
        if mine is None:
            continue
        location = place_of(records, mine)
        if location is not None:
            return location
        if name == known.step:
            return None
    return None


def example_of(known: Mistake, choices: Choices) -> Example | None:
    """The cause on the course's numbers."""
    try:
        found = worked_example(known, choices)
    except KeyError:
        return None
    pair = found.pairs[0]
    return Example(pair.title, found.setting, pair.yours.tolist(), pair.definition.tolist())
