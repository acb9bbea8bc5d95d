"""How an implementation is called with one sequence, or with q, k and v; with a causal mask where it takes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.recipes.case import Case
from regard.check.recipes.case import causal as visible
from regard.check.search.cases import lengths
from regard.check.search.layouts import Way, from_layout, to_layout
from regard.check.search.mask_formats import MaskFormat
from regard.check.target.argument import STREAMS
from regard.check.target.calls_of_sizes import OF_PLACES, FoundCall
from regard.check.target.errors import Failed
from regard.check.target.position_values import ROPE_FORMS
from regard.check.target.running import Invocation, Stream
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record

__all__ = ["TOKENS", "CallPlan", "CannotCompareError", "CausalMask", "random_inputs"]

HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 3, 4, 6, 10, 8
"""Of functions of q, k and v: no two the same."""
TOKENS = 5
"""Of modules: neither their batch nor their number of heads."""
SEQUENCES = ("q", "k", "v", "x", "context")
"""The roles of arguments that are compared."""
FLAT = Way("bt(hd)", "", flat=True)


class CannotCompareError(Exception):
    """What stands in the way of a comparison, in one sentence."""


@dataclass(frozen=True, eq=False)
class CausalMask:
    """How an implementation is told to be causal."""

    argument: str
    form: MaskFormat | None = None
    """None for a flag."""
    shape: str = "qk"

    def value(self, batch: int, queries: int, keys: int, *, causal: bool) -> Any:
        """What is handed over."""
        if self.form is None:
            return causal
        sizes = {"qk": (), "1qk": (1,), "bqk": (batch,), "11qk": (1, 1), "b1qk": (batch, 1)}[self.shape]
        return self.form.write(visible(queries, keys)[0, 0].expand(*sizes, queries, keys).clone())


@dataclass(frozen=True, eq=False)
class CallPlan:
    """One way to call an implementation."""

    name: str
    found: FoundCall
    module: nn.Module | None
    """That is called; None of a function."""
    mask: CausalMask | None = None
    is_causal: bool = False
    """Whether it is causal without being told."""
    _known: dict[tuple[int, int, int], Invocation] = field(default_factory=dict)
    """The calls of some numbers of samples, queries and keys."""

    def __call__(self, inputs: Case, *, causal: bool = False) -> Tensor:
        """The output: (batch, tokens, width) of a module, (batch, heads, tokens, width) of a function.

        Raises:
            CannotCompareError: it raised, or returned no such tensor.
        """
        invocation = self._invocation(*_sizes(inputs))
        try:
            result = invocation.run(self._arguments(invocation, inputs, causal), target=self._called)
        except Failed as error:
            raise self._failed(str(error)) from error
        return self._output(inputs, invocation.outputs(result))

    def traced(
        self, inputs: Case, *, causal: bool = False, frozen: Mapping[int, Tensor] | None = None
    ) -> tuple[Trace, Tensor]:
        """The call's operations, and the output as by `__call__`; `frozen` is what some return instead."""
        invocation = self._invocation(*_sizes(inputs))
        given = self._arguments(invocation, inputs, causal)
        trace = record(
            lambda watch: invocation.run(given, target=self._called, watch=watch),
            outputs=invocation.outputs,
            frozen=frozen,
        )
        if trace.error:
            raise self._failed(trace.error)
        return trace, self._output(inputs, [each.data for each in trace.outputs])

    @property
    def _called(self) -> Any:
        return self.found.target.call if self.module is None else self.module

    def _failed(self, text: str) -> CannotCompareError:
        return CannotCompareError(f"{self.name} {'' if text.startswith('raises') else 'raises '}{text}")

    def _invocation(self, batch: int, queries: int, keys: int) -> Invocation:
        known = self._known.get((batch, queries, keys))
        if known is None:
            plan, target = self.found.plan, self.found.target
            sizes = replace(target.sizes, batch=batch, tokens=queries, context=keys)
            if self.module is None:
                sizes = replace(sizes, heads=HEADS, kv_heads=HEADS, d_head=WIDTH)
            choices = {**plan.choices, "lengths": "other"} if "lengths" in plan.choices else plan.choices
            known = replace(replace(plan, choices=choices).invocation(target.call, sizes), gradients=False)
            self._known[batch, queries, keys] = known
        return known

    def _arguments(self, invocation: Invocation, inputs: Case, causal: bool) -> dict[str, Any]:
        given: dict[str, Any] = {}
        roles = {each.name: each.role for each in self.found.plan.arguments}
        spared = {e.name for e in self.found.plan.arguments if not e.required and e.role not in OF_PLACES}
        for name, value in invocation.arguments.items():
            role = roles.get(name)
            if name in spared:
                continue
            if role in STREAMS or not isinstance(value, Tensor) or not value.is_floating_point():
                given[name] = value
            elif role == "bias":
                given[name] = torch.zeros_like(value)
            else:  # of what is neither a mask nor a table nothing is known
                given[name] = value if role in ("mask", "padding", *ROPE_FORMS) else None
        for name, role in roles.items():
            if name in self._streams or (role == "context" and inputs.context is not None):
                given[name] = self._tensor(inputs, name, str(role))
        if self.mask is not None and (causal or self.mask.form is None):
            given[self.mask.argument] = self.mask.value(*_sizes(inputs), causal=causal)
        return given

    def _tensor(self, inputs: Case, name: str, role: str) -> Tensor:
        way = self._way(self._streams.get(name, self._first))
        if inputs.x is not None:
            given = inputs.x
            if inputs.context is not None and role in ("k", "v", "context"):
                given = inputs.values if role == "v" and inputs.values is not None else inputs.context
            return to_layout(given[:, None], way)
        tensor = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "x": inputs.q}.get(role)
        if tensor is None:
            raise CannotCompareError(f"{self.name} takes {name}, which is neither q, k nor v")
        return to_layout(tensor, way)

    @property
    def _streams(self) -> dict[str, Stream]:
        return {each.argument: each for each in self.found.invocation.streams}

    @property
    def _first(self) -> Stream:
        streams = self.found.invocation.streams
        if not streams:
            raise CannotCompareError(f"{self.name} takes no sequence")
        return streams[0]

    def _way(self, stream: Stream) -> Way:
        """The axes of a sequence.

        Raises:
            CannotCompareError: they are not those of samples, heads, tokens and channels.
        """
        if "f" in self.found.plan.layout.letters:
            return FLAT
        names: dict[int | None, str] = {stream.batch_axis: "b", stream.head_axis: "h"}
        names.update(dict.fromkeys(stream.token_axes, "t"))
        letters = "".join(names.get(at, "d") for at in range(self.found.invocation.arguments[stream.argument].ndim))
        known = sorted(letters)
        if stream.role not in SEQUENCES or len(set(letters)) < len(known) or not {"t", "d"} <= set(letters):
            raise CannotCompareError(f"{self.name} takes {stream.argument}, which is no sequence of vectors")
        return Way(letters, "")

    @property
    def layout(self) -> str:
        """The axes of its first sequence, one letter an axis."""
        return self._way(self._first).layout

    @property
    def heads(self) -> int:
        """How many heads it is given."""
        return HEADS if "h" in self.layout else 1

    @property
    def width(self) -> int:
        """Of the tokens of a module; 0 of a function."""
        shape = self.found.invocation.arguments[self._first.argument].shape
        return 0 if self.module is None else shape[self.layout.index("d")]

    @property
    def source_count(self) -> int:
        """How many sequences a module takes: x; or x and a context; or those of queries, keys and values."""
        roles = {each.role for each in self.found.plan.arguments}
        return 3 if {"q", "k", "v"} <= roles else 2 if "context" in roles else 1

    def _output(self, inputs: Case, tensors: list[Tensor]) -> Tensor:
        wanted: tuple[int, ...]
        if inputs.x is not None:
            wanted = (len(inputs.x), 1, inputs.x.shape[1])
        else:
            assert inputs.q is not None
            assert inputs.v is not None
            wanted = (*inputs.q.shape[:3], inputs.v.shape[-1])
        own = self._way(self._first)
        for each in tensors:
            for way in (own,) if inputs.x is not None else (own, Way("bthd", ""), FLAT):
                try:
                    read = from_layout(each.detach(), way, wanted[1])
                except RuntimeError:
                    continue
                if read.shape[: len(wanted)] == wanted:
                    return (read if inputs.x is None else read[:, 0]).to(torch.float64)
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors) or "no tensor"
        raise CannotCompareError(f"{self.name} returns {shapes}")


def _sizes(inputs: Case) -> tuple[int, int, int]:
    return inputs.batch_size, *lengths(inputs)


def random_inputs(plan: CallPlan, seed: int, *, batch: int = 2, tokens: int = TOKENS) -> Case:
    """Normal numbers for a call."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch = batch if "b" in plan.layout else 1
    if plan.module is not None:
        return Case(x=drawn(batch, tokens, plan.width))
    keys = tokens + KEYS - QUERIES
    return Case(
        q=drawn(batch, plan.heads, tokens, WIDTH),
        k=drawn(batch, plan.heads, keys, WIDTH),
        v=drawn(batch, plan.heads, keys, VALUE_WIDTH),
    )
