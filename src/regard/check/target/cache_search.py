"""The search for a way to hand a cache over with which a call runs, and reads what it was given before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from regard.check.target.cache_forms import CacheForm
from regard.check.target.cache_runs import CachedCall, Place, masks_left_out, optional_positions
from regard.check.target.errors import Failed
from regard.check.target.preparation import modules_in
from regard.check.target.running import Invocation
from regard.check.target.token_ids import other_ids

__all__ = ["JoinedByTheCaller", "cached_calls", "other_tokens", "tensors_in"]

STATE = re.compile("past|cache|present|mems|kv|intermediates")
"""Names of what is returned."""
CAUSAL_FORMS = ("allowed", "added", "blocked", "square added", "square allowed")
"""Causal masks that are tried: rows for the new tokens, or for all so far."""
MAX_MASKS = 2
"""Arguments that may be one."""
MAX_DEPTH = 4
"""Of objects in objects that are looked at for tensors."""


def cached_calls(invocation: Invocation, form: CacheForm, prefix: int) -> Iterator[CachedCall]:
    """The calls of a form that run and of which the second part depends on the tokens of the first.

    Masks are handed over last, and only where it runs without.
    """
    kinds = {kind for _, kind in optional_positions(invocation)}
    plain = CachedCall(invocation, form)
    both = (False, True)
    told = [
        replace(plain, position=position, start=start, whole_tables=whole_tables, whole_masks=whole_masks)
        for position, start, whole_tables, whole_masks in product(
            ("vector", "row", "") if "positions" in kinds else ("",),
            both[::-1] if kinds & {"start", "total"} else (False,),
            both if plain.is_guessed else (False,),
            both if plain.is_guessed else (False,),
        )
    ]
    running = []
    for call in told:
        for found in _running(call, prefix):
            running.append(found)
            yield found
    for call, name, form_of_mask, whole in product(
        running[:1], masks_left_out(invocation)[:MAX_MASKS], CAUSAL_FORMS, both
    ):
        yield from _running(replace(call, mask=(name, form_of_mask), whole_masks=whole), prefix)


def _running(call: CachedCall, prefix: int) -> list[CachedCall]:
    """The call with each place of the cache with which it runs."""
    found = []
    try:
        for place in _places(call, prefix):
            tried = replace(call, place=place)
            with suppress(Failed, RuntimeError, IndexError, ValueError):
                if _depends(tried, prefix):
                    found.append(tried)
    except (Failed, RuntimeError, IndexError, ValueError):
        pass
    return found


def _places(call: CachedCall, prefix: int) -> Iterator[Place]:
    """Where the cache is after a call: in what was handed over, in the target, or in what is returned."""
    ((result, state),) = call.parts([(0, prefix)])
    ((longer, _),) = call.parts([(0, call.tokens)])
    if not call.form.arguments:
        yield lambda result, state: state
        return
    if state is not None and list(tensors_in(state)):
        yield lambda result, state: state
    paths = list(_paths(result))
    pairs = len(call.form.arguments) > 1
    for path in paths:
        short, long = _at(result, path), _at(longer, path)
        if pairs and not (isinstance(short, list | tuple) and len(short) == len(call.form.arguments)):
            continue
        if _grows(short, long, prefix, call.tokens):
            yield lambda result, state, path=path: _at(result, path)  # type: ignore[misc]
            if isinstance(short, Tensor) and isinstance(long, Tensor) and short.shape != long.shape:
                sizes = zip(short.shape, long.shape, strict=True)
                yield JoinedByTheCaller(path, next(axis for axis, (one, other) in enumerate(sizes) if one != other))


@dataclass(frozen=True)
class JoinedByTheCaller:
    """The cache of what returns one tensor of the new tokens alone: its caller joins it, as that of GPT-2's first code.

    What returns keys and values as a pair is handed it back as it is.
    """

    path: tuple[Any, ...]
    axis: int

    def __call__(self, result: Any, state: Any) -> Any:
        """What was kept, and behind it what is new.

        Raises:
            Failed: what is returned holds what was kept already.
        """
        new = _at(result, self.path)
        if state is None:
            return new
        kept = state.shape[self.axis]
        if new.shape[self.axis] > kept and torch.equal(new.narrow(self.axis, 0, kept), state):
            raise Failed("what is returned holds what was kept")
        return torch.cat([state, new], self.axis)


def _paths(result: Any) -> Iterator[tuple[Any, ...]]:
    """Parts of a result that may be a cache."""
    if isinstance(result, Mapping):
        yield from ((name,) for name in result if STATE.search(str(name)))
    elif isinstance(result, list | tuple):
        yield from ((index,) for index in range(1, len(result)) if result[index] is not None)
        if len(result) > 2:
            yield (slice(1, None),)
        if len(result) > 3:
            yield (slice(1, 3),)
            yield (slice(-2, None),)
    elif not isinstance(result, Tensor):
        yield from ((f".{name}",) for name in getattr(result, "__dict__", {}) if STATE.search(name))


def _at(result: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        result = getattr(result, key[1:]) if isinstance(key, str) and key.startswith(".") else result[key]
    return result


def _grows(short: Any, long: Any, prefix: int, tokens: int) -> bool:
    """Whether it may be a cache of few and of all tokens: every tensor has one axis that grows with their number.

    Of an object, one tensor at least. A window ends the growth: then there are keys and values, of the same shape.
    """
    one, other = list(tensors_in(short)), list(tensors_in(long))
    if not one or len(one) != len(other) or any(a.ndim != b.ndim for a, b in zip(one, other, strict=True)):
        return False
    changes = [
        [(a, b) for a, b in zip(small.shape, large.shape, strict=True) if a != b]
        for small, large in zip(one, other, strict=True)
    ]
    if all(each == [(prefix, tokens)] for each in changes):
        return True
    if not isinstance(short, Tensor | list | tuple | Mapping):
        return any(each == [(prefix, tokens)] for each in changes)
    pair = len(one) % 2 == 0 and len({tuple(each.shape) for each in other}) == 1 and one[0].ndim > 2
    return pair and all(len(each) < 2 and all(b < tokens for _, b in each) for each in changes)


def _depends(call: CachedCall, prefix: int) -> bool:
    """Whether the second part changes with the tokens of the first."""
    cuts = [(0, prefix), (prefix, prefix + 1)]
    outputs = []
    for tokens in (None, other_tokens(call.invocation)):
        given = None
        if tokens is not None:
            own = call.invocation.arguments
            axes = {each.argument: each.token_axes[0] for each in call.invocation.streams}
            given = {
                name: torch.cat(
                    [tokens[name].narrow(axis, 0, prefix), own[name].narrow(axis, prefix, call.tokens - prefix)], axis
                )
                for name, axis in axes.items()
            }
        *_, (result, _) = call.parts(cuts, tokens=given)
        outputs.append(call.invocation.outputs(result)[0])
    return outputs[0].shape == outputs[1].shape and not torch.allclose(outputs[0], outputs[1], rtol=1e-9, atol=1e-12)


def other_tokens(invocation: Invocation) -> dict[str, Tensor]:
    """All tokens drawn anew; streams that hold the same tokens still do."""
    found: dict[str, Tensor] = {}
    for stream in invocation.streams:
        tensor = invocation.arguments[stream.argument]
        generator = torch.Generator().manual_seed(91)
        if tensor.is_floating_point():
            found[stream.argument] = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        else:
            found[stream.argument] = other_ids(tensor, 0, generator, invocation.paddings[stream.argument])
    return found


def tensors_in(value: Any, depth: int = MAX_DEPTH) -> Iterator[Tensor]:
    """The float tensors in a value, also in the attributes of objects."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
        return
    if not depth:
        return
    parts: Sequence[Any] = ()
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = value
    elif hasattr(value, "__dict__") and not callable(value):
        parts = list(vars(value).values())
    for module in modules_in(value):
        parts = [*parts, *module.buffers()]
    for each in parts:
        yield from tensors_in(each, depth - 1)
