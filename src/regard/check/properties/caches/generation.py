"""Methods that write a text on with cached keys and values: each step sees what the whole text would show it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.check.properties.caches.written_texts import (
    FEWEST_STEPS,
    PROMPT,
    SAME,
    WrittenText,
    first_apart,
    is_of_ids,
    last_logits,
    prompt_of,
    ways_to_write,
    writing_methods,
    written_apart,
    written_text,
)
from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import text_of
from regard.check.target.double_precision import double_precision
from regard.check.target.preparation import copied

__all__ = ["generation_findings", "hides_later"]

_LOSSY = re.compile(r"\bquanti[sz]|\bevict|heavy.hitter|\blossy\b|\bprun(?:e|ing)\b|\bint8\b", re.I)
"""In code whose steps give something else on purpose."""
_LOOP = re.compile(r"\b(?:for|while)\b")


def generation_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method, or the call itself, whose steps have other logits than the text that was fed to them has as a whole.

    As where positions that it counts run ahead of the tokens.

    Args:
        invocation: a call of a causal model of ids.
    """
    target, prompt = invocation.target, prompt_of(invocation)
    if prompt is None or _LOSSY.search(code_of(target)):
        return
    argument, given = prompt
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        for told in writing_methods(name, method, argument, given[:1]):
            found = _first_other(target, name, told)
            if found is not None:
                yield written_apart(name, method, *found)
                return
    yield from _of_the_call(target, argument, given[:1])


def _of_the_call(target: nn.Module, argument: str, given: Tensor) -> Iterator[Finding]:
    """The same of a call that writes, by steps that are a method of their own."""
    forward = type(target).forward
    steps = dict.fromkeys(re.findall(r"\bself\.(\w+)\(", text_of(forward)))
    for step in steps if _LOOP.search(text_of(forward)) else ():
        for told in (
            ways_to_write(forward, argument, given[:, :PROMPT])
            if inspect.isroutine(getattr(target, step, None))
            else ()
        ):
            found = _first_other(target, "forward", told, step)
            if found is not None:
                number, gap = found
                message = (
                    f"the call feeds {step}() token by token; the logits behind token {number} differ by up to "
                    f"{gap:.2g} from those of {step}() of all {number + 1} tokens at once: what it hands over beside "
                    "the tokens does not go on as they do"
                )
                yield Finding("violation", "cache-equals-whole", "output", message, line_of(forward))
                return


def _first_other(
    target: nn.Module, method: str, told: dict[str, Any], step: str = "forward"
) -> tuple[int, float] | None:
    """The last token of the first step with other logits than the whole text, and how far apart these are; or None.

    Args:
        target: a module.
        method: the name of its method that writes.
        told: what this is given.
        step: the name of the method that it feeds. One that is not the call gets for the whole text what it was given
            besides at first, as an empty cache.
    """

    def read_at_once(text: Tensor) -> Any:
        if step == "forward":
            return copied(target)(text)
        args, kwargs = copy.deepcopy(written.begun[0])
        args, kwargs = tree_map(lambda each: text if is_of_ids(each) else each, (args, kwargs))
        return getattr(copied(target), step)(*args, **kwargs)

    try:
        written = written_text(target, method, told, step)
        text, ends, logits = written.text(), written.ends(), written.logits
        if text is None or len(ends) < FEWEST_STEPS or len(text) != 1 or text.shape[1] - ends[-1] not in (0, 1):
            return None
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            is_causal = hides_later(read_at_once(text), read_at_once(text[:, : ends[0]]))
            if step != "forward" and not is_causal:
                return None
            whole = [last_logits(read_at_once(text[:, :end])) for end in ends]
    except Exception:  # code of others may raise anything
        return None
    if (found := first_apart(logits, whole)) is None:
        return None
    number, gap = found
    is_sure = number > 0 or (is_causal and step == "forward" and _is_plain(written))
    return (ends[number] - 1, gap) if is_sure else None


def _is_plain(written: WrittenText) -> bool:
    """Whether a first step was told nothing beside its ids that may change what it computes, as a mask or a start."""
    leaves = tree_leaves(written.begun)
    return all(is_of_ids(each) or each is None or type(each) is bool for each in leaves)


def hides_later(whole: Any, part: Any) -> bool:
    """Whether the first tokens of a text have the same logits as without the others; not where they have none.

    Args:
        whole: what a call of the text returned.
        part: what a call of its first tokens returned.
    """
    both = [
        [each for each in tree_leaves(one) if isinstance(each, Tensor) and each.is_floating_point()]
        for one in (whole, part)
    ]
    if not all(each and each[0].ndim == 3 for each in both):
        return False
    first, alone = (each[0] for each in both)
    size = alone.shape[1]
    gap = float((first[:, :size] - alone).abs().max()) if size < first.shape[1] else float("inf")
    return gap <= SAME * float(alone.abs().max())
