"""What an error asks of the shapes of a call: the axis, the number of axes or the kind of numbers that would fit."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.target.shape_guess import ShapeGuess
from regard.check.target.stopped_lines import Place, condition_around, evaluated, statement_of, stopped

__all__ = ["LastOperation", "repairs_of"]

_TWO_SIZES = (
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
    re.compile(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)"),
    re.compile(r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"),
    re.compile(r"has size (\d+) for operand \d+ which does not broadcast with previously seen size (\d+)"),
    re.compile(r"Expected size (\d+) but got size (\d+)"),
    re.compile(r"size mismatch, got input \(\d+\), mat \(\d+x(\d+)\), vec \((\d+)\)"),
    re.compile(r"to have (\d+) channels, but got (\d+) channels"),
    re.compile(r"split_sizes to sum exactly to (\d+) \(input tensor's size at dimension -?\d+\), but got .*?(\d+)"),
)
_TWO_MATRICES = re.compile(r"batch2 tensor to be: \[(\d+), (\d+)\] but got: \[(\d+), (\d+)\]")
_NORMED = re.compile(r"normalized_shape=\[(\d+)\].* got input of size\[(?:\d+, )*(\d+)\]")
_OUT_OF_BOUNDS = re.compile(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)")
_UNPACKED = re.compile(r"(?:not enough|too many) values to unpack \(expected (\d+)")
_AXES = (
    re.compile(r"input\.dim\(\) = (?P<has>\d+) is not equal to len\(dims\) = (?P<needs>\d+)"),
    re.compile(r"equation \((?P<needs>\d+)\) does not match the number of dimensions \((?P<has>\d+)\)"),
    re.compile(r"must be a (?P<needs>\d+)D tensor"),
    re.compile(r"Expected (?P<needs>\d+)D .*input to conv"),
    re.compile(r"(?:number of sizes provided \((?P<needs>\d+)\) must be greater or equal).*tensor \((?P<has>\d+)\)"),
    re.compile(r"too many indices for tensor of dimension (?P<has>\d+)"),
)
_OUT_OF_RANGE = re.compile(r"Dimension out of range \(expected to be in range of \[-\d+, (\d+)\], but got (-?\d+)\)")
_OF_IDS = re.compile(r"indices.*(?:Long|Int)|tensors used as indices must be|dtype int64 for index")
_OF_MARKS = re.compile(r"boolean mask|condition.* to be a boolean|bitwise_\w+ not implemented|only supports bool|'~'")
_OF_ONE_NUMBER = re.compile(
    r"Boolean value of Tensor with more than one value|only integer tensors of a single element|"
    r"cannot be interpreted as an integer|must be tuple of ints|slice indices must be integers|"
    r"only one element tensors can be converted|a Tensor with \d+ elements cannot be converted"
)
_OF_NONE = re.compile(r"NoneType|got \(bool|'bool' object has no attribute")
"""Of an argument that is left out, or of what it was compared with."""
_PATTERN = re.compile(
    r"pattern \"(?P<left>[^\"]*?)(?:->[^\"]*)?\"\.\s+Input tensor shape: torch\.Size\(\[(?P<shape>[\d, ]*)\]\)"
)
_EINOPS_AXIS = re.compile(r"\([^)]*\)|[^\s()]+")
_IN_PARTS = re.compile(r"can't divide axis of length (\d+) in chunks of (\d+)")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_STATE = re.compile(r"Expected hidden(?:\[\d\])? size \((?P<wanted>[\d, ]+)\), got \[(?P<got>[\d, ]+)\]")
"""Of what a recurrent layer was handed as its state."""
_AXES_OF_STATE = re.compile(r"hx should also be (\d)-D but got (\d)-D")
_EXPANDED = re.compile(r"^expand\(.*, size=(\[[\d, ]+\])\)")
"""The shape that was to be taken on, as that of another argument."""
PARTS = 4
"""How wide each is, where an axis is cut into several."""


@dataclass(eq=False)
class LastOperation(torch.overrides.TorchFunctionMode):
    """Inside, the shapes of the tensors that the function of PyTorch was given which raised."""

    shapes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    """The whole numbers that it was given beside them, as those of a view."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            given = list(_flat((*args, *(kwargs or {}).values())))
            self.shapes = tuple(tuple(each.shape) for each in given if isinstance(each, Tensor))
            self.sizes = tuple(each for each in given if type(each) is int)
            raise


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, list | tuple):
            yield from _flat(each)
        else:
            yield each


def repairs_of(error: Exception, guess: ShapeGuess, last: LastOperation) -> Iterator[ShapeGuess]:
    """Other guesses of the shapes, by what an error says, the likeliest first.

    Args:
        error: what a call with the guess raised.
        guess: the shapes and kinds of its arguments; the sizes of its axes tell where a size in the error is from.
        last: the operation that raised, if one did.
    """
    text = str(error).splitlines()[0] if str(error) else ""
    places = stopped(error)
    place = places[0] if places else None
    named = list(dict.fromkeys(name for each in places for name in _named(each, guess)))
    yield from _of_kinds(text, guess, last, named)
    yield from _of_axes(text, guess, last, named, place)
    yield from _of_states(text, guess, named)
    yield from _of_einops(str(error), guess, named)
    yield from _of_broadcasting(text, guess, last, named)
    # What is neither an axis of an argument nor of the module is made of several: likelier than that is all else.
    several = list(_of_sizes(text, guess, last))
    yield from (each for each in several if each.are_known)
    if place is not None:
        yield from _of_conditions(error, guess, place)
    if _OF_NONE.search(text) or isinstance(error, AssertionError):
        for wanted in ([each for each in guess.absent if each in named], list(guess.absent)):
            if wanted:
                yield guess.given(wanted)
    yield from (each for each in several if not each.are_known)
    if "'int' object" in text or "'float' object" in text or "'bool' object" in text:
        for name in named:
            if guess.kinds.get(name) == "plain":
                yield guess.of_kind(name, "lengths")
    if "'tuple' object" in text or "tuple indices" in text:
        for name in named:
            if guess.kinds.get(name) == "plain":
                yield guess.of_kind(name, "numbers")


# Kinds of numbers. ----------------------------------------------------------------------------------------------------


def _of_kinds(text: str, guess: ShapeGuess, last: LastOperation, named: list[str]) -> Iterator[ShapeGuess]:
    """Arguments that hold ids, marks, or one number."""
    if _OF_IDS.search(text):
        table = next((each[0] for each in last.shapes if len(each) == 2), 0) if "indices" in text else 0
        for name in _arguments_of(last.shapes[:1] or last.shapes, guess, named):
            yield guess.of_kind(name, "ids", vocab=table)
            return
        for name in named:
            yield guess.of_kind(name, "ids", vocab=table)
    elif _OF_MARKS.search(text):
        for name in [*_arguments_of(last.shapes[1:2] or last.shapes, guess, named), *named]:
            yield guess.of_kind(name, "marks")
    elif _OF_ONE_NUMBER.search(text):
        for name in named:
            if guess.kinds.get(name) != "number":
                yield guess.of_kind(name, "number")


# Numbers of axes. -----------------------------------------------------------------------------------------------------


def _of_axes(
    text: str, guess: ShapeGuess, last: LastOperation, named: list[str], place: Place | None
) -> Iterator[ShapeGuess]:
    """Arguments that have more axes, or fewer."""
    unpacked = _UNPACKED.search(text)
    if unpacked is not None and place is not None:
        yield from _of_unpacked(int(unpacked[1]), guess, place, named)
    for pattern in _AXES:
        found = pattern.search(text)
        if found is None:
            continue
        told = found.groupdict()
        for shape in last.shapes:
            has = int(told.get("has") or len(shape))
            needs = int(told.get("needs") or has + 1)
            if len(shape) == has != needs:
                several = _arguments_of([shape], guess, named)
                yield from (guess.with_axes(name, len(guess.axes[name]) + needs - has) for name in several)
                if has > needs:  # the code may squeeze one out
                    yield from (each for name in several for each in _with_one(name, shape, guess))
                    as_long = [int(each) for size in _EXPANDED.findall(text) for each in _NUMBER.findall(size)]
                    yield from (guess.with_axes(name, has) for name, axes in guess.axes.items() if axes == as_long)
    out = _OUT_OF_RANGE.search(text)
    if out is not None and last.shapes:
        wanted = int(out[2]) + 1 if int(out[2]) >= 0 else -int(out[2])
        for name in _arguments_of(last.shapes[:1], guess, named):
            yield guess.with_axes(name, len(guess.axes[name]) + wanted - int(out[1]) - 1)
    if "same number of dimensions" in text:
        counts = sorted({len(each) for each in last.shapes})
        for wanted in counts:  # fewer first
            for shape in last.shapes:
                for name in _arguments_of([shape], guess, named) if len(shape) != wanted else ():
                    yield guess.with_axes(name, len(guess.axes[name]) + wanted - len(shape))


def _with_one(name: str, shape: tuple[int, ...], guess: ShapeGuess) -> Iterator[ShapeGuess]:
    """With an axis of one for each of which nothing is known, and which a tensor has as well."""
    for axis, size in enumerate(guess.axes[name]):
        if guess.is_own(size) and size != guess.batch and size in shape:
            yield guess.with_size(name, axis, 1)


def _of_states(text: str, guess: ShapeGuess, named: list[str]) -> Iterator[ShapeGuess]:
    """By what a recurrent layer says of the state that it was handed."""
    found, axes = _STATE.search(text), _AXES_OF_STATE.search(text)
    if found is not None:
        wanted, got = ([int(each) for each in _NUMBER.findall(found[which])] for which in ("wanted", "got"))
        yield from (guess.of_axes(name, wanted) for name, sizes in guess.axes.items() if sizes == got)
    if axes is not None:
        several = (name for name in named if len(guess.axes.get(name, ())) == int(axes[2]))
        yield from (guess.with_axes(name, int(axes[1])) for name in several)


def _of_unpacked(count: int, guess: ShapeGuess, place: Place, named: list[str]) -> Iterator[ShapeGuess]:
    """By a line that gives names to the sizes, or to the parts, of a tensor."""
    statement = statement_of(place)
    value = getattr(statement, "value", None) or getattr(statement, "iter", None)
    found = evaluated(value, place)
    if isinstance(found, Tensor):
        for name in _arguments_of([tuple(found.shape)], guess, named):
            for axis, size in enumerate(guess.axes[name]):
                if size == found.shape[0]:
                    yield guess.with_size(name, axis, count)
    elif isinstance(found, tuple | list) and all(type(each) is int for each in found):
        several = [*_arguments_of([tuple(found)], guess, named), *(each for each in named if each in guess.axes)]
        for name in several:
            yield guess.with_axes(name, len(guess.axes[name]) + count - len(found))


def _of_einops(text: str, guess: ShapeGuess, named: list[str]) -> Iterator[ShapeGuess]:
    """By the axes that a pattern of einops names."""
    found = _PATTERN.search(text)
    if found is None:
        return
    shape = tuple(int(each) for each in _NUMBER.findall(found["shape"]))
    wanted = len(_EINOPS_AXIS.findall(found["left"]))
    if wanted != len(shape) and "..." not in found["left"]:
        for name in _arguments_of([shape], guess, named):
            yield guess.with_axes(name, len(guess.axes[name]) + wanted - len(shape))
    parts = _IN_PARTS.search(text)
    if parts is not None:
        yield from guess.with_equal(int(parts[1]), PARTS * int(parts[2]))


# Sizes. ---------------------------------------------------------------------------------------------------------------


def _of_sizes(text: str, guess: ShapeGuess, last: LastOperation) -> Iterator[ShapeGuess]:
    """Axes that are as long as others, or as a table of the module is."""
    bounds = _OUT_OF_BOUNDS.search(text)
    if bounds is not None:
        yield from guess.with_equal(int(bounds[2]), int(bounds[1]) + 1)
    if "index out of range" in text and (rows := next((each[0] for each in last.shapes if len(each) == 2), 0)):
        yield from (guess.of_kind(name, "ids", vocab=rows) for name, kind in guess.kinds.items() if kind == "ids")
    if "is invalid for input of size" in text and last.shapes:
        yield from _of_a_view(guess, last.shapes[0], last.sizes)
    two = _TWO_MATRICES.search(text)
    if two is not None:
        for one, other in ((two[1], two[3]), (two[2], two[4])):
            if one != other:
                yield from guess.with_equal(int(other), int(one))
                yield from _of_joined(int(other), int(one), guess)
    for pattern in (*_TWO_SIZES, _NORMED):
        found = pattern.search(text)
        if found is not None:
            yield from guess.with_equal(int(found[1]), int(found[2]))
            yield from _of_joined(int(found[1]), int(found[2]), guess)
            yield from _of_two_alike(int(found[1]), int(found[2]), guess)
            return
    numbers = list(dict.fromkeys(int(each) for each in _NUMBER.findall(text)))
    known = [each for each in numbers if guess.is_own(each)]
    if len(known) == 1 and len(numbers) > 1:
        for other in numbers:
            if other != known[0] and other > 1:
                yield from guess.with_equal(known[0], other)


def _of_joined(size: int, wanted: int, guess: ShapeGuess) -> Iterator[ShapeGuess]:
    """Where a size is that of several axes joined: with the one of which nothing is known as long as the rest wants."""
    known = {each for axes in guess.axes.values() for each in axes}
    for each in sorted(known) if size not in known else ():
        if guess.is_own(each) and each != guess.batch and each + wanted - size in guess.taken:
            yield from guess.with_equal(each, each + wanted - size)


def _of_two_alike(one: int, other: int, guess: ShapeGuess) -> Iterator[ShapeGuess]:
    """Where a size is that of the vectors of two arguments joined: each is half as wide as what is wanted."""
    last = [axes[-1] for axes in guess.axes.values() if len(axes) > 1 and guess.is_own(axes[-1])]
    for size, wanted in ((one, other), (other, one)):
        for first, second in itertools.combinations(last, 2):
            if first + second == size and wanted % 2 == 0 and wanted // 2 in guess.taken:
                for half in guess.with_equal(first, wanted // 2):
                    yield from half.with_equal(second, wanted // 2) if second != first else (half,)


def _of_broadcasting(text: str, guess: ShapeGuess, last: LastOperation, named: list[str]) -> Iterator[ShapeGuess]:
    """Arguments with an axis more, or fewer, than what they are added to, or multiplied by."""
    sizes = _TWO_SIZES[0].search(text)
    if sizes is None or len(last.shapes) < 2:
        return
    for one, other in ((int(sizes[1]), int(sizes[2])), (int(sizes[2]), int(sizes[1]))):
        pair = guess.factors(one)
        for name, axes in guess.axes.items():
            if pair is not None and math.prod(axes) == other and len(axes) > 1:
                yield guess.of_axes(name, [*pair])
    for own, width in ((int(sizes[1]), int(sizes[2])), (int(sizes[2]), int(sizes[1]))):
        for name, axes in guess.axes.items():  # marks have one for each token, not for each channel
            if guess.kinds[name] == "marks" and own in axes and own != guess.batch and width in guess.taken:
                yield guess.of_axes(name, [1 if each == own else each for each in axes])
    short, long = sorted(last.shapes[:2], key=len)
    if len(short) == len(long):
        return
    if short and short[0] == long[0] and short != long[: len(short)]:  # both are of samples, or of these and heads
        changed = [
            (abs(len(guess.axes[name]) - len(shape)), guess.with_axes(name, len(guess.axes[name]) + step))
            for shape, step in ((short, 1), (long, -1))
            for name in _arguments_of([shape], guess, named)
        ]
        yield from (each for _, each in sorted(changed, key=lambda pair: pair[0]))
    is_beginning = short == long[: len(short)]
    flat = [size for size in short if not guess.is_own(size) and guess.factors(size) is not None]
    if is_beginning:  # one number of each, where vectors are multiplied by it
        for name in _arguments_of([short], guess, named):
            if guess.axes[name][: len(short)] == list(short):
                axes = [*guess.axes[name], *(1 for _ in long[len(short) :])]
                yield guess.of_axes(name, axes)
    elif flat:  # rows of all samples
        for name in _arguments_of([long], guess, named):
            if guess.axes[name] == list(long):
                yield guess.of_axes(name, list(short))


def _of_a_view(guess: ShapeGuess, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[ShapeGuess]:
    """The one axis that is not named again in a view is as long as what stands in its place."""
    has, needs = list(shape), [each for each in wanted if each != -1]
    for size in list(has):
        if size in needs:
            has.remove(size)
            needs.remove(size)
    if -1 not in wanted:
        for name, axes in guess.axes.items():
            if axes == list(shape) and len(wanted) > len(shape):  # it is cut into heads, or more
                width = math.prod(wanted[-2:])
                yield guess.of_axes(name, [*wanted[:-2], width] if width in guess.taken else [*wanted])
    pair = guess.factors(needs[0]) if len(needs) == 1 and len(has) == 2 else None
    if pair is not None:  # rows and columns of a map beside those of another one
        for first, second in (pair, pair[::-1]):
            for halfway in guess.with_equal(max(has[0], first), min(has[0], first)):
                yield from halfway.with_equal(max(has[1], second), min(has[1], second))
    own = [size for size in has if guess.is_own(size)]
    rest = math.prod(size for size in has if size not in own)
    product = math.prod(needs)
    if own and (len(own) == 1 or -1 in wanted) and product > 1 and product % rest == 0:
        yield from guess.with_equal(own[-1], product // rest)
    for width in guess.widths if own and own[-1] == shape[-1] else ():  # what was cut by its own width
        yield from guess.with_equal(own[-1], width)
    for name, axes in guess.axes.items():  # of a table that was asked for some of its rows
        if math.prod(axes) in has:
            yield guess.of_axes(name, [each for each in wanted if each > 0])


# Lines of the user's. -------------------------------------------------------------------------------------------------


def _of_conditions(error: Exception, guess: ShapeGuess, place: Place) -> Iterator[ShapeGuess]:
    """By a condition that was not met: of an assertion, or around the line that raises."""
    statement = statement_of(place)
    if isinstance(statement, ast.Assert):
        tests = [statement.test]
    else:
        around = condition_around(place)
        tests = [around.test] if around is not None else []
    is_met = ast.Eq if isinstance(statement, ast.Assert) else ast.NotEq
    for test in tests:
        parts = test.values if isinstance(test, ast.BoolOp) else [test]
        for each in parts:
            if not isinstance(each, ast.Compare) or len(each.ops) != 1 or not isinstance(each.ops[0], is_met):
                continue
            left, right = each.left, each.comparators[0]
            for one, other in ((left, right), (right, left)):
                yield from _of_equal(one, evaluated(one, place), evaluated(other, place), guess, place)


def _of_equal(written: ast.expr, value: Any, wanted: Any, guess: ShapeGuess, place: Place) -> Iterator[ShapeGuess]:
    """What would make one side of a comparison as the other one is."""
    if type(value) is int and type(wanted) is int and value != wanted:
        inner = _whose_axes(written, place)
        if inner is not None:
            for name in _arguments_of([tuple(inner.shape)], guess, []):
                yield guess.with_axes(name, len(guess.axes[name]) + wanted - value)
        else:
            yield from guess.with_equal(value, wanted)
    elif isinstance(value, tuple) and isinstance(wanted, tuple):
        if len(value) == len(wanted):
            for one, other in zip(value, wanted, strict=True):
                if type(one) is int and type(other) is int and one != other:
                    yield from guess.with_equal(one, other)
        else:
            for name in _arguments_of([value], guess, []):
                yield guess.with_axes(name, len(guess.axes[name]) + len(wanted) - len(value))


def _whose_axes(written: ast.expr, place: Place) -> Tensor | None:
    """The tensor whose axes an expression counts: x.dim(), x.ndim or len(x.shape)."""
    inner: ast.expr | None = None
    if isinstance(written, ast.Attribute) and written.attr == "ndim":
        inner = written.value
    elif isinstance(written, ast.Call) and isinstance(written.func, ast.Attribute):
        inner = written.func.value if written.func.attr in ("dim", "ndimension") else None
    elif isinstance(written, ast.Call) and isinstance(written.func, ast.Name) and written.func.id == "len":
        shape = written.args[0]
        if isinstance(shape, ast.Attribute) and shape.attr == "shape":
            inner = shape.value
        elif isinstance(shape, ast.Call) and isinstance(shape.func, ast.Attribute) and shape.func.attr == "size":
            inner = shape.func.value
    found = evaluated(inner, place)
    return found if isinstance(found, Tensor) else None


def _named(place: Place, guess: ShapeGuess) -> list[str]:
    """The arguments that the line names which raised."""
    statement = statement_of(place)
    if statement is None:
        return []
    names = [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)]
    return [each for each in dict.fromkeys(names) if each in guess.kinds or each in guess.absent]


def _arguments_of(shapes: Iterable[tuple[int, ...]], guess: ShapeGuess, named: list[str]) -> list[str]:
    """The arguments that some tensors are made of, by the sizes of their axes; those that the line names first.

    Where some have more than the number of samples in common with these, the others have nothing to do with them.
    """
    counts: dict[str, int] = {}
    for shape in shapes:
        for name, axes in guess.axes.items():
            shared = {*axes} & {size for size in shape if guess.is_own(size)}
            own = len(shared - {guess.batch})
            counts[name] = max(counts.get(name, 0), 100 * own + 10 * len(shared) + (axes == list(shape)))
    most = max(counts.values(), default=0)
    found = [name for name, count in counts.items() if count and (count >= 100 or most < 100)]
    return sorted(found, key=lambda name: (-counts[name], name not in named))
