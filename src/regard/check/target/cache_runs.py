"""Runs of a call in parts: each part is given some of the tokens, and the cache of the part before."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.cache_forms import CacheForm, parameters_of
from regard.check.target.errors import Failed
from regard.check.target.mask_values import write_mask
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied
from regard.check.target.running import Invocation

__all__ = ["CachedCall", "Part", "Place", "masks_left_out", "optional_positions"]

Part = tuple[int, int]
"""The first token, and the one after the last."""
Place = Callable[[Any, Any], Any]
"""From what a call returned, and the cache that it was given, to the cache for the next call."""


@dataclass(frozen=True, eq=False)
class CachedCall:
    """A call with one form of cache, and what the other arguments are for some of the tokens."""

    invocation: Invocation
    form: CacheForm
    position: str = ""
    """How positions are told that may be left out: "", "vector" or "row"."""
    start: bool = False
    """Whether an optional number of the first token is told, or one of all tokens so far."""
    whole_tables: bool = False
    """Whether tables of rotary positions are handed over whole, not the rows of the tokens alone."""
    whole_masks: bool = False
    """Whether masks have a column for each token of the whole, not only for those that were seen so far."""
    mask: tuple[str, str] | None = None
    """The name and the form of a causal mask that the parts are given, where the whole has one of its own.

    A form of a row is that of a mask of keys alone, which hides none of those that were seen so far.
    """
    from_first: bool = False
    """Whether each part is given all tokens so far: code such as x-transformers leaves out what its cache holds."""
    place: Place = field(default=lambda result, state: state)

    @property
    def tokens(self) -> int:
        """How many there are in all."""
        return self.invocation.tokens_of(self.invocation.streams[0])

    @property
    def is_guessed(self) -> bool:
        """Whether tensors besides the tokens were cut into parts: perhaps not as they are meant."""
        names = {each.argument for each in self.invocation.streams} | set(self.form.arguments)
        return any(
            _shapes(self._part(call_meaning(name) or "", value, 0, 1)) != _shapes(value)
            for name, value in self.invocation.arguments.items()
            if name not in names and call_meaning(name) != "positions"
        )

    def whole(self, end: int) -> Any:
        """What the first tokens give without a cache.

        Raises:
            Failed: it raised.
        """
        cut = replace(self, whole_tables=False, whole_masks=False)
        own = {
            name: value for name in self.form.arguments if (value := self.invocation.arguments.get(name)) is not None
        }
        error = Failed("no call of the first tokens runs")
        for each in (cut, self):
            given = {name: value for name, value in each._arguments(0, end).items() if name not in self.form.arguments}
            try:
                return self.invocation.run({**given, **own})
            except Failed as failed:
                error = failed
        raise error

    def parts(
        self,
        cuts: Sequence[Part],
        *,
        tokens: Mapping[str, Tensor] | None = None,
        watch: Callable[[Mapping[str, Any]], AbstractContextManager[object]] | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """What each part returns, and the cache after it.

        Args:
            cuts: the parts, in order.
            tokens: others than those of the call.
            watch: what surrounds the call of the last part.

        Raises:
            Failed: it raised.
        """
        try:
            target = copied(self.invocation.target)
            if self.form.install is not None:
                self.form.install(target)
            state = self.form.make()
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}") from error
        for number, (first, end) in enumerate(cuts):
            begin = 0 if self.from_first else first
            given = self._arguments(begin, end, tokens)
            if self.form.counted and isinstance(state, dict):
                state |= dict.fromkeys(self.form.counted, begin)
            given |= {**self._told(begin, end), **self.form.flags, **self.form.given(state)}
            result = self.invocation.run(
                given, target=target, shared=self.form.arguments, watch=watch if number == len(cuts) - 1 else None
            )
            state = self.place(result, state)
            yield result, state

    def _arguments(self, first: int, end: int, tokens: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The arguments of some tokens."""
        given = dict(self.invocation.arguments) | dict(tokens or {})
        axes = {each.argument: each.token_axes[0] for each in self.invocation.streams}
        found = {}
        for name, value in given.items():
            if name in axes:
                found[name] = value.narrow(axes[name], first, end - first)
            elif name in self.form.arguments:
                found[name] = value
            else:
                found[name] = self._part(call_meaning(name) or "", value, first, end)
        return found

    def _part(self, role: str, value: Any, first: int, end: int) -> Any:
        """An argument for some tokens."""
        if type(value) in (list, tuple):
            return type(value)(self._part(role, each, first, end) for each in value)
        if role == "start" and isinstance(value, int) and not isinstance(value, bool):
            return value + first
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        axes = [axis for axis, size in enumerate(value.shape) if size == self.tokens]
        square = value.ndim > 1 and value.shape[-1] == value.shape[-2] == self.tokens
        if role in ("mask", "padding", "bias") or square:
            if role != "padding" and value.ndim > 1 and value.shape[-2] == self.tokens:
                value = value.narrow(-2, first, end - first)
            if not self.whole_masks and value.shape[-1] == self.tokens:
                value = value.narrow(-1, 0, end)
            return value
        if not axes or (self.whole_tables and role != "positions" and value.is_floating_point() | value.is_complex()):
            return value
        return value.narrow(axes[0], first, end - first)

    def _told(self, first: int, end: int) -> dict[str, Any]:
        """Positions that may be left out."""
        told: dict[str, Any] = {}
        for name, kind in optional_positions(self.invocation):
            if kind == "start" and self.start:
                told[name] = first
            elif kind == "total" and self.start:
                told[name] = end
            elif kind == "positions" and self.position:
                row = torch.arange(first, end)
                told[name] = row[None] if self.position == "row" else row
        if self.mask is not None:
            name, form = self.mask
            allowed = torch.ones(self.tokens, self.tokens, dtype=torch.bool).tril()
            allowed = allowed[
                : end if form.startswith("square") else self.tokens, : self.tokens if self.whole_masks else end
            ]
            if form.startswith("row"):
                told[name] = write_mask(allowed[end - 1 : end], form.removeprefix("row "))
                return told
            rows = allowed if form.startswith("square") else allowed[first:end]
            told[name] = write_mask(rows, form.removeprefix("square "))[None, None]
        return told


def masks_left_out(invocation: Invocation) -> list[str]:
    """Masks that a call could be given, and is not."""
    names = [name for name in parameters_of(invocation.target) if call_meaning(name) in ("mask", "bias")]
    return [name for name in names if invocation.arguments.get(name) is None]


def optional_positions(invocation: Invocation) -> list[tuple[str, str]]:
    """The arguments of a call that tell positions, and were left out: "start", "positions", or "total"."""
    found = []
    for name, parameter in parameters_of(invocation.target).items():
        role = call_meaning(name)
        if role in ("start", "positions") and invocation.arguments.get(name) is None:
            is_int = isinstance(parameter.default, int) or str(parameter.annotation) in ("int", "<class 'int'>")
            found.append((name, "start" if is_int else role))
        elif invocation.arguments.get(name) is None and _counts_all(name, invocation.target):
            found.append((name, "total"))
    return found


def _counts_all(name: str, target: Any) -> bool:
    """Whether an argument is the number of all tokens so far, the new ones included, as the documentation says."""
    if call_meaning(name) != "size length":
        return False
    kinds = (type(target), type(target).forward) if isinstance(target, nn.Module) else (target,)
    text = " ".join(inspect.getdoc(each) or "" for each in kinds)
    return re.search(rf"\b{re.escape(name)}\b[^.;]*\bincluding\b", text, re.I) is not None


def _shapes(value: Any) -> list[tuple[int, ...]]:
    if isinstance(value, list | tuple):
        return [shape for each in value for shape in _shapes(each)]
    return [tuple(value.shape)] if isinstance(value, Tensor) else []
