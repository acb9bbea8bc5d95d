"""How an implementation is called with one sequence, or with q, k and v; with a causal mask where it takes one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.equivalence.operations import Float64Mode, OperationRecorder, plain_kernels
from regard.check.sandbox.answer import error_text
from regard.check.search.layouts import FUNCTION_WAYS, Way, from_layout, from_module_layout, to_layout, to_module_layout
from regard.check.search.mask_formats import MaskFormat
from regard.check.search.subject import Subject
from regard.check.search.tensors import tensors_in

__all__ = ["TOKENS", "CallPlan", "CannotCompareError", "Inputs", "random_inputs"]

HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 3, 4, 6, 10, 8
"""Of functions of q, k and v: no two the same."""
TOKENS = 5
"""Of modules: neither their batch nor their number of heads."""
ROPE_BASE = 10_000.0
POSITIONS = ("position_ids", "positions", "input_pos", "cache_position", "pos")
COMPLEX_TURNS = ("freqs_cis", "freqs", "freqs_complex", "freq_cis", "pos_cis")
STARTS = ("start_pos", "offset", "start", "start_position")


class CannotCompareError(Exception):
    """What stands in the way of a comparison, in one sentence."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Of one call: x, or q, k and v of (batch, heads, tokens, width)."""

    x: Tensor | None = None
    """(batch, tokens, d_model)."""
    context: Tensor | None = None
    """What keys are made of, if not x."""
    values: Tensor | None = None
    """What values are made of, if not the context."""
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None


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
        may = torch.ones(queries, keys, dtype=torch.bool)
        may = may.tril(keys - queries) if causal else may
        sizes = {"qk": (), "1qk": (1,), "bqk": (batch,), "11qk": (1, 1), "b1qk": (batch, 1)}[self.shape]
        return self.form.write(may.expand(*sizes, queries, keys).clone())


@dataclass(frozen=True, eq=False)
class CallPlan:
    """One way to call an implementation."""

    subject: Subject
    module: nn.Module | None
    layout: str
    """Of a module: "btd", "tbd" or "td"; of a function: as `FUNCTION_WAYS` names it."""
    width: int = 0
    rotated: int = 0
    mask: CausalMask | None = None
    open_mask: CausalMask | None = None
    """What says that everyone may attend, where this has to be said."""
    is_causal: bool = False
    """Whether it is causal without being told."""
    gives_positions: bool = False
    """Whether positions are handed over that it could do without."""

    def __call__(self, inputs: Inputs, *, causal: bool = False, recorder: OperationRecorder | None = None) -> Tensor:
        """The output: (batch, tokens, width) of a module, (batch, heads, tokens, width) of a function.

        Raises:
            CannotCompareError: it raised, or returned no such tensor.
        """
        given = self._arguments(inputs, causal)
        call: Any = self.module if self.module is not None else self.subject.function
        first = [n for n in given if self.subject.called[n].kind is inspect.Parameter.POSITIONAL_ONLY]
        try:
            mode = recorder or Float64Mode()  # type: ignore[no-untyped-call]
            with self.subject.settings.on(), torch.no_grad(), plain_kernels(), mode:
                result = call(*(given[n] for n in first), **{n: v for n, v in given.items() if n not in first})
        except Exception as error:
            raise CannotCompareError(f"{self.subject.name} raises {error_text(error)}") from error
        return self._output(inputs, result)

    def _arguments(self, inputs: Inputs, causal: bool) -> dict[str, Any]:
        given: dict[str, Any] = {}
        roles = argument_roles(self.subject)
        batch, queries, keys = _sizes(inputs)
        for name, parameter in self.subject.called.items():
            means = roles.get(name)
            required = parameter.default is parameter.empty
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if means in ("q", "k", "v", "x") or (means == "context" and (required or inputs.context is not None)):
                given[name] = self._tensor(inputs, means)
            elif self.mask is not None and name == self.mask.argument and (causal or self.mask.form is None):
                given[name] = self.mask.value(batch, queries, keys, causal=causal)
            elif self.open_mask is not None and name == self.open_mask.argument:
                given[name] = self.open_mask.value(batch, queries, keys, causal=False)
            elif means in ("rope", "cos", "sin") or name in COMPLEX_TURNS:
                given[name] = _turns(queries, self.rotated, name if means is None else means)
            elif name in STARTS and required:
                given[name] = 0
            elif name in POSITIONS and (required or self.gives_positions):
                given[name] = torch.arange(queries)[None] if name == "position_ids" else torch.arange(queries)
            elif means is not None and means.startswith("size ") and required:
                given[name] = self._size(inputs, means.removeprefix("size "))
            elif required:
                given[name] = None
        return given

    def _tensor(self, inputs: Inputs, means: str) -> Tensor:
        if inputs.x is None:
            tensor = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "x": inputs.q}.get(means)
            assert tensor is not None
            return to_layout(tensor, self._way)
        given = inputs.x
        if inputs.context is not None and means in ("k", "v", "context"):
            given = inputs.values if means == "v" and inputs.values is not None else inputs.context
        return to_module_layout(given, self.layout)

    @property
    def source_count(self) -> int:
        """How many sequences a module takes: x; or x and a context; or those of queries, keys and values."""
        roles = set(argument_roles(self.subject).values())
        return 3 if {"q", "k", "v"} <= roles else 2 if {"x", "context"} <= roles else 1

    @property
    def _way(self) -> Way:
        return next(way for way in FUNCTION_WAYS if way.layout == self.layout)

    def _size(self, inputs: Inputs, means: str) -> Any:
        if inputs.q is not None:
            heads, width = inputs.q.shape[1], inputs.q.shape[3]
            return {"heads": heads, "d_head": width, "d_model": heads * width, "dropout": 0.0}.get(means)
        return None

    def _output(self, inputs: Inputs, result: Any) -> Tensor:
        tensors = [each for each in tensors_in(result) if each.is_floating_point()]
        for each in tensors:
            found = self._read(inputs, each.detach())
            if found is not None:
                return found.to(torch.float64)
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors) or "no tensor"
        raise CannotCompareError(f"{self.subject.name} returns {shapes}")

    def _read(self, inputs: Inputs, tensor: Tensor) -> Tensor | None:
        if inputs.x is None:
            assert inputs.q is not None
            assert inputs.v is not None
            batch, heads, queries, _ = inputs.q.shape
            for way in (self._way, *(each for each in FUNCTION_WAYS if each.layout in ("bthd", "bt(hd)"))):
                try:
                    read = from_layout(tensor, way, heads)
                except RuntimeError:
                    continue
                if read.shape == (batch, heads, queries, inputs.v.shape[-1]):
                    return read
            return None
        return from_module_layout(tensor, self.layout, inputs.x)


def _sizes(inputs: Inputs) -> tuple[int, int, int]:
    if inputs.x is not None:
        keys = inputs.x if inputs.context is None else inputs.context
        return inputs.x.shape[0], inputs.x.shape[1], keys.shape[1]
    assert inputs.q is not None
    assert inputs.k is not None
    return inputs.q.shape[0], inputs.q.shape[2], inputs.k.shape[2]


def _turns(tokens: int, width: int, means: str) -> Any:
    """Rotary angles of each position, as cos and sin of both halves or as complex numbers."""
    half = ROPE_BASE ** (-torch.arange(0, width, 2).double() / max(width, 1))
    angles = torch.arange(tokens)[:, None] * half
    if means not in ("rope", "cos", "sin"):
        return torch.polar(torch.ones_like(angles), angles)
    both = torch.cat((angles, angles), -1)[None]
    return {"rope": (both.cos(), both.sin()), "cos": both.cos(), "sin": both.sin()}[means]


def random_inputs(plan: CallPlan, seed: int, *, batch: int = 2, tokens: int = TOKENS) -> Inputs:
    """Normal numbers for a call."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if plan.module is not None:
        return Inputs(x=drawn(1 if plan.layout == "td" else batch, tokens, plan.width))
    batch = batch if "b" in plan.layout else 1
    heads = HEADS if "h" in plan.layout else 1
    keys = tokens + KEYS - QUERIES
    return Inputs(
        q=drawn(batch, heads, tokens, WIDTH),
        k=drawn(batch, heads, keys, WIDTH),
        v=drawn(batch, heads, keys, VALUE_WIDTH),
    )


def argument_roles(subject: Subject) -> dict[str, str]:
    """What each argument of a call means: as `Subject.roles`, but positions are never taken for keys or values."""
    roles = subject.roles()
    positions = [name for name in roles if name in (*STARTS, *POSITIONS, *COMPLEX_TURNS)]
    if not positions:
        return roles
    return {name: "x" if means == "q" else means for name, means in roles.items() if name not in positions}
