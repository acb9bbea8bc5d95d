"""A function some of whose arguments are fixed before it is called, as matrices that its tokens are multiplied by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from regard.check.target.double_precision import widened
from regard.check.target.preparation import SPREAD
from regard.check.target.sizes import Sizes

__all__ = ["fixed_matrices", "fixed_tensors", "handed_over_with", "with_fixed", "with_matrix", "with_width_of"]

FEW = 4
"""Standard deviations."""


def with_fixed(function: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """The function with some arguments fixed, their arrays as tensors: each call hands these over in its own form.

    Large random matrices are made smaller: with scores that are far apart each query would see one key alone, and what
    is done to all others would not show.
    """
    given = partial(function, **{name: widened(value) for name, value in args.items()})
    given.__name__, given.__doc__ = function.__name__, function.__doc__  # type: ignore[attr-defined]
    width = _width(given)
    for path, matrix in fixed_matrices(given).items():
        large = float(matrix.std()) * (width if width in matrix.shape else max(matrix.shape)) ** 0.5
        if large > SPREAD and _is_drawn(matrix):
            given = with_matrix(given, path, matrix * (SPREAD / large))
    return given


def _is_drawn(matrix: Tensor) -> bool:
    """Whether a matrix may be random numbers around zero, of which none tells its neighbours.

    No mask is, nor a table of sinusoids or of biases by distance.
    """
    spread, few = float(matrix.std()), FEW / matrix.numel() ** 0.5
    if abs(float(matrix.mean())) > few * spread or float(matrix.abs().max()) > 2 * FEW * spread:
        return False
    pairs = ((matrix[1:], matrix[:-1]), (matrix[:, 1:], matrix[:, :-1]))
    return all(abs(float((one * other).mean())) <= few * spread**2 for one, other in pairs if one.numel())


def with_matrix(target: Any, path: str, matrix: Tensor) -> Any:
    """A function with another one of its fixed matrices."""

    def changed(value: Any, at: str) -> Any:
        if at == path:
            return matrix
        if isinstance(value, dict):
            return {name: changed(each, _joined(at, name)) for name, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(changed(each, _joined(at, number)) for number, each in enumerate(value))
        return value

    given = partial(target.func, *target.args, **changed(target.keywords, ""))
    given.__dict__.update(target.__dict__)
    return given


def fixed_tensors(target: Any) -> frozenset[str]:
    """The names of the fixed arguments of a function that are tensors, or have such in them: no call gives others."""
    fixed = target.keywords if isinstance(target, partial) else {}
    return frozenset(name for name, each in fixed.items() if any(True for _ in _tensors(each)))


def handed_over_with(target: Any, handed_over: Callable[[Any], Any]) -> Any:
    """The target, its fixed arguments in the form in which a call hands over the others."""
    if not fixed_tensors(target):
        return target
    return partial(target.func, *target.args, **{name: handed_over(each) for name, each in target.keywords.items()})


def fixed_matrices(target: Any) -> dict[str, Tensor]:
    """The matrices among the fixed arguments of a function, by the path of each; none of anything else."""
    fixed = target.keywords if isinstance(target, partial) else {}
    return {path: each for path, each in _tensors(fixed) if each.ndim == 2 and each.is_floating_point()}


def with_width_of(sizes: Sizes, target: Any) -> Sizes:
    """The sizes, tokens as wide as most of the fixed matrices are on one side, where no name says how wide they are.

    Each projection begins or ends at the width of the tokens, whatever the heads are.
    """
    width = _width(target)
    if not width or "d_model" in dict(sizes.given):
        return sizes
    d_head = dict(sizes.given).get("d_head", max(1, width // sizes.heads))
    return replace(sizes, d_head=d_head, given=(*sizes.given, ("d_model", width)))


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, each in parts:
        yield from _tensors(each, _joined(path, name))


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _width(target: Any) -> int:
    """The size that most of the fixed matrices have on one side; 0 where there are none.

    Of stacks of matrices, one for each head, where there are no others.
    """
    fixed = target.keywords if isinstance(target, partial) else {}
    stacks = [each for _, each in _tensors(fixed) if each.ndim > 2 and each.is_floating_point()]
    matrices = [*fixed_matrices(target).values()] or stacks
    counts = Counter(size for each in matrices for size in dict.fromkeys(each.shape[-2:]))
    return counts.most_common(1)[0][0] if counts else 0
