"""A call whose shapes nothing tells is found by its errors: each says which axes are as long as which."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import Argument, source_of
from regard.check.target.call_search import FAR, CallPlan
from regard.check.target.errors import Failed
from regard.check.target.layouts import layouts
from regard.check.target.looked_up import are_joined
from regard.check.target.parse import parse_inputs
from regard.check.target.preparation import modules_in
from regard.check.target.running import Invocation, Stream
from regard.check.target.shape_errors import LastOperation, repairs_of
from regard.check.target.shape_guess import ShapeGuess
from regard.check.target.signature import readings
from regard.check.target.sizes import Sizes
from regard.check.target.user_inputs import UserInputs
from regard.check.time_limit import is_over

__all__ = ["SEQUENCE_LETTERS", "inferred_plans", "of_letters"]

MAX_WIDTHS = 4
"""Of the module's that are tried."""
MAX_RUNS = 80
"""Calls that are tried."""
SAMPLES = 2
"""Of the call that is found."""
KINDS = {"mask": "marks", "padding": "marks", "lengths": "lengths"}
"""Of arguments, by their roles."""
LENGTHS = re.compile(r"len(?:gth)?s?$")
"""Names of how many tokens of each sample are no padding."""
_OF_ONE_TOKEN = re.compile(r"\.(?:view|reshape)\(\s*1\s*,\s*1\s*,\s*-1\s*\)")
"""What code does with the vector of one token of one sample."""
SEQUENCE_LETTERS = "TS"
"""Of the axes of which nothing but that they are is known."""


@dataclass(eq=False)
class _Shapes:
    """The search for the shapes of one reading of the arguments."""

    plan: CallPlan
    target: Any
    sizes: Sizes
    settings: UserSettings
    runs: int = 0

    def start(self) -> tuple[ShapeGuess, dict[str, Any]] | None:
        """The first guess, and arguments that are no tensors."""
        try:
            invocation = self.plan.invocation(self.target, self.sizes)
        except Failed:
            return None
        shapes = [
            tuple(each.shape)
            for module in modules_in(self.target)
            for each in (*module.parameters(), *module.buffers())
        ]
        counts = Counter(size for shape in shapes for size in shape[-1:] if size > 1)
        taken = frozenset(size for shape in shapes for size in shape)
        taken |= {self.sizes.d_model, self.sizes.d_head, self.sizes.heads}
        widths = tuple(size for size, _ in counts.most_common(MAX_WIDTHS))
        kinds = {each.name: kind for each in self.plan.arguments if (kind := KINDS.get(each.role or ""))}
        kinds |= {
            each.name: "lengths" for each in self.plan.arguments if each.role is None and LENGTHS.search(each.name)
        }
        guess = ShapeGuess({}, {}, taken=taken, widths=widths, kinds_of_absent=kinds)
        fixed: dict[str, Any] = {}
        absent = []
        for each in self.plan.arguments:
            value = invocation.arguments.get(each.name)
            if value is None and (each.required or each.default is None):
                absent.append(each.name)
            elif value is not None and (not isinstance(value, Tensor) or each.within):
                guess = replace(guess, kinds={**guess.kinds, each.name: "plain"})
            elif value is not None:
                kind = "numbers" if value.is_floating_point() else "marks" if value.dtype.itemsize == 1 else "ids"
                others = guess.fresh(value.ndim)
                first = [guess.batch] if value.ndim > 1 else others[-1:]
                axes = {**guess.axes, each.name: [*first[: value.ndim], *others[: value.ndim - 1]]}
                vocab = {**guess.vocab, each.name: int(value.max()) + 1} if kind == "ids" else guess.vocab
                guess = replace(guess, axes=axes, kinds={**guess.kinds, each.name: kind}, vocab=vocab)
            if each.name in invocation.arguments and (value is None or guess.kinds[each.name] == "plain"):
                fixed[each.name] = value
        return replace(guess, absent=tuple(absent)), fixed

    def found(self) -> ShapeGuess | None:
        """The first guess with which it runs."""
        started = self.start()
        if started is None:
            return None
        guess, fixed = started
        # What came farthest is repaired next, and of several the last one: a repair may need another behind it.
        waiting, seen = [(0, 0, 0, guess)], {guess.key}
        if _OF_ONE_TOKEN.search(self.plan.source):
            waiting.append((0, 0, 1, guess.of_one_token()))
        with_other_samples = dict[Any, ShapeGuess]()
        while waiting and self.runs < MAX_RUNS and not is_over():
            *_, guess = heapq.heappop(waiting)
            values = guess.values()
            if values is None:
                continue
            self.runs += 1
            last = LastOperation()
            positional = [each.name for each in self.plan.arguments if each.positional and each.name in values | fixed]
            invocation = Invocation(self.target, {**fixed, **values}, positional, [], settings=self.settings)
            try:
                with last:
                    result = invocation.run()
            except Failed as failed:
                error = failed.__cause__
                progress = failed.progress + FAR * (guess.batch == SAMPLES)  # with more samples it ran to its end
                repairs = repairs_of(error, guess, last) if isinstance(error, Exception) else ()
                for number, each in enumerate(repairs):
                    if each.key not in seen:
                        seen.add(each.key)
                        heapq.heappush(waiting, (-progress, -self.runs, number, each))
                continue
            if not any(each.numel() > 1 for each in invocation.outputs(result)):
                continue
            if guess.batch == SAMPLES:  # as few as other axes may be long: how many there were before tells them apart
                return with_other_samples.get(guess.key, guess)
            few = guess.of_samples(SAMPLES)
            with_other_samples[few.key] = guess
            heapq.heappush(waiting, (-FAR, -self.runs, 0, few))
        return None


def inferred_plans(
    target: Any, sizes: Sizes, settings: UserSettings, max_layouts: int
) -> Iterator[tuple[CallPlan, str]]:
    """Plans of calls whose shapes errors ask for, and these, as `parse_inputs` reads them.

    First with the masks of a call that ran, then without them: of these other forms may be meant.

    Args:
        target: what is called.
        sizes: that it was made for.
        settings: PyTorch's settings during its calls.
        max_layouts: from how many layouts of each reading of its arguments the search begins.
    """
    source = source_of(target)
    for arguments in readings(target):
        for layout in layouts(target, arguments)[:max_layouts]:
            plan = CallPlan(arguments, layout, source, settings=settings)
            found = _Shapes(plan, target, sizes, settings).found()
            if found is None:
                continue
            lengths = {name for name, kind in found.kinds.items() if kind == "lengths"}
            texts = [_written(found, plan, sizes, with_masks=each) for each in (True, False)]
            for text in dict.fromkeys(texts):
                inputs = UserInputs(factory=parse_inputs(text), rows=found.rows)
                for reading in readings(target, inputs.of(sizes)):
                    told = [replace(one, role="lengths") if one.name in lengths else one for one in reading]
                    told = _asked_by_a_state(target, told, _letters(text))
                    yield CallPlan(told, layout, source, user_inputs=inputs, settings=settings), text


def of_letters(stream: Stream, invocation: Invocation) -> Stream:
    """The stream with the axes that the letters of its shape say; one vector of each sample has no axis of tokens.

    Args:
        stream: of a call whose shapes errors told.
        invocation: the call.
    """
    told = _letters(invocation.by_errors)
    letters = told.get(stream.argument, ())
    has_tokens = bool({*letters} & {*SEQUENCE_LETTERS})
    if letters[-1:] == ["D"] and not has_tokens and not any("B" in each for each in told.values()):  # of one sample
        return replace(stream, batch_axis=None, token_axes=(0,) if len(letters) == len("td") else ())
    tokens = tuple(axis for axis, each in enumerate(letters) if each in SEQUENCE_LETTERS)
    others = [invocation.arguments[each.argument] for each in invocation.streams if each is not stream]
    is_alone = not tokens and any(each.ndim > 2 for each in others)
    is_told = letters.count("B") == 1 and invocation.arguments[stream.argument].is_floating_point()
    if not is_told or not (len(tokens) == 1 or is_alone):
        return stream
    return replace(stream, batch_axis=letters.index("B"), token_axes=tokens)


def _letters(text: str) -> dict[str, list[str]]:
    """The axes of each tensor that `_written` told, as letters or numbers; rows of all samples are not told apart."""
    told = re.findall(r"(\w+)=\w*\(([^()]*?),?\)", text)
    return {name: re.split(r",\s*|\s*\*\s*", axes) for name, axes in told}


def _asked_by_a_state(target: Any, arguments: list[Argument], letters: Mapping[str, list[str]]) -> list[Argument]:
    """The arguments; beside an x that is one vector of each sample, what has tokens is asked, and another state is not.

    Of several that are joined, token by token, the first one is what is asked: the others stand beside it.

    Args:
        target: what is called.
        arguments: of a call whose shapes errors told.
        letters: their axes.
    """

    def has_tokens(argument: Argument) -> bool:
        return bool({*letters.get(argument.name, ())} & {*SEQUENCE_LETTERS})

    asking = [each for each in arguments if each.role == "x"]
    if len(asking) != 1 or asking[0].name not in letters or has_tokens(asking[0]):
        return arguments
    roles = {
        each.name: "context" if has_tokens(each) else "given"
        for each in arguments
        if each.role in ("context", "given", None) and len(letters.get(each.name, ())) > len("bt")
    }
    asked = [name for name, role in roles.items() if role == "context"]
    beside = [each for at, each in enumerate(asked) if any(are_joined(target, one, each) for one in asked[:at])]
    roles |= dict.fromkeys(beside, "given")
    return [replace(each, role=roles.get(each.name, each.role)) for each in arguments]


def _written(guess: ShapeGuess, plan: CallPlan, sizes: Sizes, *, with_masks: bool) -> str:
    """The sequences, and what nothing tells, in the letters of `parse_inputs`."""
    letters: dict[int, str] = {guess.batch: "B", sizes.d_model: "D"}
    count = len(letters)
    for size in (size for axes in guess.axes.values() for size in axes):
        if guess.is_own(size) and size not in letters and len(letters) - count < len(SEQUENCE_LETTERS):
            letters[size] = SEQUENCE_LETTERS[len(letters) - count]
    told = []
    for each in plan.arguments:
        kind = guess.kinds.get(each.name, "plain")
        if kind in ("plain", "lengths") or ((each.role or "") in KINDS and not with_masks):
            continue
        axes = ", ".join(_letter(size, guess, letters) for size in guess.axes.get(each.name, []))
        if kind == "number":
            told.append(f"{each.name}=1")
        elif kind == "ids":
            told.append(f"{each.name}=ids({axes}, {max(1, guess.vocab.get(each.name, 2))})")
        elif kind == "marks":
            told.append(f"{each.name}=true({axes})")
        else:
            told.append(f"{each.name}=({axes},)")
    return ", ".join(told)


def _letter(size: int, guess: ShapeGuess, letters: Mapping[int, str]) -> str:
    """The size of an axis as a letter, as a product of two, or as it is."""
    pair = None if guess.is_own(size) else guess.factors(size)
    if pair is not None and {*pair} <= {*letters}:
        return f"{letters[pair[0]]} * {letters[pair[1]]}"
    return letters.get(size, str(size))
