"""A method for one token, which hands a state on: token by token it gives what the call gives for the whole."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_objects import made_by_method
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["OTHERWISE", "STATE", "STEP", "row_of_the_call", "step_method_findings"]

STEP = re.compile(
    r"(?:(?:forward|decode|decoding|inference|infer|recurrent|generate|generation|single|one|next|token|cached)_)?"
    r"(?:step|one|token|recurrent|incremental)(?:_(?:forward|by_step|wise|decode|inference))?"
    r"|forward_(?:recurrent|incremental|one|token|step)|decode|recurrent"
)
"""Names of methods that take one token."""
STATE = re.compile(r"(?:\w+_)?(?:state|states|cache|past|memory|carry|hidden|mem|history|kv|prev)(?:_\w+)?")
"""Names of what they hand on."""
OTHERWISE = re.compile(r"approximat|evict|compress|heavy.hitter|quanti[sz]|stale|lossy", re.I)
"""In code whose steps give something else on purpose."""
SAME = 1e-8
"""Of the largest number of an output."""
MIN_TOKENS = 4


def step_method_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that takes one token and a state, and gives something else than the call, which reads all at once.

    Of the first token alone both have to give the same: else it is another thing that the method returns. Of each later
    token the call is asked with those before it, so that it does not matter whether it hides later ones.

    Args:
        invocation: a call of a module, of one sequence of vectors.
    """
    target, streams = invocation.target, invocation.streams
    if not isinstance(target, nn.Module) or len(streams) != 1 or len(streams[0].token_axes) != 1:
        return
    stream = streams[0]
    given, (axis,) = invocation.arguments[stream.argument], stream.token_axes
    if given.ndim < 2 or given.shape[axis] < MIN_TOKENS or OTHERWISE.search(code_of(target)):
        return
    for name, state in _methods(target):
        for is_kept in (False, True):
            tokens = [
                given.narrow(axis, at, 1) if is_kept else given.select(axis, at) for at in range(given.shape[axis])
            ]
            try:
                stepped = _stepped(invocation, name, state, tokens)
                whole = [
                    row_of_the_call(invocation, stream.argument, axis, number + 1) for number in range(len(stepped))
                ]
            except (Failed, RuntimeError, IndexError, ValueError, TypeError):
                continue
            gaps = [_gap(one, other) for one, other in zip(whole, stepped, strict=True)]
            least = SAME * max(1.0, *(float(each.abs().max()) for each in whole))
            if any(each is None for each in gaps) or (gaps[0] or 0.0) > least:
                continue
            wrong = next((number for number, each in enumerate(gaps) if each is not None and each > least), None)
            if wrong is not None:
                message = (
                    f"token by token {name}() gives token {wrong} an output that differs by up to {gaps[wrong]:.2g} "
                    f"from that of the call, which reads the {wrong + 1} tokens at once"
                )
                yield Finding("violation", "steps-equal-whole", "output", message, line_of(getattr(type(target), name)))
                return
            break


def _methods(target: nn.Module) -> Iterator[tuple[str, str]]:
    """The methods of a module's class that take one token and a state, and nothing else; and the name of the state."""
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        if method.__module__.startswith("torch.") or not STEP.fullmatch(name.lstrip("_")):
            continue
        several = [*inspect.signature(method).parameters.values()][1:]
        kinds = {each.kind for each in several}
        if len(several) == 2 and kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            token, state = several
            if token.default is token.empty and state.default in (None, state.empty) and STATE.fullmatch(state.name):
                yield name, state.name


def _stepped(invocation: Invocation, name: str, state: str, tokens: list[Tensor]) -> list[Tensor]:
    """What a method returns for each token, given the state that it returned for the one before."""
    target = invocation.target
    live = copied(target)
    method = getattr(live, name)
    kept: Any = None
    if inspect.signature(method).parameters[state].default is inspect.Parameter.empty:
        kept = next((make() for make in made_by_method(invocation, state)), None)
    outputs = []
    token = next(iter(inspect.signature(method).parameters))
    for each in tokens:
        result = _Call(invocation, method)({token: each, state: kept})
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
            raise Failed("it returns no output and a state")
        outputs.append(result[0].detach())
        kept = result[1]
    if kept is None:
        raise Failed("it hands no state on")
    return outputs


class _Call:
    """A call of a method with PyTorch's settings of the call, and what it is given as it is."""

    def __init__(self, invocation: Invocation, method: Callable[..., Any]) -> None:
        self.invocation, self.method = invocation, method

    def __call__(self, given: dict[str, Any]) -> Any:
        plain = Invocation(self.method, given, [], [], settings=self.invocation.settings)
        return plain.run(target=self.method, shared=[*given])


def row_of_the_call(invocation: Invocation, name: str, axis: int, number: int) -> Tensor:
    """What the call returns for the last of the first tokens.

    Args:
        invocation: the call.
        name: of its sequence.
        axis: of the tokens.
        number: how many tokens are read.

    Raises:
        Failed: it raised, or its output has no axis of tokens.
    """
    given = invocation.arguments[name].narrow(axis, 0, number)
    output = invocation.outputs(invocation.run({**invocation.arguments, name: given}))[0].detach()
    if output.ndim <= axis or output.shape[axis] != number:
        raise Failed("its output has no axis of tokens")
    return output.select(axis, -1)


def _gap(one: Tensor, other: Tensor) -> float | None:
    """How far two rows are apart; None of rows that are of other sizes."""
    if one.numel() != other.numel() or not bool(one.isfinite().all() and other.isfinite().all()):
        return None
    return float((one.flatten() - other.flatten().to(one.dtype)).abs().max())
