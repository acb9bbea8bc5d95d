"""How to call anything callable: calls that run, with the axes of their tensors known."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import STREAMS, source_of
from regard.check.target.beside_tokens import asked_for
from regard.check.target.cache_forms import cache_names
from regard.check.target.call_search import ONE_QUERY, Budget, CallPlan, search_calls
from regard.check.target.configs import OF_POSITIONS
from regard.check.target.construction import unknown_arguments
from regard.check.target.errors import AlwaysFails, Failed, NotCallable, fixed_side, fixed_tokens, joined_tokens
from regard.check.target.factories import from_factory
from regard.check.target.handover import refusal
from regard.check.target.influence import settled_streams
from regard.check.target.layouts import GRID, Layout, is_documented, layouts
from regard.check.target.open_masks import let_through
from regard.check.target.parse import InputFactory
from regard.check.target.position_values import ROPE_FORMS
from regard.check.target.preparation import keeps_a_table
from regard.check.target.running import Invocation, Stream
from regard.check.target.signature import readings
from regard.check.target.sizes import COINCIDENT_SIZES, DISTINCT_SIZES, WINDOWED_SIZES, Sizes
from regard.check.target.steps import asks_for_one_token, may_take_steps, told_how_many
from regard.check.target.targets import MAX_CONSTRUCTIONS, Target, of_one_sample, square_sizes, targets_of
from regard.check.target.user_inputs import UserInputs
from regard.check.target.values import STATE
from regard.check.time_limit import is_over
from regard.errors import InputError

__all__ = ["Invocation", "NotCallable", "Stream", "invocations"]

FEW_TRIES, MANY_TRIES = 30, 200
"""Of one layout: first few of each, then many of the likeliest ones."""
MAX_CALLS = 1200
"""Of one implementation, that are tried and fail."""
MAX_LAYOUTS = 2
"""That are tried long."""
SQUARE = "it is called with as many tokens as channels: it runs with no other number that was tried"
STEPS = "it is called with one token at a time: it runs with no other number that was tried"
GROUPED_SIZES = DISTINCT_SIZES[1:2]
"""For targets of which several heads may share keys and values."""
ENOUGH = 2
"""How clear the axes of a call have to be for no other layout to be tried first."""


@dataclass(eq=False)
class _Found:
    target: Target
    plan: CallPlan
    invocation: Invocation
    clear: int

    @property
    def documented(self) -> bool:
        """Whether its axes are those that the documentation writes, samples and tokens among them."""
        letters = self.plan.layout.letters
        return {"b", "t"} <= set(letters) and is_documented(self.plan.layout, self.plan.arguments, self.plan.source)


def invocations(
    implementation: Any,
    *,
    args: Mapping[str, Any],
    inputs: Mapping[str, Any] | InputFactory | None = None,
    settings: UserSettings | None = None,
) -> Iterator[Invocation]:
    """Calls of an implementation that run, the best first: of sizes that all differ, and of sizes that coincide.

    Args:
        implementation: a function, a class, a module, or any object that can be called; or a factory without arguments
            that returns a module, or a module and its inputs.
        args: for the constructor, or the fields of its config; what they leave open is guessed.
        inputs: for the call, by name, or from `parse_inputs`; what they leave open is guessed.
        settings: PyTorch's settings during its calls.

    Raises:
        NotCallable: no call runs.
        InputError: arguments that the constructor does not take, or a module that is not on the CPU.
    """
    settings = settings or UserSettings()
    made = from_factory(implementation, args, settings)
    implementation, fixed, args = made.implementation, made.inputs, made.args
    if isinstance(inputs, InputFactory):
        given = UserInputs({name: value for name, value in fixed.items() if name not in inputs.values}, inputs)
    else:
        given = UserInputs({**fixed, **(inputs or {})})
    errors: list[Failed] = []
    found = _search(implementation, args, given, settings, errors)
    if not found:
        last = max(errors, key=lambda error: error.progress, default=Failed("nothing was tried"))
        if last.own is not None:
            raise AlwaysFails(f"it {last} in every call that comes as far as {last.own}")
        call = next(targets_of(implementation, args, settings, [])).call
        name = getattr(implementation, "__name__", type(implementation).__name__)
        unknown = unknown_arguments(implementation, args) if inspect.isclass(implementation) else []
        late = "; not every guess was tried: they took long" if is_over() else ""
        raise NotCallable(refusal(call, name, given.names, last, unknown) + late)
    found.sort(key=lambda each: (not each.documented, -each.clear))
    for each in found:
        if not given.names:
            each.invocation.relaid = partial(_relaid, each)
        yield from _of_all_sizes(each, given)


def _relaid(found: _Found, is_one_query: bool) -> Iterator[Iterator[Invocation]]:
    """See `Invocation.relaid`; channels stay the axis that they are.

    Of a call in another order its axes may be found to be the same as before, of other sizes: that is no other order.
    """
    mine, call, sizes = found.plan.layout, found.target.call, found.target.sizes
    others = [
        replace(found.plan, layout=each, choices={})
        for each in layouts(call, found.plan.arguments)
        if each != mine and sorted(each.letters) == sorted(mine.letters)
        if each.letters.find("d") == mine.letters.find("d")
    ]
    asking = {each.role: each.name for each in found.plan.arguments if each.required}
    name = asking.get("q") if "k" in asking else asking.get("x") if "context" in asking else None
    for letters in ("btd", "tbd") if is_one_query and name is not None else ():
        for fixed in ({"lengths": ONE_QUERY}, {f"argument {name}": STATE}):
            others.append(replace(found.plan, layout=Layout(letters), choices={}, fixed=fixed))
    for plan in others:
        try:
            plan = next(search_calls(plan, call, sizes, FEW_TRIES, Budget(FEW_TRIES)))
            other = _found(found.target, plan)
        except Failed:
            continue
        if plan.fixed or _axes(other.invocation) != _axes(found.invocation):
            yield _of_all_sizes(other, UserInputs())


def _axes(invocation: Invocation) -> list[tuple[int | None, tuple[int, ...], int | None]]:
    """Which axes of its sequences are samples, tokens and heads."""
    return [(each.batch_axis, each.token_axes, each.head_axis) for each in invocation.streams]


def _search(
    implementation: Any, args: Mapping[str, Any], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[_Found]:
    """The calls of the first target that has one, up to one with clear axes; first with few tries of each layout."""
    targets: list[Target] = []
    budget = Budget(MAX_CALLS // 2)
    for target in targets_of(implementation, args, settings, errors):
        targets.append(target)
        is_of_one = len(targets) == 1 and asks_for_one_token(source_of(target.call))
        found = _calls_in_steps(targets, given, settings, errors) if is_of_one else []
        found = found or _calls_of(target, given, settings, errors, FEW_TRIES, None, budget)
        if found:
            return found
        if not budget.left:
            break
    with suppress(Failed):
        target = targets[0].with_caches()
        found = _calls_of(target, given, settings, errors, FEW_TRIES, None, Budget(MAX_CALLS // 4))
        if found:
            return found
    budget.left += MAX_CALLS // 2
    for target in targets[:MAX_CONSTRUCTIONS]:
        found = _calls_of(target, given, settings, errors, MANY_TRIES, MAX_LAYOUTS, budget)
        if found:
            return found
    found = [] if given.names else _calls_of_fixed_tokens(targets[:1], given, settings, errors)
    found = found or _calls_in_steps(targets[:1], given, settings, errors)
    return found or _square_calls(targets[:1], args, given, settings, errors)


def _calls_in_steps(
    targets: list[Target], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[_Found]:
    """Calls with one token after the other, of what is told how many came before, and keeps a cache of these."""
    if given.names or not targets or not may_take_steps(readings(targets[0].call)[0]):
        return []
    target = replace(targets[0], in_steps=True, said=[*targets[0].said, STEPS])
    found = _calls_of(target, given, settings, errors, FEW_TRIES, MAX_LAYOUTS, Budget(2 * FEW_TRIES))
    found = [each for each in found[:1] if cache_names(each.invocation).is_certain]
    return found or _calls_in_steps(of_one_sample(targets, errors), given, settings, errors)


def _calls_of_fixed_tokens(
    targets: list[Target], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[_Found]:
    """Calls with as many tokens as the error of the call that came farthest says, as of a table of distances."""
    last = max(errors, key=lambda error: error.progress, default=Failed("nothing was tried"))
    for target in targets:
        tokens, side = fixed_tokens(last, target.sizes.tokens), fixed_side(last, GRID)
        tokens = tokens if tokens and keeps_a_table(target.call, tokens) else joined_tokens(last, target.sizes.tokens)
        sizes = replace(target.sizes, tokens=tokens, context=tokens)
        if side and keeps_a_table(target.call, 2 * side - 1):  # a column for each distance
            tokens, sizes = side, replace(target.sizes, grid=(side, 1))
        elif not tokens:
            continue
        found = _calls_of_size(target, sizes, given, settings, errors)
        for each in found:
            each.invocation.assumptions.append(f"{tokens} tokens: it runs with no other number that was tried")
        if found:
            return found
    return []


def _square_calls(
    targets: list[Target], args: Mapping[str, Any], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[_Found]:
    """Calls with as many tokens as channels, of what runs with no other sizes; as of q @ k without a transpose.

    What has parameters may be of a fixed number of tokens: of that, where a product of two sequences failed.
    """
    last = max(errors, key=lambda error: error.progress, default=Failed("nothing was tried"))
    for target in [] if given.names else targets:
        for sizes in square_sizes(target, last, args):
            found = _calls_of_size(target, sizes, given, settings, errors)
            if found:
                for each in found:
                    each.invocation.square = True
                    each.invocation.assumptions.append(SQUARE)
                return found[:1]
    return []


def _calls_of_size(
    target: Target, sizes: Sizes, given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[_Found]:
    """Calls of a target that is made anew, of some sizes, with few tries; none where it cannot be made so."""
    try:
        other = target.resized(sizes, seed=1)
    except (Failed, InputError):
        return []
    return _calls_of(other, given, settings, errors, FEW_TRIES, MAX_LAYOUTS, Budget(2 * FEW_TRIES))


def _calls_of(
    target: Target,
    given: UserInputs,
    settings: UserSettings,
    errors: list[Failed],
    tries: int,
    most: int | None,
    budget: Budget,
) -> list[_Found]:
    found: list[_Found] = []
    for each in _calls(target, given, settings, errors, tries, most, budget):
        found.append(each)
        if each.clear >= ENOUGH or each.documented:  # a mistake may mix samples
            break
    return found


def _of_all_sizes(found: _Found, given: UserInputs) -> Iterator[Invocation]:
    """The call, with as many keys as queries, of sizes that coincide, and with what it may be given besides."""
    yield found.invocation
    if found.invocation.square:
        return
    if given.fixed and {each.argument for each in found.invocation.streams} <= set(given.fixed):
        return
    if found.plan.choices.get("lengths") == "other":
        yield from _settled(found.target, replace(found.plan, choices={**found.plan.choices, "lengths": "same"}))
    yield from _resized(found, COINCIDENT_SIZES)
    construction = found.target.construction
    if construction is not None and construction.is_grouped(found.target.said):
        yield from _resized(found, GROUPED_SIZES)
    elif construction is None and any(each.head_axis is not None for each in found.invocation.streams):
        grouped = replace(found.plan, choices={**found.plan.choices, "heads": "grouped"})
        yield from _resized(replace(found, plan=grouped), GROUPED_SIZES)
    yield from _of_as_many_windows_as_heads(found)
    yield from _of_two_widths(found)
    yield from _with_positions(found)
    yield from _with_optional(found)


def _of_as_many_windows_as_heads(found: _Found) -> Iterator[Invocation]:
    """A call of a map of four times the size with four heads, where one with other heads does not run.

    As where a mask of each window is added along the axis of the heads, of what was then called with one window.
    """
    rows, _, columns = found.plan.choices.get("grid", "").partition("x")
    if not columns or rows != columns or found.target.construction is None:
        return
    plan = replace(found.plan, choices={**found.plan.choices, "grid": f"{2 * int(rows)}x{2 * int(columns)}"})
    if not any(True for _ in _settled(found.target, plan)):
        yield from _of_sizes(found.target, plan, WINDOWED_SIZES, seed=2)


def _resized(found: _Found, several: Sequence[Sizes]) -> Iterator[Invocation]:
    """The call of the first of some sizes with which it runs."""
    for number, sizes in enumerate(several):
        calls = list(_of_sizes(found.target, found.plan, sizes, seed=2 + number))
        if calls:
            yield from calls
            return


def _of_two_widths(found: _Found) -> Iterator[Invocation]:
    """A call of a module whose constructor takes two widths, one of them twice the other, where such a one runs."""
    construction = found.target.construction
    if construction is None or len(names := construction.widths()) < 2:
        return
    for name in (names[-1], names[0]):
        target = replace(found.target, construction=replace(construction, wider=name))
        try:
            target = target.resized(target.sizes, seed=2)
            plan = replace(found.plan, choices={})
            plan = next(search_calls(plan, target.call, target.sizes, FEW_TRIES, Budget(FEW_TRIES)))
        except (Failed, InputError):
            continue
        for each in _settled(target, plan):
            each.two_widths = True
            yield each
        return


def _with_positions(found: _Found) -> Iterator[Invocation]:
    """The call of a module with its options for positions switched on, where it has such and they are off."""
    try:
        target = found.target.resized(replace(found.target.sizes, positions=True), seed=2)
    except (Failed, InputError):
        return
    if any(each.endswith("=True") and OF_POSITIONS.search(each.lower()) for each in target.said):
        for each in _settled(target, found.plan):
            each.switched_on = each.assumptions != found.invocation.assumptions
            yield from [each] if each.switched_on else []


def _of_sizes(target: Target, plan: CallPlan, sizes: Sizes, seed: int = 1) -> Iterator[Invocation]:
    """The call of other sizes, if it runs."""
    args = {} if target.construction is None else target.construction.args
    try:
        other = target.resized(sizes.with_arguments(args), seed)
    except (Failed, InputError):
        return
    yield from _settled(other, plan)


def _with_optional(found: _Found) -> Iterator[Invocation]:
    """The call with optional sequences, and with optional tables of positions, where it runs with those."""
    wanted = (STREAMS, (*ROPE_FORMS, "positions"))
    for roles in wanted:
        absent = {
            each.name
            for each in found.plan.arguments
            if each.role in roles and not each.required and each.name not in found.invocation.arguments
        }
        if not absent:
            continue
        arguments = [replace(each, required=each.required or each.name in absent) for each in found.plan.arguments]
        plan = replace(found.plan, arguments=arguments, choices={})
        try:
            plan = next(search_calls(plan, found.target.call, found.target.sizes, FEW_TRIES, Budget(FEW_TRIES)))
        except Failed:
            continue
        for each in _settled(found.target, plan):
            # a table of another form than was meant may give no numbers
            if roles is STREAMS or all(bool(one.isfinite().all()) for one in each.outputs(each.run())):
                yield each


def _settled(target: Target, plan: CallPlan) -> Iterator[Invocation]:
    """The call of a plan, if it runs."""
    try:
        invocation = plan.invocation(target.call, target.sizes)
        invocation.run()
    except Failed:
        return
    invocation.streams, _ = settled_streams(invocation)
    invocation.assumptions = _assumptions(target, invocation)
    invocation.resized = partial(_of_sizes, target, plan)
    yield invocation


def _calls(
    target: Target,
    given: UserInputs,
    settings: UserSettings,
    errors: list[Failed],
    tries: int,
    most: int | None,
    budget: Budget,
) -> Iterator[_Found]:
    """Of every layout that runs, the first call."""
    source = source_of(target.call)
    for arguments in readings(target.call, given.of(target.sizes)):
        arguments = told_how_many(arguments) if target.in_steps else arguments
        possible = layouts(target.call, arguments)
        documented = [each for each in possible if is_documented(each, arguments, source)]
        if most is None:  # one sequence alone may be meant beside a batch of them
            documented = [each for each in documented if each.batch_axis is not None]
        possible = [*documented, *(each for each in possible if each not in documented)][:most]
        if {each.name for each in arguments if each.required and each.role in STREAMS} <= given.names:
            possible = possible[:1]  # nothing is left to be laid out
        for layout in possible:
            plan = CallPlan(arguments, layout, source, user_inputs=given, settings=settings, in_steps=target.in_steps)
            try:
                plan = next(search_calls(plan, target.call, target.sizes, tries, budget))
            except Failed as failed:
                errors.append(failed)
                for asked in asked_for(target.call, arguments, source, failed):
                    asking = replace(plan, arguments=asked)
                    with suppress(Failed):
                        plan = next(search_calls(asking, target.call, target.sizes, tries, budget))
                        break
                else:
                    continue
            yield _laid_out(
                _found(target, let_through(plan, target.call, target.sizes)), settings, given, tries, budget
            )


def _found(target: Target, plan: CallPlan) -> _Found:
    invocation = plan.invocation(target.call, target.sizes)
    invocation.streams, clear = settled_streams(invocation)
    invocation.assumptions = _assumptions(target, invocation)
    invocation.resized = partial(_of_sizes, target, plan)
    return _Found(target, plan, invocation, clear)


def _laid_out(found: _Found, settings: UserSettings, given: UserInputs, tries: int, budget: Budget) -> _Found:
    """The call in the layout that was found by influence, where it was made in another: so that sizes fit the axes."""
    letters = _letters(found)
    if letters is None or letters == found.plan.layout.letters:
        return found
    plan = CallPlan(found.plan.arguments, Layout(letters), found.plan.source, user_inputs=given, settings=settings)
    try:
        other = _found(found.target, next(search_calls(plan, found.target.call, found.target.sizes, tries, budget)))
    except Failed:
        return found
    return other if other.clear >= found.clear and _letters(other) == letters else found


def _letters(found: _Found) -> str | None:
    """The layout of a call by the axes of its first stream; None where that is no plain sequence."""
    letters = found.plan.layout.letters
    stream = next(iter(found.invocation.streams), None)
    if stream is None or len(stream.token_axes) != 1 or stream.role == "ids" or set("yx") & set(letters):
        return None
    kept = [letter for letter in letters if letter not in "bht"]
    axes = {stream.batch_axis: "b", stream.head_axis: "h", stream.token_axes[0]: "t"}
    return "".join(axes.get(axis) or (kept.pop(0) if kept else "d") for axis in range(len(letters)))


def _assumptions(target: Target, invocation: Invocation) -> list[str]:
    said = list(target.said)
    if invocation.arrays:
        said.append("it computes with numpy: its steps are seen where PyTorch has functions of the same names")
    if not invocation.gradients:
        said.append("it is called without gradients: with them, PyTorch refuses what it writes in place")
    return said
