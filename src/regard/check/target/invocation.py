"""How to call anything callable: calls that run, with the axes of their tensors known."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import OUTPUT_GRADIENT, STREAMS, source_of
from regard.check.target.beside_tokens import asked_for
from regard.check.target.cache_forms import cache_names
from regard.check.target.call_budget import Budget, cost_of
from regard.check.target.call_search import ONE_QUERY, CallPlan, search_calls
from regard.check.target.calls_of_sizes import FEW_TRIES, FoundCall, assumptions_of, of_all_sizes, of_sizes
from regard.check.target.constructor_values import unknown_arguments
from regard.check.target.errors import AlwaysFails, Failed, NotCallable, fixed_side, fixed_tokens, joined_tokens
from regard.check.target.factories import from_factory
from regard.check.target.handover import refusal
from regard.check.target.influence import Influence, settled_streams
from regard.check.target.layouts import GRID, Layout, is_documented, layouts
from regard.check.target.looked_up import is_paired
from regard.check.target.open_masks import let_through
from regard.check.target.parse import InputFactory
from regard.check.target.preparation import keeps_a_table, repeats_as_often
from regard.check.target.running import Invocation, Stream
from regard.check.target.shape_search import inferred_plans, of_letters
from regard.check.target.signature import readings
from regard.check.target.sizes import Sizes
from regard.check.target.steps import asks_for_one_token, asserts_one_token, may_take_steps, told_how_many
from regard.check.target.targets import MAX_CONSTRUCTIONS, Target, of_one_sample, square_sizes, targets_of
from regard.check.target.user_inputs import UserInputs
from regard.check.target.values import STATE
from regard.check.time_limit import is_over
from regard.errors import InputError

__all__ = ["Invocation", "NotCallable", "Stream", "calls_of_layouts", "invocations"]

BY_ERRORS = "the shapes of its inputs are those that its errors ask for: {}"
MANY_TRIES = 200
"""Of one layout: first few of each, then many of the likeliest ones."""
MAX_CALLS = 1200
"""Of one implementation, that are tried and fail."""
MAX_LAYOUTS = 2
"""That are tried long."""
SQUARE = "it is called with as many tokens as channels: it runs with no other number that was tried"
STEPS = "it is called with one token at a time: it runs with no other number that was tried"
ASKED_FOR_STEPS = "it is called with one token at a time, as it asks for"
ENOUGH = 2
"""How clear the axes of a call have to be for no other layout to be tried first."""


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
        yield from of_all_sizes(each, given)


def calls_of_layouts(target: Target, settings: UserSettings) -> Iterator[FoundCall]:
    """Of every layout with which a target runs, the first call; first with few tries of each.

    Raises:
        NotCallable: none runs.
    """
    errors: list[Failed] = []
    found = None
    for tries, most in ((FEW_TRIES, None), (MANY_TRIES, MAX_LAYOUTS)):
        if found is None:
            for found in _calls(target, UserInputs(), settings, errors, tries, most, Budget(MAX_CALLS // 2)):
                yield found
    if found is None:
        last = max(errors, key=lambda error: error.progress, default=Failed("nothing was tried"))
        raise NotCallable(str(last))


def _relaid(found: FoundCall, is_one_query: bool) -> Iterator[Iterator[Invocation]]:
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
            yield of_all_sizes(other, UserInputs())


def _axes(invocation: Invocation) -> list[tuple[int | None, tuple[int, ...], int | None]]:
    """Which axes of its sequences are samples, tokens and heads."""
    return [(each.batch_axis, each.token_axes, each.head_axis) for each in invocation.streams]


def _search(
    implementation: Any, args: Mapping[str, Any], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[FoundCall]:
    """The calls of the first target that has one, up to one with clear axes; first with few tries of each layout."""
    targets: list[Target] = []
    budget = Budget(MAX_CALLS // 2)
    for target in targets_of(implementation, args, settings, errors):
        targets.append(target)
        budget.cost = cost_of(target.call)
        source = source_of(target.call)
        is_of_one = len(targets) == 1 and asks_for_one_token(source)
        # An assertion may stand where a cache is given alone: then a call without one takes several tokens.
        is_tried = is_of_one and asserts_one_token(source)
        found = _calls_of(target, given, settings, errors, FEW_TRIES, None, budget) if is_tried else []
        found = found if found and _has_several_tokens(found[-1]) else []
        found = found or (_calls_in_steps(targets, given, settings, errors, ASKED_FOR_STEPS) if is_of_one else [])
        found = found or _calls_of(target, given, settings, errors, FEW_TRIES, None, budget)
        if found and _is_of_vectors(found[-1]):  # one of each sample, or the one token of each: a cache tells
            found = _calls_in_steps([target], given, settings, errors) or found
        if found:
            return found
        if budget.left <= 0:
            break
    with suppress(Failed):
        target = targets[0].with_caches()
        found = _calls_of(target, given, settings, errors, FEW_TRIES, None, Budget(MAX_CALLS // 4, budget.cost))
        if found:
            return found
    budget.left += MAX_CALLS // 2
    for target in targets[:MAX_CONSTRUCTIONS]:
        found = _calls_of(target, given, settings, errors, MANY_TRIES, MAX_LAYOUTS, budget)
        if found:
            return found
    found = [] if given.names else _calls_of_fixed_tokens(targets[:1], given, settings, errors)
    found = found or _calls_in_steps(targets[:1], given, settings, [*errors])  # one token gets farther, and says less
    found = found or _square_calls(targets[:1], args, given, settings, errors)
    return found or ([] if given.names else _calls_by_errors(targets[:2], settings))


def _has_several_tokens(found: FoundCall) -> bool:
    """Whether each sequence of a call has more tokens than one."""
    given = found.invocation.arguments
    return all(given[each.argument].shape[axis] > 1 for each in found.invocation.streams for axis in each.token_axes)


def _is_of_vectors(found: FoundCall) -> bool:
    """Whether the one sequence of a call is vectors without an axis of samples beside that of tokens."""
    given = [found.invocation.arguments[each.argument] for each in found.invocation.streams]
    return len(given) == 1 and given[0].ndim == 2 and given[0].is_floating_point()


def _calls_by_errors(targets: list[Target], settings: UserSettings) -> list[FoundCall]:
    """Calls with shapes that the errors of other calls ask for, where no layout runs."""
    for target in targets:
        for plan, shapes in inferred_plans(target.call, target.sizes, settings, MAX_LAYOUTS):
            with suppress(Failed):
                plan = next(search_calls(plan, target.call, target.sizes, FEW_TRIES, Budget(FEW_TRIES)))
                found = _found(target, plan)
                found.invocation.by_errors = shapes
                found.invocation.assumptions.append(BY_ERRORS.format(shapes))
                found.invocation.streams = [of_letters(one, found.invocation) for one in found.invocation.streams]
                return [found]
    return []


def _calls_in_steps(
    targets: list[Target], given: UserInputs, settings: UserSettings, errors: list[Failed], said: str = STEPS
) -> list[FoundCall]:
    """Calls with one token after the other, of what keeps a cache of those before, or is handed one each time."""
    if given.names or not targets or not may_take_steps(readings(targets[0].call)[0]):
        return []
    target = replace(targets[0], in_steps=True, said=[*targets[0].said, said])
    found = _calls_of(target, given, settings, errors, FEW_TRIES, MAX_LAYOUTS, Budget(2 * FEW_TRIES))
    found = [each for each in found[:1] if (names := cache_names(each.invocation)).is_certain or names.is_reset]
    return found or _calls_in_steps(of_one_sample(targets, errors), given, settings, errors, said)


def _calls_of_fixed_tokens(
    targets: list[Target], given: UserInputs, settings: UserSettings, errors: list[Failed]
) -> list[FoundCall]:
    """Calls with as many tokens as the error of the call that came farthest says, as of a table of distances."""
    last = max(errors, key=lambda error: error.progress, default=Failed("nothing was tried"))
    for target in targets:
        counts = (target.sizes.tokens, target.sizes.context)
        tokens = next((count for each in counts if (count := fixed_tokens(last, each))), 0)
        side = fixed_side(last, GRID)
        is_told = tokens and (keeps_a_table(target.call, tokens) or repeats_as_often(target.call, tokens))
        tokens = tokens if is_told else joined_tokens(last, target.sizes.tokens)
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
) -> list[FoundCall]:
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
) -> list[FoundCall]:
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
) -> list[FoundCall]:
    found: list[FoundCall] = []
    for each in _calls(target, given, settings, errors, tries, most, budget):
        found.append(each)
        if each.clear >= ENOUGH or each.documented:  # a mistake may mix samples
            break
    return found


def _calls(
    target: Target,
    given: UserInputs,
    settings: UserSettings,
    errors: list[Failed],
    tries: int,
    most: int | None,
    budget: Budget,
) -> Iterator[FoundCall]:
    """Of every layout that runs, the first call; last those that run with as many tokens as channels alone.

    As where a convolution takes the channels in front of the tokens: another layout says which axis is which.
    """
    source = source_of(target.call)
    by_accident: list[CallPlan] = []
    for arguments in readings(target.call, given.of(target.sizes)):
        paired = [each.name for each in arguments if each.required and is_paired(target.call, each.name)]
        if paired and not given.names:
            errors.append(Failed(f"{paired[0]} is a list of tensors, whose elements the code pairs"))
            return
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
            if _returns_gradients_alone(plan, target):
                errors.append(Failed("it returns gradients, and not the output that they are of"))
                continue
            if plan.is_square(target.call, target.sizes):
                by_accident.append(plan)
                continue
            yield _whole(target, plan, settings, given, tries, budget)
    for plan in by_accident:
        yield _whole(target, plan, settings, given, tries, budget)


def _returns_gradients_alone(plan: CallPlan, target: Target) -> bool:
    """Whether what is given the gradient of an output returns first what hangs on it: a backward pass by itself."""
    names = [each.name for each in plan.arguments if each.role == OUTPUT_GRADIENT]
    if not names:
        return False
    call = plan.invocation(target.call, target.sizes)
    other = {name: 2 * call.arguments[name] for name in names}
    one, two = (call.outputs(call.run({**call.arguments, **each}))[:1] for each in ({}, other))
    return not all(torch.equal(*each) for each in zip(one, two, strict=True))


def _whole(
    target: Target, plan: CallPlan, settings: UserSettings, given: UserInputs, tries: int, budget: Budget
) -> FoundCall:
    """The call of a plan that runs, with masks that let all through, in the layout that its axes are found to have."""
    return _laid_out(_found(target, let_through(plan, target.call, target.sizes)), settings, given, tries, budget)


def _found(target: Target, plan: CallPlan) -> FoundCall:
    invocation = plan.invocation(target.call, target.sizes)
    invocation.streams, clear = settled_streams(invocation)
    invocation.assumptions = assumptions_of(target, invocation)
    invocation.resized = partial(of_sizes, target, plan)
    return FoundCall(target, plan, invocation, clear)


def _laid_out(found: FoundCall, settings: UserSettings, given: UserInputs, tries: int, budget: Budget) -> FoundCall:
    """The call in the layout that was found by influence, where it was made in another: so that sizes fit the axes."""
    letters = "b1td" if _are_apart(found) else _letters(found)
    if letters is None or letters == found.plan.layout.letters:
        return found
    plan = CallPlan(found.plan.arguments, Layout(letters), found.plan.source, user_inputs=given, settings=settings)
    try:
        other = _found(found.target, next(search_calls(plan, found.target.call, found.target.sizes, tries, budget)))
    except Failed:
        return found
    is_such = letters == "b1td" or _letters(other) == letters
    return other if other.clear >= found.clear and is_such else found


def _are_apart(found: FoundCall) -> bool:
    """Whether the first axis of tokens of several sequences stays apart like samples, as that of frames.

    As in a Perceiver's resampler, whose latents read the tokens of their own frame.
    """
    streams = found.invocation.streams
    if found.plan.layout.letters != "byxd" or len(streams) < 2 or any(len(each.token_axes) != 2 for each in streams):
        return False
    influence = Influence(found.invocation)
    try:
        seen = [[influence.locality(each.argument, axis) for axis in each.token_axes] for each in streams]
    except Failed:
        return False
    return all(outer is True and inner is not True for outer, inner in seen) and any(each[1] is False for each in seen)


def _letters(found: FoundCall) -> str | None:
    """The layout of a call by the axes of its first stream; None where that is no plain sequence."""
    letters = found.plan.layout.letters
    stream = next(iter(found.invocation.streams), None)
    if stream is None or len(stream.token_axes) != 1 or set("yx") & set(letters):
        return None
    kept = [letter for letter in letters if letter not in "bht"]
    axes = {stream.batch_axis: "b", stream.head_axis: "h", stream.token_axes[0]: "t"}
    return "".join(axes.get(axis) or (kept.pop(0) if kept else "d") for axis in range(len(letters)))
