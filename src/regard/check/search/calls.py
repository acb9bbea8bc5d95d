"""One way to call an implementation, and its output in the definition's layout."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.recipes.case import Case
from regard.check.sandbox.answer import error_text
from regard.check.search.layouts import Way, from_layout, from_module_layout, to_layout, to_module_layout
from regard.check.search.mask_formats import FORMS, MaskFormat
from regard.check.search.subject import Subject
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied, in_mode
from regard.check.target.running import tensors_in
from regard.check.target.size_values import is_width_of_heads

__all__ = ["Failed", "ProbeCall", "calls_with"]


class Failed(Exception):
    """A call that raised, or returned nothing of the shape that attention has."""


@dataclass(eq=False)
class ProbeCall:
    """How one implementation is called."""

    subject: Subject
    way: Way
    module: nn.Module | None = None
    form: MaskFormat = FORMS[0]
    shape: str = "bhqk"
    """Of a mask that is an argument: which axes it has."""
    flag: bool = False
    """Whether a causal flag is set."""
    to: str | None = None
    """The argument that the mask goes to; none if the case has no mask, or the mask is not an argument."""
    bias: str | None = None
    """The argument that a bias goes to."""
    case: Case | None = None
    """A case that it was tried with."""
    stored: str = "in-out"
    """How weights that are arguments are handed over."""
    nothing: MaskFormat | None = None
    """How a mask that has to be given is written where there is none; None gives None."""
    batched: bool = False
    """Whether that mask is one for each sample."""
    training: bool = False
    which: list[tuple[int, str]] = field(default_factory=list)
    """Which of the tensors that are returned is the output, and in which layout: as in the first call."""

    def __call__(self, case: Case) -> Tensor:
        """The output, in the definition's layout and in float64.

        Raises:
            Failed: an exception, or no tensor of the right shape.
        """
        given = self.arguments(case)
        return self.output(case, self.result(given))

    def result(self, given: Mapping[str, Any]) -> Any:
        """Whatever the implementation returns."""
        return self.result_of(self.copied_module(), given)

    def copied_module(self) -> nn.Module | None:
        """A copy of the module that is called, to be called several times; None of a function."""
        return None if self.module is None else in_mode(copied(self.module), training=self.training)

    def result_of(self, module: nn.Module | None, given: Mapping[str, Any]) -> Any:
        """The same of such a copy itself: what one call leaves in it, the next one finds.

        Raises:
            Failed: it raised.
        """
        call: Any = self.subject.function if module is None else module
        try:
            parameters = self.subject.called
            first = [n for n in given if parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY]
            with self.subject.settings.on():
                return call(*(given[n] for n in first), **{n: v for n, v in given.items() if n not in first})
        except Exception as error:
            raise Failed(error_text(error)) from error

    def arguments(self, case: Case) -> dict[str, Any]:
        """What is handed over, by name."""
        given: dict[str, Any] = {}
        tensors = self.tensors(case)
        for name, means in self.subject.roles().items():
            parameter = self.subject.called[name]
            required = parameter.default is inspect.Parameter.empty
            if means == "context" and name != self.subject.has("context"):
                continue  # another sequence besides: memory, a cache
            if name == self.bias and case.bias is not None:
                given[name] = self._shaped(case.bias)
            elif means in tensors:
                given[name] = tensors[means]
            elif name == self.to and case.may is not None:
                given[name] = self._mask(case)
            elif means == "causal":
                if self.flag or required or parameter.default is True:
                    given[name] = self.flag
            elif means in ("mask", "padding", "bias", "context", "rope"):
                if required:
                    given[name] = self._open(means, case)
            elif means.startswith("size ") and (required or self._is_width_of_heads(name, means)):
                given[name] = self._size(means.removeprefix("size "), case)
        for name, parameter in self.subject.called.items():
            if parameter.default is True and "train" in name and call_meaning(name) == "off":
                given[name] = self.training  # as code says it that has no train() and eval()
        return given

    def _is_width_of_heads(self, name: str, means: str) -> bool:
        return is_width_of_heads(means, self.subject.called[name].default, self.subject.text, name)

    def tensors(self, case: Case) -> dict[str, Any]:
        """The tensors of a case by what they mean."""
        made: dict[str, Any] = {}
        if case.q is not None:
            for means, tensor in (("q", case.q), ("k", case.k), ("v", case.v)):
                assert tensor is not None
                made[means] = to_layout(tensor, self.way)
            if self.subject.has("x"):
                made["x"] = made["q"]
        else:
            assert case.x is not None
            context = case.context if case.context is not None else case.x
            values = case.values if case.values is not None else context
            for means, tensor in (("q", case.x), ("k", context), ("v", values)):
                made[means] = to_module_layout(tensor, self.way.layout)
            made["x"] = made["q"].clone()
            if case.context is not None:
                made["context"] = made["k"].clone()
            if case.weights is not None and self.subject.has("w_q"):
                for means, role in (("w_q", "q"), ("w_k", "k"), ("w_v", "v"), ("w_o", "out")):
                    matrix = getattr(case.weights, role)
                    if matrix is None:  # no output projection
                        continue
                    made[means] = (matrix.t() if self.stored == "in-out" else matrix).clone()
        if "cos" in case.extra:
            cos, sin = (case.extra[name][None] for name in ("cos", "sin"))  # type: ignore[index]
            made.update({"rope": (cos, sin), "cos": cos, "sin": sin})
        return made

    def _shaped(self, bias: Tensor) -> Tensor:
        """A bias with as many axes as the scores have."""
        axes = 4 if self.way.flat or self.module is not None else max(2, len(self.way.layout))
        while bias.ndim > axes:
            bias = bias[0]
        return bias.clone()

    def _mask(self, case: Case) -> Any:
        may = case.may
        assert may is not None
        queries = (case.q if case.q is not None else case.x).shape[-2]  # type: ignore[union-attr]
        whole = may.expand(-1, -1, queries, -1)
        shaped = {
            "bhqk": whole,
            "qk": whole[0, 0],
            "bqk": whole[:, 0],
            "hqk": whole[0],
            "bk": may[:, 0, 0],
            "b11k": may[:, :, :1],
            "b1k": may[:, 0, :1],
            "kb": may[:, 0, 0].t(),
            "k": may[0, 0, 0],
            "qkb1": whole[:, 0].permute(1, 2, 0)[..., None],
            "qk11": whole[0, 0][..., None, None],
        }[self.shape]
        try:
            return self.form.write(shaped.clone())
        except Exception as error:  # a mask of one axis is none of ours
            raise Failed(str(error)) from error

    def _open(self, means: str, case: Case) -> Any:
        """A mask that lets everyone attend."""
        if self.nothing is None or means not in ("mask", "padding", "bias"):
            return None
        x, k = (case.q, case.k) if case.q is not None else (case.x, case.x if case.context is None else case.context)
        assert x is not None
        assert k is not None
        sizes: tuple[int, ...] = (x.shape[-2], k.shape[-2])
        if means == "padding":
            sizes = (len(x), k.shape[-2])
        elif self.batched:
            sizes = (len(x), *sizes)
        return self.nothing.write(torch.ones(sizes, dtype=torch.bool))

    def _size(self, means: str, case: Case) -> Any:
        if case.q is not None:
            heads, width, tokens = case.q.shape[1], case.q.shape[-1], case.q.shape[2]
            model = heads * width
        else:
            if case.x is None or case.weights is None:
                raise Failed(f"no value is known for the argument of {means}: the number of heads is not known yet")
            heads, model, tokens = case.weights.heads, case.x.shape[-1], case.x.shape[1]
            width = model // heads
        known = {"heads": heads, "d_model": model, "d_head": width, "length": tokens, "dropout": 0.0, "d_out": model}
        if means not in known:
            raise Failed(f"no value is known for the argument of {means}")
        return known[means]

    def output(self, case: Case, result: Any) -> Tensor:
        """The first tensor of the shape of an output, in the definition's layout."""
        found = list(tensors_in(result))
        for which, layout in self.which or itertools.product(range(len(found)), self._layouts(case)):
            if which < len(found) and found[which].is_floating_point():
                if found[which].device.type != "cpu":
                    raise Failed(f"it returned a tensor on {found[which].device}; its inputs are on cpu")
                read = self._read(case, found[which].detach(), layout)
                if read is not None:
                    self.which[:] = [(which, layout)]
                    return read.to(torch.float64)
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in found) or "no tensor"
        raise Failed(f"it returned {shapes}")

    def _layouts(self, case: Case) -> tuple[str, ...]:
        if case.q is not None and "h" in self.way.layout:
            return tuple(dict.fromkeys((self.way.layout, "bthd", "bt(hd)")))
        return (self.way.layout,)

    def _read(self, case: Case, tensor: Tensor, layout: str) -> Tensor | None:
        if case.q is not None:
            assert case.v is not None
            batch, heads, queries, _ = case.q.shape
            try:
                read = from_layout(tensor, Way(layout, "", flat="(" in layout), heads)
            except RuntimeError:
                return None
            return read if read.shape == (batch, heads, queries, case.v.shape[-1]) else None
        assert case.x is not None
        return from_module_layout(tensor, layout, case.x)


def calls_with(call: ProbeCall, to: str, shapes: tuple[str, ...]) -> Iterator[ProbeCall]:
    """The same call with a mask in every form and shape."""
    for form in FORMS:
        for shape in shapes:
            yield replace(call, form=form, shape=shape, to=to)
