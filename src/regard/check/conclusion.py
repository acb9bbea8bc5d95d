"""What properties and recipes say together: violations first, a recipe's name for them, then what is right."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from regard.check.analyses import analyzed, with_open_shapes
from regard.check.behaviour.dropout import without_dropout
from regard.check.diagnosis.dropout import DROPOUT, dropout_gap, with_dropout, with_dropout_line
from regard.check.diagnosis.judge import judge
from regard.check.diagnosis.verdict import findings_of
from regard.check.excuses import may_read_context, without_excused
from regard.check.mistakes.catalog import MISTAKES
from regard.check.properties.analysis import Analysis, said_by
from regard.check.properties.analyze import analyze
from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.columns import by_columns
from regard.check.properties.drawn_samples import LEARNED_NOISE, drawn_sample_design, drawn_slot_design
from regard.check.properties.finding import Finding
from regard.check.properties.lines import line_findings
from regard.check.properties.masks.unread_arguments import unread_mask
from regard.check.properties.outputs.documented_axes import named_axes_differ, names_the_batch
from regard.check.properties.smallest_input import smallest_input
from regard.check.report import FoundMistake
from regard.check.report.findings import Findings, Measurement
from regard.check.report.steps import attention_results, merged_steps, report_step, step_order, step_results
from regard.check.sandbox.answer import error_text, wants_memory
from regard.check.sandbox.faults import fault_reason
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.budget import SearchBudget
from regard.check.search.construction import UnknownArgument
from regard.check.search.subject import subject_of
from regard.check.target import AlwaysFails, Invocation, NotCallable, invocations
from regard.check.target.factories import Made, from_factory
from regard.check.target.handover import EXAMPLE
from regard.check.target.names import constructor_meaning
from regard.check.target.parse import InputFactory, parse_inputs
from regard.check.time_limit import seconds_left
from regard.errors import InputError

__all__ = ["analyses_of", "conclude"]

FIRST_RECIPES = 6_000
"""In the search for a recipe."""
FURTHER_RECIPES, NAMING_RECIPES = 60_000, 18_000
"""In a second one, where the first did not end and the properties leave something to be found, or a name alone."""
MAX_WALL_SECONDS = 30.0
"""For either."""
NAMED_BY_NO_RECIPE = frozenset(
    {
        "action-to-come",
        "average-kept-in-eval",
        "average-moves-slowly",
        "axes-transposed",
        "begun-anew",
        "compared-with-others",
        "distance-falls",
        "distances-on-both-sides",
        "exponentiated-once",
        "gradient-of-the-choice",
        "heads-projected",
        "inputs-kept",
        "keys-of-the-content",
        "keys-over-the-tokens",
        "keys-seen",
        "largest-kept",
        "later-tokens-hidden",
        "logits-of-the-query",
        "mask-kept",
        "masks-of-both-softmaxes",
        "memory-is-asked",
        "mix-as-documented",
        "nearest-kept",
        "norm-over-channels",
        "norm-used",
        "norms-over-one-axis",
        "one-tensor-as-two",
        "parameters-kept",
        "parts-merged",
        "results-read",
        "scaled-once",
        "sink-score",
        "softmax-maximum",
        "softmaxes-subtracted",
        "squashed-once",
        "stays-in-eval",
        "value-residual",
        "vector-of-each-distance",
        "vectors-of-values",
        "vectors-scaled-as-keys",
        "weights-cumulated",
    }
)
"""Properties that say all there is where nothing else is violated, as those of caches: no recipe has them."""
WITH_ANY = frozenset(
    {
        "bias-of-logarithms",
        "gate-of-the-other-half",
        "output-matrix",
        "parameters-kept",
        "softmax-over-keys",
        "stays-in-eval",
        "unpacked-as-packed",
    }
)
"""Properties that no argument excuses, whatever it means."""
SPECIFIC = frozenset({"mask", "bias", "positions"})
"""Steps whose properties say by themselves what is wrong."""
SAMPLES = frozenset({"samples-apart"})
"""Properties that take the axis of the tokens for that of the samples where the other order runs as well."""
TOKENS_FIRST = "tokens first"
ATTENDS_ACROSS = re.compile(r"cross|encoder_decoder|context", re.I)
"""In names of options of a constructor by which it attends to another sequence."""
OF_AXES = frozenset(
    {
        "attends-to-tokens",
        "heads-apart",
        "heads-paired",
        "key-of-one-token",
        "output-of-the-head",
        "output-of-the-token",
        "query-of-one-token",
        "samples-apart",
        "softmax-over-keys",
        "sum-of-one-of-heads",
        "sum-of-one-of-queries",
        "value-heads-paired",
        "value-of-one-token",
        "value-of-the-key",
        "value-of-the-sample",
    }
)
"""Properties that are violated as well where what was taken for tokens, samples or heads is another of the three."""
AXES_OF_TOKENS = 3
"""Of samples, tokens and channels: of these the first ones are the samples. Of four they may be layers, or frames."""
OF_ONE_QUERY = frozenset({"attends-to-tokens"})
"""A property that is violated as well where several queries are handed over to code for one, which meets every key."""


def conclude(
    implementation: Any,
    args: Mapping[str, Any],
    settings: UserSettings,
    inputs: Mapping[str, Any] | str | None = None,
) -> Findings:
    """Everything that is found out about an implementation.

    Args:
        implementation: what is judged, or a factory that returns it, or it and its inputs.
        args: for its constructor, or for the factory.
        settings: PyTorch's settings during its calls.
        inputs: for its call, by name, or as a text for `parse_inputs`; what they leave open is guessed.

    Raises:
        InputError: it is nothing that can be called, or cannot be constructed.
    """
    with _rare_collections():
        made = from_factory(implementation, args, settings)
        found = _concluded(made, settings, inputs)
        assumed = [f"{name}={size}" for name, size in made.sizes.items()]
        return replace(found, assumptions=(*assumed, *found.assumptions))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Inside, Python seldom looks for cycles: among hundreds of thousands of operations that are kept there are few."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _concluded(made: Made, settings: UserSettings, inputs: Mapping[str, Any] | str | None) -> Findings:
    implementation, args = made.implementation, made.args
    given = parse_inputs(inputs) if isinstance(inputs, str) else {**made.inputs, **(inputs or {})}
    # The search comes first: code that counts its calls is not what it was after the many calls of the properties.
    searched, ended = _searched(implementation, args, settings, FIRST_RECIPES)
    is_dropped = isinstance(searched, Findings) and any(each.id == DROPOUT for each in searched.mistakes)
    with without_dropout() if is_dropped else nullcontext():  # what it drops would be blamed on masks and weights
        analyses, failure = analyses_of(implementation, args, given, settings)
    gap = dropout_gap(analyses[0].invocation) if analyses and not is_dropped else 0.0
    if gap:
        with without_dropout():
            analyses, failure = analyses_of(implementation, args, given, settings)
    if isinstance(failure, AlwaysFails) and (isinstance(searched, InputError) or searched.verdict == "undetermined"):
        return Findings(_name(implementation), undetermined=(str(failure),))
    if isinstance(searched, Findings) and is_dropped and analyses:
        searched = with_dropout_line(searched, analyses[0].invocation)
    if not analyses and isinstance(searched, InputError):
        raise _to_tell(searched, failure)
    if inputs and isinstance(failure, NotCallable) and isinstance(searched, Findings) and not searched.mistakes:
        raise failure  # the search knows nothing of what was handed over
    if _takes_other_axes(searched, analyses):
        analyses = analyses[0].with_other_axes
    refused = _refusal(failure)
    if not ended and said_by(analyses) != "right" and not _is_told(analyses):
        more = NAMING_RECIPES if said_by(analyses) == "wrong" else FURTHER_RECIPES
        searched, _ = _searched(implementation, args, settings, more)
    if isinstance(searched, InputError):
        is_called = any(each.num_attentions or each.missing for each in analyses)  # so nothing has to be handed over
        searched = Findings(_name(implementation), unexplained=() if is_called else (str(searched),))
    if gap:
        searched = with_dropout(searched, gap, analyses[0].invocation)
    if may_read_context(searched, analyses):
        name = _setting_that_opens_context(implementation, args, analyses, settings)
        if name is not None:
            analyses[0].reads_context = True
            told = f"a context has no effect unless {name} is set: with it keys and values are made of the context"
            analyses[0].findings.append(Finding("note", "context-read", "projections", told))
    searched = without_excused(searched, analyses, is_given=bool(given))
    found = _explained(_joined(searched, analyses, refused), analyses)
    is_guess = not analyses or bool(analyses[0].invocation.by_errors)
    return _with_wrong_line(found, implementation) if is_guess and found.verdict == "undetermined" else found


def _with_wrong_line(found: Findings, implementation: Any) -> Findings:
    """What is found where no call runs, or one by its errors alone: a line that is wrong in any, or an unread mask."""
    wrong = next(line_findings(implementation), None)
    if wrong is not None:
        kind = PROPERTIES[wrong.property]
        return replace(found, mistakes=(FoundMistake(kind.id, kind.step, wrong.message, kind.impact, wrong.location),))
    unread = unread_mask(implementation)
    if unread is None:
        return found
    name, line = unread
    known = MISTAKES["mask-dropped"]
    message = f"no line reads the argument {name}: it has no effect"
    impact = "Hidden keys are attended to."
    return replace(found, mistakes=(FoundMistake(known.id, known.step, message, impact, line, known.references),))


def _setting_that_opens_context(
    implementation: Any, args: Mapping[str, Any], analyses: Sequence[Analysis], settings: UserSettings
) -> str | None:
    """The setting of the constructor by which keys are of a context: how wide that is, or that it is attended to.

    Without it such a module is self-attention, and a context has no effect.
    """
    if not inspect.isclass(implementation):
        return None
    stream = analyses[0].invocation.streams[0]
    width = analyses[0].invocation.arguments[stream.argument].shape[-1]
    for name, each in inspect.signature(implementation).parameters.items():
        is_width = constructor_meaning(name) == "d_context" and each.default is None
        if name not in args and (is_width or (each.default is False and ATTENDS_ACROSS.search(name))):
            others, _ = analyses_of(implementation, {**args, name: width if is_width else True}, {}, settings)
            if said_by(others) == "right" and any(other.reads_context for other in others):
                return name
    return None


def _to_tell(searched: InputError, failure: Exception | None) -> InputError:
    """Of two errors the one that says what to hand over: the search knows fewer names of arguments."""
    is_known = isinstance(searched, UnknownArgument) and constructor_meaning(searched.name) is not None
    return failure if isinstance(failure, NotCallable) or (is_known and isinstance(failure, InputError)) else searched


def _searched(
    implementation: Any, args: Mapping[str, Any], settings: UserSettings, recipes: int
) -> tuple[Findings | InputError, bool]:
    """What the recipes say, and whether they were searched to the end."""
    budget = SearchBudget(recipes, max(1.0, min(MAX_WALL_SECONDS, seconds_left())))
    try:
        found = findings_of(judge(subject_of(implementation, args, settings), budget=budget))
    except InputError as error:
        return error, True
    except Exception as error:
        if wants_memory(error):
            raise
        found = Findings(_name(implementation), undetermined=(_refusal(error),))
    return found, not (found.reasons and budget.spent)


def _name(implementation: Any) -> str:
    return getattr(implementation, "__name__", type(implementation).__name__)


def analyses_of(
    implementation: Any,
    args: Mapping[str, Any],
    inputs: Mapping[str, Any] | InputFactory,
    settings: UserSettings,
) -> tuple[list[Analysis], Exception | None]:
    """What the properties say of some calls; why there are no more.

    Where they say that other axes are tokens, samples or heads than was taken for them, and with these in another
    order, or with one query that was multiplied number by number, all is right, the call is meant so.
    """
    found, error = analyzed(invocations(implementation, args=args, inputs=inputs, settings=settings))
    found = with_open_shapes(found)
    violated = {each.property for each in found[0].violations} if found else set()
    if violated and violated <= OF_AXES:
        for calls in found[0].invocation.relaid(violated == OF_ONE_QUERY):
            others, _ = analyzed(calls)
            is_right = said_by(others) == "right" and all(each.is_of_scores for each in others)
            if is_right and not named_axes_differ(others[0].invocation):
                for each in others:
                    each.is_relaid = True
                others[0].findings.append(Finding("note", "axes-meant", "scores", _axes_meant(others[0])))
                return others, None
            if {each.property for one in others for each in one.violations} == {"mask-argument"}:  # of any axes
                found[0].with_other_axes = others
        columns = by_columns(found[0].invocation, analyze) if violated == OF_ONE_QUERY else None
        if columns is not None:
            columns.is_relaid = True
            columns.findings.append(Finding("note", "axes-meant", "scores", _axes_meant(columns)))
            return [columns], None
        unknown = _unknown_samples(found[0].invocation)
        if unknown and not names_the_batch(found[0].invocation):
            found[0].findings = [each for each in found[0].findings if each.kind != "violation"]
            found[0].missing.append(f"{unknown}: which axis they are is not known")
    return found, error


def _unknown_samples(invocation: Invocation) -> str:
    """Why what was taken for the samples may be something else; empty where nothing says so."""
    streams = [each for each in invocation.streams if each.batch_axis is not None]
    counts = {invocation.arguments[each.argument].shape[each.batch_axis] for each in streams}
    if len(counts) > 1:
        return "its sequences ran with different numbers of samples"
    axes = max((invocation.arguments[each.argument].ndim for each in streams), default=0)
    if axes <= AXES_OF_TOKENS:
        return ""
    shapes = [each.shape for each in invocation.outputs(invocation.run())]
    are_without = all(not counts & {*shape} and len(shape) < axes for shape in shapes)
    return "its output has no axis of the samples" if are_without else ""


def _axes_meant(analysis: Analysis) -> str:
    """The order of the axes of each sequence, in words."""
    told = []
    for stream in analysis.invocation.streams:
        names: dict[int | None, str] = {stream.batch_axis: "batch", stream.head_axis: "heads"}
        names.update(dict.fromkeys(stream.token_axes, "tokens"))
        axes = range(analysis.invocation.arguments[stream.argument].ndim)
        told.append(f"{stream.argument} ({', '.join(names.get(axis, 'width') for axis in axes)})")
    return f"it is called with {', '.join(told)}: in the order that is likelier it would be wrong"


def _refusal(error: Exception | None) -> str:
    """Why a target was not searched, or not judged by its properties, or by fewer calls; empty where it was."""
    if error is None or isinstance(error, InputError):
        return str(error or "")
    return fault_reason(error) or f"raised {error_text(error)}"


def _takes_other_axes(searched: Findings | InputError, analyses: Sequence[Analysis]) -> bool:
    """Whether the samples that a property calls mixed are tokens: with tokens first it is the definition, exactly.

    Or a design of it, of whose calls with other axes nothing but a mask is wrong.
    """
    if isinstance(searched, InputError) or not any(each.startswith(TOKENS_FIRST) for each in searched.conventions):
        return False
    if analyses and analyses[0].with_other_axes and searched.verdict not in ("wrong", "undetermined"):
        return True
    return searched.verdict.startswith("right") and {f.property for one in analyses for f in one.violations} == SAMPLES


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
    shown = next((each for each in (*(one for one in analyses if one.violations), *analyses)), None)
    lines = {report_step(PROPERTIES[each.property].step): each.location for each in reversed(violated)}
    return replace(
        found,
        mistakes=tuple(
            replace(each, location=each.location or lines.get(report_step(each.step))) for each in found.mistakes
        ),
        steps=merged_steps(step_results(several) if several else (), found.steps),
        attentions=attention_results(analyses) if several else (),
        notes=tuple(dict.fromkeys((*told, *found.notes))),
        assumptions=found.assumptions or tuple(dict.fromkeys(shown.assumptions if shown is not None else ())),
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
        return replace(found, mistakes=tuple(_mistakes(analyses)), assumptions=())  # those of the call that shows them
    if searched.is_random:
        drawn = None
        if said_by(analyses) == "right":
            drawn = LEARNED_NOISE if LEARNED_NOISE in designs else None
            drawn = drawn or drawn_sample_design(analyses[0].invocation) or drawn_slot_design(analyses[0])
        if drawn is None:
            return searched
        searched, designs = replace(searched, is_random=False, undetermined=()), tuple(dict.fromkeys((*designs, drawn)))
    if said_by(analyses) == "right" and verdict == "undetermined":
        held = Measurement("", len(analyses), 0.0)
        why = "; ".join(searched.reasons) or "no recipe of the bank computes the same"
        notes = (*searched.notes, f"judged by its properties alone: {why}")
        found = replace(searched, undetermined=(), unexplained=(), measurements=(held,), conventions=(), notes=notes)
        return replace(found, designs=designs)
    if verdict == "undetermined":
        more = (refused,) if refused and refused not in searched.reasons else ()
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
