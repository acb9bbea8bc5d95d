"""What a call does to a module: it stays in eval(), and its parameters stay those that it was made with."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["call_effect_findings"]

TRAINING = re.compile("(?:is_?)?train(?:ing)?", re.I)
"""Flags that say whether dropout is on."""
MOVED = 1e-9
"""The smallest change of an output that is one."""


def call_effect_findings(invocation: Invocation) -> Iterator[Finding]:
    """A call that ends eval(), or that makes its matrices anew.

    Args:
        invocation: a call of a module that is in eval().
    """
    if not isinstance(invocation.target, nn.Module):
        return
    invocation = _by_default(invocation)
    live = copied(invocation.target)
    before = [(name, each) for name, each in live.named_modules() if not each.training]
    try:
        _, made = _run(invocation, live, 0)
        switched = [name for name, each in before if each.training]
        if switched:
            what = f"{switched[0]} trains" if switched[0] else "it trains"
            message = f"after a call in eval() {what} again: the call sets training to True, and dropout is on"
            yield Finding("violation", "stays-in-eval", "call", message)
        for name, line in _replaced(invocation, live).items():  # by each call, also the second
            message = (
                f"each call puts a new parameter in the place of {name}: an optimizer holds the old one, and trains "
                "nothing"
            )
            yield Finding("violation", "parameters-kept", "q", message, line)
            return
        if not made:
            return
        one, made = _run(invocation, live, 1)  # what a first call makes may be kept
        other, _ = _run(invocation, live, 2)
    except Failed:
        return
    differ = [a.shape != b.shape or bool(((a - b).abs() > MOVED).any()) for a, b in zip(one, other, strict=False)]
    if made and any(differ):
        message = f"each call makes {', '.join(made)} anew, with other random numbers: nothing that it learns is kept"
        yield Finding("violation", "parameters-kept", "q", message, next(iter(made.values())))


def _replaced(invocation: Invocation, live: nn.Module) -> dict[str, CodeLocation | None]:
    """The parameters of a module in whose place a call of it puts another that it makes, and the lines."""
    held = {id(each) for each in live.parameters()}
    found: dict[str, CodeLocation | None] = {}

    def note(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        before = module._parameters.get(name)
        if parameter is not None and before is not None and before.requires_grad and id(parameter) not in held:
            found.setdefault(name if module is live else f"{type(module).__name__}.{name}", _line_in(live))

    hook = register_module_parameter_registration_hook(note)
    try:
        invocation.run(target=live)
    finally:
        hook.remove()
    return found


def _by_default(invocation: Invocation) -> Invocation:
    """The call without the flags that tell it that nothing is trained: eval() says so, and what it is told stays."""
    told = [name for name, value in invocation.arguments.items() if value is False and TRAINING.fullmatch(name)]
    parameters = inspect.signature(type(invocation.target).forward).parameters
    told = [name for name in told if name in parameters and parameters[name].default is True]
    told = [name for name in told if name not in invocation.positional[:-1]]  # those behind it would move up
    kept = {name: value for name, value in invocation.arguments.items() if name not in told}
    return replace(invocation, arguments=kept) if told else invocation


def _run(invocation: Invocation, live: nn.Module, seed: int) -> tuple[list[Tensor], dict[str, CodeLocation | None]]:
    """The outputs of a call of a module itself; the matrices that it makes, by the kinds of their modules."""
    made: dict[str, CodeLocation | None] = {}

    def note(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.ndim > 1:
            made.setdefault(name if module is live else f"{type(module).__name__}.{name}", _line_in(live))

    hook = register_module_parameter_registration_hook(note)
    try:
        outputs = invocation.outputs(invocation.run(target=live, seed=seed))
    finally:
        hook.remove()
    return [each.detach().clone() for each in outputs], made


def _line_in(module: nn.Module) -> CodeLocation | None:
    """The line of a module's file that is running; None where that is not known."""
    try:
        file = inspect.getsourcefile(type(module))
    except (OSError, TypeError):
        return None
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    if frame is None or file is None:
        return None
    return CodeLocation(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
