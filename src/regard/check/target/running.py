"""A call of a target that is known to run, and what is known of its arguments."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import source_of
from regard.check.target.double_precision import double_precision
from regard.check.target.errors import Failed, failed
from regard.check.target.fixed_arguments import handed_over_with
from regard.check.target.numpy_by_torch import as_array, as_tensor, names_short_floats, numpy_by_torch, with_its_arrays
from regard.check.target.preparation import copied
from regard.check.target.seeds import seeded
from regard.check.target.sizes import Sizes
from regard.check.target.steps import in_steps
from regard.check.target.token_ids import ids_left_out, other_ids, padding_id, without

__all__ = ["APPENDED", "Invocation", "Stream", "first_of_several", "tensors_in"]

APPENDED = "values (appended)"
"""The argument of `Invocation.completion`."""
SAME, SAME_ROUNDED = 1e-9, 1e-5
"""Outputs of numpy's functions and of PyTorch's; of code that rounds its numbers to float32, which ours keep."""


@dataclass(eq=False)
class Stream:
    """A tensor argument that holds a sequence of tokens."""

    argument: str
    """Its key in `Invocation.arguments`."""
    role: str
    """"x", "context", "q", "k", "v" or "ids"."""
    batch_axis: int | None
    token_axes: tuple[int, ...]
    """Usually one; (2, 3) for images (batch, channels, height, width)."""
    head_axis: int | None = None
    """Of a function of q, k and v with heads."""


@dataclass(eq=False)
class Invocation:
    """One way to call a target."""

    target: Any
    """A module (float64, evaluation mode, its parameters redrawn so that each has an effect) or a function."""
    arguments: dict[str, Any]
    positional: list[str]
    """The keys of the arguments that are given by their place, in order."""
    streams: list[Stream]
    packed: dict[str, list[str]] = field(default_factory=dict)
    """Arguments of the target that are a tuple or a dict of these, by name; those of its parts, in order."""
    rows: frozenset[str] = frozenset()
    """Arguments whose samples and tokens are one axis where they are handed over."""
    masks: list[str] = field(default_factory=list)
    """Arguments that may be a mask; in `arguments` only where they have to be given: then fully open."""
    causal_flags: list[str] = field(default_factory=list)
    lengths: list[str] = field(default_factory=list)
    """Arguments that say of each sample how many of its keys are no padding."""
    documents: list[str] = field(default_factory=list)
    """Arguments that say of each token which of several texts in one row it is of."""
    prefixes: list[str] = field(default_factory=list)
    """Arguments that say how many tokens of a row, or of each, are a prefix that is not masked causally."""
    boundaries: list[str] = field(default_factory=list)
    """Arguments that say where each of the sequences begins that are packed one after the other."""
    guessed: list[str] = field(default_factory=list)
    """Arguments that have to be given, and of which nothing tells what they are: their values are guesses."""
    by_errors: str = ""
    """Where nothing tells the shapes of its inputs: those that the errors of other calls asked for."""
    sizes: dict[str, int] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    """Sentences for the report."""
    arrays: bool = False
    """Whether it takes arrays of numpy."""
    is_watched: bool = False
    """Whether PyTorch's functions are called where it calls numpy's, so that its steps are seen."""
    gradients: bool = True
    """Whether it runs with gradients; without, where PyTorch refuses what it writes in place."""
    completion: Callable[[Any, Any], Any] | None = None
    """What is done with the result and with the argument `APPENDED`, of which the target knows nothing."""
    in_steps: bool = False
    """Whether it takes one token at a time, and is called with one after the other."""
    steps_from: str = ""
    """The argument that says how many tokens came before, of such a call; empty where none does."""
    carried: tuple[str, ...] = ()
    """The arguments of such a call that are given what the one before returned behind its output."""
    settings: UserSettings = field(default_factory=UserSettings)
    """PyTorch's settings during its calls."""
    square: bool = False
    """Whether calls run only with as many tokens as channels: what is right so may be right by accident."""
    two_widths: bool = False
    """Whether it is of a module that was told two widths which may have to be the same: its scale alone is judged."""
    switched_on: bool = False
    """Whether an option for positions is on that is off by default: only what is wrong with them is told."""
    resized: Callable[[Sizes], Iterator[Invocation]] = field(default=lambda _: iter(()))
    """The same call of other sizes, where it runs with them."""
    relaid: Callable[[bool], Iterator[Iterator[Invocation]]] = field(default=lambda _: iter(()))
    """For each other order of the same axes in which the target runs its calls; of one query as well, if told so."""

    @cached_property
    def paddings(self) -> dict[str, int]:
        """The id of padding in each of its sequences, if it is one of ids."""
        return {each.argument: padding_id(self.target, each.argument) for each in self.streams}

    @cached_property
    def left_out(self) -> dict[str, frozenset[int]]:
        """The ids that the code takes out of each of its sequences."""
        source = source_of(self.target)
        return {each.argument: ids_left_out(self.target, source, each.argument) for each in self.streams}

    def other_ids(self, argument: str, generator: torch.Generator) -> Tensor:
        """Another id for each token of one of its sequences."""
        ids, padding = self.arguments[argument], self.paddings[argument]
        vocab = int(self.sizes.get("vocab", 0))
        others = other_ids(ids, vocab, generator, padding)
        return without(others, self.left_out[argument], padding, vocab or int(ids.max()) + 1)

    def tokens_of(self, stream: Stream) -> int:
        """How many tokens one of its sequences has, along the first of its axes of tokens: 1 if it is one vector."""
        return int(self.arguments[stream.argument].shape[stream.token_axes[0]]) if stream.token_axes else 1

    def run(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        target: Any = None,
        watch: Callable[[Mapping[str, Any]], AbstractContextManager[object]] | None = None,
        shared: Collection[str] = (),
    ) -> Any:
        """Call a deep copy of the target with copies of the tensors, in float64.

        Args:
            arguments: others than its own.
            seed: of PyTorch's random numbers, as of dropout.
            target: a copy of the target that is called itself, without another copy.
            watch: of the arguments as they are handed over, what surrounds the call and nothing else.
            shared: arguments that are handed over themselves, not as copies.

        Raises:
            Failed: it raised; with the text.
        """
        given = dict(self.arguments if arguments is None else arguments)
        by_torch = numpy_by_torch(self.target) if self.is_watched else contextlib.nullcontext()
        with seeded(seed), self.settings.on(), _quiet(), double_precision() as mode, self._graded(), by_torch:
            try:
                given = {name: value if name in shared else self.handed_over(value) for name, value in given.items()}
                target = copied(self.target) if target is None else target
                target = with_its_arrays(target) if self.is_watched else target
                target = handed_over_with(target, self.handed_over)
                around = (
                    contextlib.nullcontext()
                    if watch is None
                    else watch({name: as_tensor(value) for name, value in given.items()})
                )
                given |= {name: _as_one(given, parts) for name, parts in self.packed.items()}
                appended = given.pop(APPENDED, None)
                mode.calls = 0
                if self.in_steps:
                    (stream,) = self.streams
                    axis = stream.token_axes[0]
                    target = in_steps(target, stream.argument, axis, self.steps_from, self.carried)
                with around:
                    given |= {name: given[name].flatten(0, 1) for name in self.rows if name in given}
                    positional = [given.pop(name) for name in self.positional if name in given]
                    result = target(*positional, **given)
                    return result if self.completion is None else self.completion(result, appended)
            except Exception as error:
                raise failed(error, mode.calls) from error

    def watched(self) -> Invocation:
        """The same call of code that computes with numpy, by PyTorch's functions; itself where these give another."""
        if not self.arrays:
            return self
        other = replace(self, is_watched=True)
        try:
            mine, its = (each.outputs(each.run()) for each in (self, other))
        except Failed:
            return self
        gap = SAME_ROUNDED if names_short_floats(self.target) else SAME
        is_same = len(mine) == len(its) and all(
            one.shape == two.shape and torch.allclose(one, two.to(one.dtype), rtol=gap, atol=gap, equal_nan=True)
            for one, two in zip(mine, its, strict=False)
        )
        return other if is_same else self

    def _graded(self) -> AbstractContextManager[object]:
        return torch.set_grad_enabled(self.gradients)

    def outputs(self, result: Any) -> list[Tensor]:
        """Every float tensor of a result, in order; arrays of numpy as tensors.

        One number alone, such as a loss, which all samples and tokens make, comes behind what has axes.
        """
        found = [each for each in tensors_in(result) if each.is_floating_point() or each.is_complex()]
        return sorted(found, key=lambda each: each.ndim == 0)

    def handed_over(self, value: Any) -> Any:
        """A copy of an argument: what is written into it stays with the call."""
        if isinstance(value, Tensor):
            if self.is_watched:
                return as_array(value.detach().clone())
            return value.detach().numpy().copy() if self.arrays else value.clone()
        if type(value) in (list, tuple):
            return type(value)(self.handed_over(each) for each in value)
        if isinstance(value, dict):
            return type(value)({name: self.handed_over(each) for name, each in value.items()})
        return copy.deepcopy(value)


class _Fields(dict[str, Any]):
    """A dict that answers by attributes as well, as an object with fields does."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


def _as_one(given: dict[str, Any], parts: list[str]) -> Any:
    """The parts of an argument, which are arguments no more: those that have a name in it, as weights.q, by this."""
    if "." in parts[0]:
        return _Fields({name.partition(".")[2]: given.pop(name) for name in parts})
    return tuple(given.pop(part) for part in parts)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Neither warnings nor prints of the user's code."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def tensors_in(result: Any) -> Iterator[Tensor]:
    """Every tensor that a call returned, the first one first; numpy's arrays too."""
    result = as_tensor(result)
    if isinstance(result, Tensor):
        yield _plain(result)
    elif isinstance(result, Mapping):
        for each in result.values():
            yield from tensors_in(each)
    elif isinstance(result, list | tuple):
        for each in result:
            yield from tensors_in(each)
    elif is_dataclass(result) and not isinstance(result, type):
        yield from tensors_in([getattr(result, each.name) for each in fields(result)])
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(result, numpy.ndarray | numpy.generic):
        with contextlib.suppress(TypeError):  # of texts or objects
            yield torch.tensor(result)


def _plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor: what a class of the user's own makes of an operation is not what it returned."""
    if type(tensor) is Tensor:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def first_of_several(result: Any, _: Any) -> Any:
    """The output of a call that returns something behind it, as the `completion` of an invocation."""
    return result[0] if isinstance(result, list | tuple) and result else result
