"""Methods that write a text on, called for a second text: nothing of the first one is left."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.caches.step_methods import STEP
from regard.check.properties.caches.written_texts import writing_methods
from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["second_text_findings"]

_GOES_ON = re.compile(
    r"\b(?:conversation|session|dialog\w*|multi-?turn|stateful|streaming|across (?:calls|texts|prompts|sequences)"
    r"|between (?:calls|texts|prompts)|from call to call|goes on (?:from|where)|picks? up|resumes?"
    r"|until (?:\w+ )?(?:reset|clear\w*|it is)|(?:reset|clear|empty|forget)\w*(?:\(\))?\W+(?:\w+\W+){0,4}"
    r"(?:before|between|first|for (?:a|each|every) new))\b",
    re.I,
)
"""In the code: that a text goes on in the next call, or that its caller is to make the module forget."""
SAME = 1e-6
"""Of the largest number of a layer's output."""


def second_text_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that gives another text than a new module gives, once it has written one.

    The module's own call has to be the same after other calls: what keeps a memory from call to call is meant to.

    Args:
        invocation: a call of a model.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or len(invocation.streams) != 1 or invocation.packed:
        return
    (stream,) = invocation.streams
    if stream.batch_axis != 0 or stream.token_axes != (1,) or _GOES_ON.search(code_of(target)):
        return
    given, others = invocation.arguments[stream.argument], other_tokens(invocation).get(stream.argument)
    if others is None or torch.equal(given, others):
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        if STEP.fullmatch(name.lstrip("_")):
            continue  # it reads one token, and is meant to go on
        for told in writing_methods(name, method, stream.argument, given[:1]):
            if not any(type(each) is int for each in told.values()):
                continue  # nor is it told how many words to write
            changed = {each: others[:1, : value.shape[1]] for each, value in told.items() if isinstance(value, Tensor)}
            try:
                alone, again, after = (
                    _written(invocation, name, several) for several in ([told], [told], [{**told, **changed}, told])
                )
                is_random = _gap(alone, again) > SAME
                gap = _gap(alone, after)
            except Failed:
                continue
            if is_random or gap <= SAME or _changes_by_calls(invocation, others):
                continue
            what = f"numbers of its layers that differ by up to {gap:.2g}" if gap < torch.inf else "another text"
            message = (
                f"after {name}() has written one text, it reads what is left of that one for the next: {what} from "
                "those of a new module with the same prompt"
            )
            yield Finding("violation", "begun-anew", "call", message, line_of(method))
            return


def _written(
    invocation: Invocation, name: str, several: Sequence[Mapping[str, Any]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What the last of some calls of a method returns, of one copy of a module; what its matrices returned in it."""
    live, made = copied(invocation.target), list[Tensor]()
    for part in live.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(partial(_keep, made))
    plain = replace(invocation, arguments={}, positional=[], completion=None, gradients=False)
    returned: list[Any] = []

    def calls() -> Any:
        for told in several:
            made.clear()
            torch.default_generator.manual_seed(0)  # the same words are drawn
            returned[:] = [getattr(live, name)(**{each: _copy(value) for each, value in told.items()})]
        return torch.zeros(1)

    plain.run(target=calls)
    return [each.detach() for each in tree_leaves(returned) if isinstance(each, Tensor)], [*made]


def _keep(made: list[Tensor], _: nn.Module, given: object, output: Any) -> None:
    if isinstance(output, Tensor):
        made.append(output.detach().clone())


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _gap(one: tuple[list[Tensor], list[Tensor]], other: tuple[list[Tensor], list[Tensor]]) -> float:
    """How far apart what was computed is, beside the largest number; infinite where it has other shapes."""
    largest = 0.0
    for mine, its in zip(one, other, strict=True):
        if [each.shape for each in mine] != [each.shape for each in its]:
            return torch.inf
        for first, second in zip(mine, its, strict=True):
            if first.numel():
                gap = float((first - second).abs().max()) if first.is_floating_point() else 0.0
                largest = max(largest, gap / max(1e-12, float(first.abs().max())) if gap else 0.0)
    return largest


def _changes_by_calls(invocation: Invocation, others: Tensor) -> bool:
    """Whether the call of a module itself is another one after a call."""
    live = copied(invocation.target)
    try:
        invocation.run({**invocation.arguments, invocation.streams[0].argument: others}, target=live)
        after = invocation.outputs(invocation.run(target=live))
        alone = invocation.outputs(invocation.run())
    except Failed:
        return True
    if [each.shape for each in alone] != [each.shape for each in after]:
        return True
    return any(float((a - b).detach().abs().max()) > SAME for a, b in zip(alone, after, strict=True) if a.numel())
