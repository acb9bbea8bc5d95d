"""Beam search with cached keys and values: these follow the hypotheses, which change their rows at every step."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["beam_history_findings"]

_PROMPT = re.compile(r"prompts?|context|start(?:_ids)?|idx|input_?ids?", re.I)
_FIRST = re.compile(r"(?:bos|sos|start|begin)(?:_?(?:id|idx|token|token_id|symbol))?", re.I)
"""Names of the first token of all texts."""
_BEAMS = re.compile(r"(?:num_|n_)?beams?(?:_?(?:size|width))?|k", re.I)
_STEPS = re.compile(r"(?:n_|num_|max_)?(?:new_)?(?:steps?|tokens|len(?:gth)?)", re.I)
BEAMS, STEPS = 4, 6
PROMPT = 3
"""Tokens of what the search begins with."""
FEWEST_STEPS = 3
SEARCHES = 4
"""With other prompts: in a search no hypothesis may change its row."""
SAME = 1e-6
"""Of the largest logit."""


def beam_history_findings(invocation: Invocation) -> Iterator[Finding]:
    """A beam search that returns a text which none of the rows of its caches holds.

    In each step every row of logits is that of the tokens which this row was fed with one after the other; but the text
    that is returned was put together of several rows: it was scored with keys of other hypotheses.

    Args:
        invocation: a call of a causal model of ids.
    """
    target = invocation.target
    ids = [each for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(target, nn.Module) or len(ids) != 1 or len(invocation.streams) != 1:
        return
    given = invocation.arguments[ids[0].argument]
    if ids[0].batch_axis != 0 or given.ndim != 2 or given.shape[1] < PROMPT:
        return
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        needs = needs_of(method)
        if "beam" not in name.lower() or method.__module__.startswith("torch."):
            continue
        for prompt, told in itertools.islice(_ways(needs, ids[0].argument, given), SEARCHES):
            step = _first_mixed(target, name, prompt, told)
            if step is not None:
                message = (
                    f"{name}() returns a text that no row of its caches holds, from token {step} on: hypotheses change "
                    "their rows, and the cached keys and values do not"
                )
                line = line_of(method)
                yield Finding("violation", "caches-follow-beams", "k", message, line)
                return


def _ways(needs: Sequence[str], argument: str, given: Tensor) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """What texts begin with, and what a search has to be given for it: that or its first token, and what it counts."""
    numbers = {
        each: count for each in needs for count, names in ((BEAMS, _BEAMS), (STEPS, _STEPS)) if names.fullmatch(each)
    }
    (begun,) = rest if len(rest := [each for each in needs if each not in numbers]) == 1 else ("",)
    if begun == argument or call_meaning(begun) == "ids" or _PROMPT.fullmatch(begun):
        for row in given:
            yield row[None, :PROMPT], {**numbers, begun: row[None, :PROMPT]}
    elif _FIRST.fullmatch(begun):
        for first in torch.unique(given).tolist():
            yield torch.tensor([[first]]), {**numbers, begun: first}


def _first_mixed(target: nn.Module, method: str, prompt: Tensor, given: Mapping[str, Any]) -> int | None:
    """The first token of the text that is returned which is in no row of the caches; None where rows hold all of it."""
    model, fed, told = copied(target), list[Tensor](), list[Tensor]()

    def watch(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        inputs = [each for each in tree_leaves((args, dict(kwargs))) if _is_of_ids(each)]
        logits = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.is_floating_point()]
        if inputs and logits:
            fed.append(inputs[0].clone())
            told.append(logits[0].clone())

    told_it = {name: each.clone() if isinstance(each, Tensor) else each for name, each in given.items()}
    handle = model.register_forward_hook(watch, with_kwargs=True)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            returned = [each for each in tree_leaves(getattr(model, method)(**told_it)) if _is_of_ids(each)]
            handle.remove()
            rows = {len(each) for each in fed}
            is_cached = len(fed) >= FEWEST_STEPS and all(each.shape[1] == 1 for each in fed[1:])
            if not returned or not is_cached or len(rows) != 1 or min(rows) < 2:
                return None
            histories = torch.cat(fed, 1)
            whole = next(each for each in tree_leaves(copied(target)(histories)) if isinstance(each, Tensor))
    except Exception:  # code of others may raise anything
        return None
    texts = returned[0]
    ends = [each.shape[1] for each in fed]
    last = torch.tensor(ends).cumsum(0) - 1
    if whole.ndim != 3 or any(each.ndim != 3 for each in told) or texts.shape[1] - histories.shape[1] not in (0, 1):
        return None
    logits = torch.stack([each[:, -1] for each in told], 1)
    if logits.shape[-1] != whole.shape[-1] or logits.shape[0] != whole.shape[0]:
        return None
    if not bool(((logits - whole[:, last]).abs() <= SAME * float(whole.abs().max())).all()):
        return None  # they are of other rows: caches follow
    return next((step for each in texts if (step := _mixed_from(each, histories, prompt[0])) is not None), None)


def _mixed_from(text: Tensor, histories: Tensor, prompt: Tensor) -> int | None:
    """The first token of a text that no row has behind all those before it; None where one has them all."""
    held = histories == text[: histories.shape[1]]
    if not bool(held.any(0).all()) or not torch.equal(text[: len(prompt)], prompt):
        return None  # it is put together of other tokens as well
    same = held.int().cumprod(1).any(0)
    return None if bool(same.all()) else int((~same).int().argmax())


def _is_of_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype == torch.long
