"""Beam search with cached keys and values: these follow the hypotheses, which change their rows at every step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["beam_history_findings"]

_PROMPT = re.compile(r"prompts?|context|start(?:_ids)?|idx|input_?ids?", re.I)
PROMPT = 3
"""Tokens of what the search begins with."""
FEWEST_STEPS = 3
SEARCHES = 3
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
        if "beam" not in name.lower() or method.__module__.startswith("torch.") or len(needs) != 1:
            continue
        told = needs[0]
        if told != ids[0].argument and call_meaning(told) != "ids" and not _PROMPT.fullmatch(told):
            continue
        for seed in range(min(SEARCHES, len(given))):
            step = _first_mixed(target, name, given[seed : seed + 1, :PROMPT])
            if step is not None:
                message = (
                    f"{name}() returns a text that no row of its caches holds, from token {step} on: hypotheses change "
                    "their rows, and the cached keys and values do not"
                )
                code = inspect.unwrap(method).__code__
                line = CodeLocation(code.co_filename, code.co_firstlineno, f"def {name}")
                yield Finding("violation", "caches-follow-beams", "k", message, line)
                return


def _first_mixed(target: nn.Module, method: str, prompt: Tensor) -> int | None:
    """The first token of the text that is returned which is in no row of the caches; None where rows hold all of it."""
    model, fed, told = copied(target), list[Tensor](), list[Tensor]()

    def watch(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        inputs = [each for each in tree_leaves((args, dict(kwargs))) if _is_of_ids(each)]
        logits = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.is_floating_point()]
        if inputs and logits:
            fed.append(inputs[0].clone())
            told.append(logits[0].clone())

    handle = model.register_forward_hook(watch, with_kwargs=True)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            returned = [each for each in tree_leaves(getattr(model, method)(prompt.clone())) if _is_of_ids(each)]
            handle.remove()
            rows = {len(each) for each in fed}
            is_cached = len(fed) >= FEWEST_STEPS and all(each.shape[1] == 1 for each in fed[1:])
            if not returned or not is_cached or len(rows) != 1 or min(rows) < 2:
                return None
            histories = torch.cat(fed, 1)
            whole = next(each for each in tree_leaves(copied(target)(histories)) if isinstance(each, Tensor))
    except Exception:  # code of others may raise anything
        return None
    text = returned[0][0]
    ends = [each.shape[1] for each in fed]
    last = torch.tensor(ends).cumsum(0) - 1
    if whole.ndim != 3 or any(each.ndim != 3 for each in told) or len(text) - histories.shape[1] not in (0, 1):
        return None
    logits = torch.stack([each[:, -1] for each in told], 1)
    if logits.shape[-1] != whole.shape[-1] or logits.shape[0] != whole.shape[0]:
        return None
    if not bool(((logits - whole[:, last]).abs() <= SAME * float(whole.abs().max())).all()):
        return None  # they are of other rows: caches follow
    held = histories == text[: histories.shape[1]]
    if not bool(held.any(0).all()) or not torch.equal(text[: prompt.shape[1]], prompt[0]):
        return None  # it is put together of other tokens as well
    same = held.int().cumprod(1).any(0)
    return None if bool(same.all()) else int((~same).int().argmax())


def _is_of_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype == torch.long
