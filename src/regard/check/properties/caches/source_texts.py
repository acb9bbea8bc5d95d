"""Methods that write what a source is translated to: each step sees what the whole text would show it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.caches.written_texts import (
    FEWEST_STEPS,
    WRITES_THE_SAME,
    ends_of,
    first_apart,
    is_of_ids,
    last_logits,
    writing_methods,
    written_apart,
)
from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation
from regard.check.target.double_precision import double_precision
from regard.check.target.preparation import copied

__all__ = ["source_text_findings"]

MARKS = 3
"""Ids that may begin, end and fill texts; what is written is another one."""
PEAK = 30.0
"""The largest logit."""


def source_text_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that writes the likeliest tokens by other logits than the call of the source and the text so far gives.

    As where a step is handed the newest token alone, and nothing is kept of those before.

    Args:
        invocation: a call of a module with the ids of a source and of a text.
    """
    target, streams = invocation.target, invocation.streams
    texts = {each.argument: invocation.arguments[each.argument] for each in streams if each.batch_axis == 0}
    if not isinstance(target, nn.Module) or len(streams) != 2 or not all(map(is_of_ids, texts.values())):
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        sources = [each for each in texts if each in needs_of(method)] if len(texts) == 2 else []
        for told in writing_methods(name, method, sources[0], texts[sources[0]][:1]) if len(sources) == 1 else ():
            found = _first_other(target, name, told, sources[0], list(invocation.arguments))
            if found is not None:
                yield written_apart(name, method, *found)
                return
            if _writes_the_same(target, name, told, sources[0], list(invocation.arguments)):
                message = f"{name}() {WRITES_THE_SAME}"
                yield Finding("violation", "written-from-its-logits", "output", message, line_of(method))
                return


def _first_other(
    target: nn.Module, method: str, told: dict[str, Any], source: str, order: list[str]
) -> tuple[int, float] | None:
    """The first token with other logits than the call gives, and how far apart these are; None where all are the same.

    Or where that is not known: each token that is written has to be the likeliest by the logits that are compared.
    """
    given, logits = told[source], list[Tensor]()

    def of_both(text: Tensor) -> list[Tensor]:
        return [given if each == source else text for each in order]

    def seen(output: Tensor) -> None:
        logits.extend(each for each in [last_logits(output)] if each is not None)

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            text = _written(target, method, told, of_both(given), seen)
            if text is None or len(logits) < FEWEST_STEPS or text.shape != (len(given), len(logits) + 1):
                return None
            if any(not torch.equal(each.argmax(-1), text[:, at + 1]) for at, each in enumerate(logits)):
                return None
            whole = [last_logits(copied(target)(*of_both(text[:, : at + 1]))) for at in range(len(logits))]
    except Exception:  # code of others may raise anything
        return None
    found = first_apart(logits, whole)
    return found if found is not None and found[0] else None


def _writes_the_same(target: nn.Module, method: str, told: dict[str, Any], source: str, order: list[str]) -> bool:
    """Whether a method writes the same text where other ids have the largest logits in each step."""
    given, texts, steps = told[source], list[Tensor](), list[int]()

    def made_up(first: int, output: Tensor) -> Tensor:
        """Logits of which one is by far the largest, another in each step, and no other two alike."""
        size, step = output.shape[-1], len(steps)
        steps.append(step)
        made = torch.linspace(0.0, 1.0, size, dtype=output.dtype)
        made[MARKS + (first + 2 * step) % (size - MARKS)] = PEAK
        return made.expand(output.shape).clone()

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            for first in (0, 1):
                steps.clear()
                text = _written(target, method, told, [given] * len(order), partial(made_up, first))
                texts += [] if text is None or len(steps) < FEWEST_STEPS else [text]
    except Exception:  # code of others may raise anything
        return False
    return len(texts) == 2 and texts[0].shape[1] > FEWEST_STEPS and torch.equal(*texts)


def _written(
    target: nn.Module,
    method: str,
    told: dict[str, Any],
    inputs: list[Tensor],
    change: Callable[[Tensor], Tensor | None],
) -> Tensor | None:
    """The ids that a method returns; None where no layer is known that its logits are the output of.

    Args:
        target: a module.
        method: the name of its method that writes.
        told: what this is given.
        inputs: of a call of the module.
        change: what is done to that output in each step, where it returns something.
    """
    model = copied(target)
    _, making = ends_of(copied(target), inputs)
    parts = dict(model.named_modules())
    if len(inputs) != 2 or making not in parts:
        return None
    parts[making].register_forward_hook(lambda _, __, output: change(output))
    return next(filter(is_of_ids, tree_leaves(getattr(model, method)(**told))), None)
