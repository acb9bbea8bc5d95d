"""What a call keeps for the next one: a table of positions, or a number, that is not the next one's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from regard.check.location import CodeLocation
from regard.check.properties.caches.comparison import by_line, line_key, same_tensor
from regard.check.properties.finding import Finding
from regard.check.properties.other_lengths import with_tokens
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.cache_runs import optional_positions
from regard.check.target.preparation import copied
from regard.check.trace.operation import Operation, Trace
from regard.check.trace.recorder import record

__all__ = ["earlier_call_findings", "first_call_findings", "with_fewer_tokens"]

START = 3
"""Where tokens of the second call begin."""


def earlier_call_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A call whose queries and keys are others after another call, as where a table is kept that is of that call.

    Keys alone may be others: a cache has those of the tokens before. A module that goes on from call to call with the
    same arguments is not asked.

    Args:
        invocation: a call of a module.
        instances: its attentions.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    plain = invocation.arguments
    pairs = [
        (f"with {name}={START}", "without it", plain, {**plain, name: START})
        for name, kind in optional_positions(invocation)
        if kind == "start"
    ]
    fewer = with_fewer_tokens(invocation)
    if fewer is not None and not _recorded(invocation, [fewer[1]]).error:
        (less, shorter), more = fewer, invocation.tokens_of(invocation.streams[0])
        pairs += [
            (f"of {more} tokens", f"of {less}", shorter, plain),
            (f"of {less} tokens", f"of {more}", plain, shorter),
        ]
    if not pairs or not _repeats(invocation, instances):
        return
    for what, before, first, second in pairs:
        alone, after = _recorded(invocation, [second]), _recorded(invocation, [first, second])
        if alone.error:
            continue
        if after.error:
            message = f"a call {what} raises after one {before}, and not alone: {after.error}"
            yield Finding("violation", "calls-apart", "positions", message, _line_of_the_end(after))
            return
        line = _departure(alone, after, instances)
        if line is not None:
            message = (
                f"a call {what} has other queries and keys after one {before} than alone: what is kept is that one's"
            )
            yield Finding("violation", "calls-apart", "positions", message, line)
            return


def first_call_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A single number, as a penalty, that the first call returns other than all later ones with the same arguments.

    As where it is divided by the size of what an earlier call kept. The attentions are the same in each call: what goes
    on from call to call, as a cache or a mean that moves, is another one in the third call as well.

    Args:
        invocation: a call of a module.
        instances: its attentions.
    """
    outputs = instances[0].run.trace.outputs
    if not isinstance(invocation.target, nn.Module) or all(each.data.numel() > 1 for each in outputs):
        return
    several = [_recorded(invocation, [invocation.arguments] * count) for count in (1, 2, 3)]
    if any(each.error for each in several) or len({len(each.outputs) for each in several}) > 1:
        return
    returned = [
        (one.data, two.data, three.data) for one, two, three in zip(*(each.outputs for each in several), strict=True)
    ]
    others = [number for number, (one, two, _) in enumerate(returned) if not same_tensor(one, two)]
    if any(returned[each][0].numel() > 1 or not same_tensor(*returned[each][1:]) for each in others):
        return
    for number in others:
        one, two, _ = returned[number]
        if _departure(several[0], several[1], instances) is None:
            message = (
                f"output {number} of a first call is {float(one):.4g}, and {float(two):.4g} of the same call "
                "after it: it hangs on what that one kept"
            )
            yield Finding("violation", "calls-alike", "output", message, _line_of_another(*several[:2]))
            return


def _line_of_another(first: Trace, second: Trace) -> CodeLocation | None:
    """The line of the last operation of a first call whose number the second call has not computed."""
    computed = [each.outputs[0].data for each in second if each.outputs and each.outputs[0].data.numel() == 1]
    for each in reversed(first.operations):
        is_number = each.location is not None and bool(each.outputs) and each.outputs[0].data.numel() == 1
        if is_number and not any(same_tensor(each.outputs[0].data, other) for other in computed):
            return each.location
    return None


def _repeats(invocation: Invocation, instances: Sequence[AttentionInstance]) -> bool:
    """Whether the same call computes the same twice."""
    one, two = _recorded(invocation, [invocation.arguments]), _recorded(invocation, [invocation.arguments] * 2)
    same = all(same_tensor(a.data, b.data) for a, b in zip(one.outputs, two.outputs, strict=False))
    return not (one.error or two.error) and same and _departure(one, two, instances) is None


def _recorded(invocation: Invocation, several: Sequence[Mapping[str, Any]]) -> Trace:
    """The last of several calls of one copy of a module."""
    live = copied(invocation.target)

    def run(watch: Any) -> Any:
        for each in several[:-1]:
            invocation.run(each, target=live)
        return invocation.run(several[-1], target=live, watch=watch)

    return record(run, outputs=invocation.outputs, lines=True)


def _departure(alone: Trace, after: Trace, instances: Sequence[AttentionInstance]) -> CodeLocation | None:
    """The line of the first product whose factors are others, where both queries and keys are; None elsewhere.

    Where keys alone are others, they are those of a cache: what comes after that reads other tokens.
    """
    products = [each for instance in instances for each in instance.scores]
    for product in sorted(products, key=lambda each: each.operation.index):
        one, two = (by_line(each)[line_key(product.operation)] for each in (alone, after))
        if len(one) != len(two):
            continue
        for a, b in zip(one, two, strict=True):
            others = [not same_tensor(*pair) for pair in _factors(a, b)]
            if any(others):
                return product.operation.location if all(others) else None
    return None


def _factors(one: Operation, two: Operation) -> list[tuple[Tensor, Tensor]]:
    return [(a.data, b.data) for a, b in zip(one.inputs, two.inputs, strict=False)]


def with_fewer_tokens(invocation: Invocation) -> tuple[int, dict[str, Any]] | None:
    """The same call with one token less of each sequence, and how many the first has; None where it takes more."""
    given = with_tokens(invocation, -1)
    return None if given is None else (invocation.tokens_of(invocation.streams[0]) - 1, given)


def _line_of_the_end(trace: Trace) -> CodeLocation | None:
    return next((each.location for each in reversed(trace.operations) if each.location is not None), None)
