"""Methods that write a text on with cached keys and values: each step sees what the whole text would show it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import text_of
from regard.check.target.cache_forms import FLAG
from regard.check.target.double_precision import double_precision
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["generation_findings", "writing_methods"]

_WRITES = re.compile(r"(?:\w+_)?(?:generate|greedy|sample|complete|decode)(?:_\w+)?", re.I)
_PROMPT = re.compile(r"prompts?|context|start(?:_ids)?|idx|input_?ids?|tokens?|ids", re.I)
_NEW = re.compile(
    r"(?:max_?)?(?:new_?|num_?|n_?)*(?:tokens?|steps?|words)(?:_to_\w+)?|max_new\w*|n(?:um)?_new\w*|n|num|count|how_many",
    re.I,
)
_WHOLE = re.compile(r"(?:max_?|min_?)?(?:seq(?:uence)?_?|gen(?:eration)?_?)?len(?:gth)?|max_seq\w*", re.I)
"""Names of how many tokens are to be written, and of how many there are to be in the end."""
_LOOP = re.compile(r"\b(?:for|while)\b")
PROMPT, STEPS = 3, 5
FEWEST_STEPS = 3
SAME = 1e-6
"""Of the largest logit."""
OTHER = 1e-3
"""The same: a cache that rounds what it keeps changes less."""


def generation_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method, or the call itself, whose steps have other logits than the text that was fed to them has as a whole.

    As where positions that it counts run ahead of the tokens.

    Args:
        invocation: a call of a causal model of ids.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or len(invocation.streams) != 1:
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    if given.is_floating_point() or stream.batch_axis != 0 or given.ndim != 2 or given.shape[1] < PROMPT:
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        for told in writing_methods(name, method, stream.argument, given[:1]):
            found = _first_other(target, name, told)
            if found is not None:
                step, gap = found
                message = (
                    f"{name}() feeds token by token; the logits behind token {step} differ by up to {gap:.2g} from "
                    f"those of the call of all {step + 1} tokens at once: what it hands over beside the tokens does "
                    "not go on as they do"
                )
                line = line_of(method)
                yield Finding("violation", "cache-equals-whole", "output", message, line)
                return
    yield from _of_the_call(target, stream.argument, given[:1])


def _of_the_call(target: nn.Module, argument: str, given: Tensor) -> Iterator[Finding]:
    """The same of a call that writes, by steps that are a method of their own."""
    forward = type(target).forward
    steps = dict.fromkeys(re.findall(r"\bself\.(\w+)\(", text_of(forward)))
    for step in steps if _LOOP.search(text_of(forward)) else ():
        for told in (
            _ways(forward, argument, given[:, :PROMPT]) if inspect.isroutine(getattr(target, step, None)) else ()
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


def writing_methods(name: str, method: Callable[..., Any], argument: str, given: Tensor) -> Iterator[dict[str, Any]]:
    """The arguments with which a method writes a few tokens on; none where its name tells of another thing.

    Args:
        name: of the method.
        method: of a module's class.
        argument: what a sequence is called in the call of the module.
        given: such a sequence, (1, tokens, ...).
    """
    if _WRITES.fullmatch(name) and not method.__module__.startswith("torch.") and "beam" not in name.lower():
        yield from _ways(method, argument, given[:, :PROMPT])


def _ways(method: Callable[..., Any], argument: str, prompt: Tensor) -> Iterator[dict[str, Any]]:
    """The arguments with which a method may write a few tokens; none where it needs others."""
    told, flags = dict[str, Any](), list[str]()
    for each in [*inspect.signature(method).parameters.values()][1:]:
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        is_prompt = each.name == argument or call_meaning(each.name) == "ids" or _PROMPT.fullmatch(each.name)
        if is_prompt and each.default is each.empty and not any(isinstance(one, Tensor) for one in told.values()):
            told[each.name] = prompt
        elif _NEW.fullmatch(each.name) and not isinstance(each.default, str):
            told[each.name] = STEPS
        elif _WHOLE.fullmatch(each.name):
            told[each.name] = PROMPT + STEPS
        elif each.default is False and FLAG.search(each.name.lower()):
            flags.append(each.name)
        elif each.default is each.empty:
            return
    if any(isinstance(each, Tensor) for each in told.values()):
        yield told | dict.fromkeys(flags, True)


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
    model, fed, logits, begun = copied(target), list[Tensor](), list[Tensor](), list[Any]()
    forward = getattr(model, step)

    def watched(*args: Any, **kwargs: Any) -> Any:
        inputs = [each.clone() for each in tree_leaves((args, kwargs)) if _is_of_ids(each)]
        if not begun:
            begun.append(copy.deepcopy((args, kwargs)))
        output = forward(*args, **kwargs)
        last = _last(output)
        if inputs and last is not None:
            fed.append(inputs[0])
            logits.append(last)
        return output

    def read_at_once(text: Tensor) -> Any:
        if step == "forward":
            return copied(target)(text)
        args, kwargs = copy.deepcopy(begun[0])
        args, kwargs = tree_map(lambda each: text if _is_of_ids(each) else each, (args, kwargs))
        return getattr(copied(target), step)(*args, **kwargs)

    setattr(model, step, watched)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), double_precision():
            given = {name: each.clone() if isinstance(each, Tensor) else each for name, each in told.items()}
            returned = [each for each in tree_leaves(getattr(model, method)(**given)) if _is_of_ids(each)]
            if not returned or not _is_fed_one_by_one(fed, returned[0]):
                return None
            text = torch.cat(fed, 1)
            ends = torch.tensor([each.shape[1] for each in fed]).cumsum(0).tolist()
            if step != "forward" and not _hides_later(read_at_once(text), read_at_once(text[:, : ends[0]])):
                return None
            whole = [_last(read_at_once(text[:, :end])) for end in ends]
    except Exception:  # code of others may raise anything
        return None
    for number, (end, mine, other) in enumerate(zip(ends, logits, whole, strict=True)):
        if other is None or mine.shape != other.shape:
            return None
        gap = float((mine - other).abs().max()) / float(other.abs().max().clamp(min=1e-12))
        if gap > (SAME if number == 0 else OTHER):
            return (end - 1, gap * float(other.abs().max())) if number else None
    return None


def _hides_later(whole: Any, part: Any) -> bool:
    """Whether the first tokens of a text have the same logits as without the others; not where they have none."""
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


def _is_fed_one_by_one(fed: Sequence[Tensor], text: Tensor) -> bool:
    """Whether a prompt was fed, and then each token of the text that is returned, one at a time."""
    if len(fed) < FEWEST_STEPS or any(each.shape != (1, 1) for each in fed[1:]) or len(text) != 1:
        return False
    history = torch.cat([*fed], 1)
    if text.shape[1] < history.shape[1]:  # without the prompt
        history = history[:, fed[0].shape[1] :]
    return text.shape[1] - history.shape[1] in (0, 1) and torch.equal(text[:, : history.shape[1]], history)


def _last(output: Any) -> Tensor | None:
    """The logits behind the last token; None where there are none."""
    found = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.is_floating_point()]
    if not found or found[0].ndim not in (2, 3):
        return None
    return (found[0][:, -1] if found[0].ndim == 3 else found[0]).clone()


def _is_of_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype == torch.long
