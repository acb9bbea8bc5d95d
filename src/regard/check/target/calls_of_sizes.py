"""Calls made of one that was found: of sizes that coincide, of other ones, and with what may be given besides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from regard.check.target.argument import STREAMS
from regard.check.target.call_budget import Budget
from regard.check.target.call_search import CallPlan, search_calls
from regard.check.target.configs import OF_POSITIONS
from regard.check.target.errors import Failed
from regard.check.target.influence import settled_streams
from regard.check.target.layouts import is_documented
from regard.check.target.position_values import ROPE_FORMS
from regard.check.target.running import Invocation
from regard.check.target.sizes import COINCIDENT_SIZES, DISTINCT_SIZES, WINDOWED_SIZES, Sizes
from regard.check.target.targets import Target
from regard.check.target.turning_tables import with_turning_tables
from regard.check.target.user_inputs import UserInputs
from regard.errors import InputError

__all__ = ["FEW_TRIES", "OF_PLACES", "FoundCall", "assumptions_of", "of_all_sizes", "of_sizes", "with_optional"]

FEW_TRIES = 30
"""Of one layout."""
OF_PLACES = (*ROPE_FORMS, "positions")
"""The roles of tables and ids of positions."""
GROUPED_SIZES = DISTINCT_SIZES[1:2]
"""For targets of which several heads may share keys and values."""


@dataclass(eq=False)
class FoundCall:
    """A call that runs, of one set of sizes."""

    target: Target
    plan: CallPlan
    invocation: Invocation
    clear: int
    """How clear its axes are: 2 where each is told from the others."""

    @property
    def documented(self) -> bool:
        """Whether its axes are those that the documentation writes, samples and tokens among them."""
        letters = self.plan.layout.letters
        return {"b", "t"} <= set(letters) and is_documented(self.plan.layout, self.plan.arguments, self.plan.source)


def of_all_sizes(found: FoundCall, given: UserInputs) -> Iterator[Invocation]:
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


def _of_as_many_windows_as_heads(found: FoundCall) -> Iterator[Invocation]:
    """A call of a map of four times the size with four heads, where one with other heads does not run.

    As where a mask of each window is added along the axis of the heads, of what was then called with one window.
    """
    rows, _, columns = found.plan.choices.get("grid", "").partition("x")
    if not columns or rows != columns or found.target.construction is None:
        return
    plan = replace(found.plan, choices={**found.plan.choices, "grid": f"{2 * int(rows)}x{2 * int(columns)}"})
    if not any(True for _ in _settled(found.target, plan)):
        yield from of_sizes(found.target, plan, WINDOWED_SIZES, seed=2)


def _resized(found: FoundCall, several: Sequence[Sizes]) -> Iterator[Invocation]:
    """The call of the first of some sizes with which it runs."""
    for number, sizes in enumerate(several):
        calls = list(of_sizes(found.target, found.plan, sizes, seed=2 + number))
        if calls:
            yield from calls
            return


def _of_two_widths(found: FoundCall) -> Iterator[Invocation]:
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


def _with_positions(found: FoundCall) -> Iterator[Invocation]:
    """The call of a module with its options for positions switched on, where it has such and they are off."""
    try:
        target = found.target.resized(replace(found.target.sizes, positions=True), seed=2)
    except (Failed, InputError):
        return
    if any(each.endswith("=True") and OF_POSITIONS.search(each.lower()) for each in target.said):
        for each in _settled(target, found.plan):
            each.switched_on = each.assumptions != found.invocation.assumptions
            yield from [each] if each.switched_on else []


def of_sizes(target: Target, plan: CallPlan, sizes: Sizes, seed: int = 1) -> Iterator[Invocation]:
    """The call of other sizes, if it runs."""
    args = {} if target.construction is None else target.construction.args
    try:
        other = target.resized(sizes.with_arguments(args), seed)
    except (Failed, InputError):
        return
    # narrow heads may be rotated by tables of several orders, of which wider ones need one
    yield from _settled(other, with_turning_tables(plan, other.call, other.sizes))


def _with_optional(found: FoundCall) -> Iterator[Invocation]:
    """The call with optional sequences, and with optional tables of positions, where it runs with those."""
    for roles in (STREAMS, OF_PLACES):
        plan = with_optional(found, roles)
        for each in () if plan is None else _settled(found.target, plan):
            # a table of another form than was meant may give no numbers
            if roles is STREAMS or all(bool(one.isfinite().all()) for one in each.outputs(each.run())):
                yield each


def with_optional(found: FoundCall, roles: Collection[str]) -> CallPlan | None:
    """The plan of a call with the arguments of some roles that it could do without; None if it runs with none more."""
    absent = {
        each.name
        for each in found.plan.arguments
        if each.role in roles and not each.required and each.name not in found.invocation.arguments
    }
    if not absent:
        return None
    arguments = [replace(each, required=each.required or each.name in absent) for each in found.plan.arguments]
    plan = replace(found.plan, arguments=arguments, choices={})
    try:
        return next(search_calls(plan, found.target.call, found.target.sizes, FEW_TRIES, Budget(FEW_TRIES)))
    except Failed:
        return None


def _settled(target: Target, plan: CallPlan) -> Iterator[Invocation]:
    """The call of a plan, if it runs."""
    try:
        invocation = plan.invocation(target.call, target.sizes)
        invocation.run()
    except Failed:
        return
    invocation.streams, _ = settled_streams(invocation)
    invocation.assumptions = assumptions_of(target, invocation)
    invocation.resized = partial(of_sizes, target, plan)
    yield invocation


def assumptions_of(target: Target, invocation: Invocation) -> list[str]:
    """What a call takes for granted, in sentences for the report."""
    said = list(target.said)
    if invocation.arrays:
        said.append("it computes with numpy: its steps are seen where PyTorch has functions of the same names")
    if not invocation.gradients:
        said.append("it is called without gradients: with them, PyTorch refuses what it writes in place")
    return said
