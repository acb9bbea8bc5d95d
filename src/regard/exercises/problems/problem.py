"""What an exercise is held against: its calls, the definition's result, and variants of it that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.check.report import FoundMistake

__all__ = [
    "MISFIT",
    "Call",
    "ModuleWeightsMissing",
    "OwnMistake",
    "Problem",
    "Variant",
    "function_call",
    "made",
    "no_trail",
    "variants_of",
]

MISFIT = (RuntimeError, IndexError, ValueError, KeyError, TypeError, AssertionError)
"""What a variant raises where the shapes of a call do not fit; code with this mistake raises there as well."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of what the learner wrote."""

    setting: str
    """The inputs in words: "the course's numbers", "random numbers, x (5, 4)"."""
    args: tuple[Any, ...]
    init: tuple[Any, ...] = ()
    """Arguments of the constructor, where a class is asked for."""
    seed: int = 42
    """With which its parameters are drawn; of any call but that of the course they are drawn again, norms as well."""
    is_course: bool = False


class ModuleWeightsMissing(Exception):
    """The learner's module has not the parts that the stub makes, with which the definition is computed."""


@runtime_checkable
class Variant(Protocol):
    """The definition with one or more mistakes."""

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Their ids."""

    def output(self, args: tuple[Any, ...]) -> Any:
        """What code with these mistakes returns.

        Raises:
            one of `MISFIT`: it raises as well.
        """

    def trails(self, args: tuple[Any, ...]) -> Iterable[list[Tensor]]:
        """For each mistake, the tensors of the step where it shows, which the learner's line makes too."""

    def found(self, args: tuple[Any, ...]) -> tuple[FoundMistake, ...]:
        """The mistakes in words, with the numbers of a call."""


@dataclass(frozen=True, eq=False)
class OwnMistake:
    """A mistake of one exercise, with the function that makes it."""

    id: str
    step: str
    message: str
    """What is wrong, in one sentence; it does not say what to write."""
    impact: str
    """What that does."""
    compute: Callable[..., Any]
    """The definition with the mistake, of the arguments of a call."""
    trail: Callable[..., list[Tensor]] | None = None
    """The tensors of the step in which it shows; by default none where there is a pattern, and else its result."""
    pattern: str = ""
    """A regular expression of a line that makes it, for code of which no tensor is seen."""

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Its id."""
        return (self.id,)

    def output(self, args: tuple[Any, ...]) -> Any:
        """What code with this mistake returns."""
        return self.compute(*args)

    def trails(self, args: tuple[Any, ...]) -> Iterable[list[Tensor]]:
        """The tensors of its step."""
        if self.trail is not None:
            yield self.trail(*args)
        elif self.pattern:
            yield []  # the line that reads so tells more than the one that makes the result
        else:
            output = self.compute(*args)
            yield [each for each in (output if isinstance(output, tuple) else (output,)) if isinstance(each, Tensor)]

    def found(self, args: tuple[Any, ...]) -> tuple[FoundMistake, ...]:
        """The mistake in words."""
        return (FoundMistake(self.id, self.step, self.message, self.impact),)


def no_trail(*_args: Any) -> list[Tensor]:
    """No tensors: of a mistake that shows in no numbers of its own, or in the same numbers in another order."""
    return []


Run = Callable[[Any, Call], tuple[Callable[[], Any], tuple[Any, ...]]]
"""Of what the learner wrote and a call: what runs it, and the arguments of the definition."""


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in args)


def function_call(learner: Any, call: Call) -> tuple[Callable[[], Any], tuple[Any, ...]]:
    """A call of a function: it gets the arguments of the definition."""
    return lambda: learner(*_copied(call.args)), call.args


def made(learner: Any, call: Call, parts: Mapping[str, type]) -> nn.Module:
    """The learner's module with the parameters of a call.

    The parameters are drawn in float32, as in the course, and then float64.

    Args:
        learner: a class.
        call: whose `init` its constructor gets.
        parts: the attributes that the definition is computed with, and what they have to be.

    Raises:
        ModuleWeightsMissing: it lacks one of the parts.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        torch.manual_seed(call.seed)
        module = learner(*call.init)
    finally:
        torch.set_default_dtype(before)
    for name, kind in parts.items():
        if not isinstance(getattr(module, name, None), kind):
            raise ModuleWeightsMissing(
                f"its {name} is no {kind.__name__}: leave the __init__ of the stub as it is, and write the forward"
            )
    module = module.double().eval()
    if not call.is_course:
        generator = torch.Generator().manual_seed(call.seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Problem:
    """What an exercise is held against."""

    calls: Callable[[], list[Call]]
    """The course's first. Sizes differ, so that no two axes can be taken for one another; in one call they coincide."""
    right: Callable[..., Any]
    """The definition's result, of the arguments of a call: a tensor, or a tuple of them."""
    variants: Callable[[], Iterable[Variant]]
    """The more specific ones first: the first that gives the learner's numbers is told."""
    names: tuple[str, ...] = ()
    """Of the results, where there are several."""
    run: Run = function_call
    is_attention: bool = False
    """Whether `regard.check` can judge what the learner wrote, where no variant explains it."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """A regular expression of the learner's line for mistakes of the bank, by their ids."""


def variants_of(*mistakes: OwnMistake) -> Callable[[], Iterable[Variant]]:
    """The variants of a problem that has none of the bank's."""
    return lambda: mistakes
