"""The numbers that the parameters of a module begin with, where some of its units or matrices begin alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FirstNumbers", "equal_matrices", "equal_units"]


class FirstNumbers:
    """The first numbers of all parameters of a module that learn, by their paths; of one without equal units, none.

    Copies of a module share them.
    """

    def __init__(self, module: nn.Module) -> None:
        learned = {name: each for name, each in module.named_parameters() if _learns(each)}
        self.alike = [name for name, each in learned.items() if len(equal_units(each.detach())) > 0]
        self.numbers = {name: each.detach().clone() for name, each in learned.items()} if self.alike else {}
        self.twins = equal_matrices(learned)
        """Groups of matrices that begin with the same numbers, and are not one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FirstNumbers:
        return self


def equal_units(matrix: Tensor) -> list[list[int]]:
    """Groups of rows of a parameter, along its first axis that is longer than 1, that hold the same numbers.

    Args:
        matrix: with two axes or more.
    """
    axis = next((each for each, size in enumerate(matrix.shape) if size > 1), None)
    if axis is None or axis == matrix.ndim - 1 or not matrix.numel():
        return []
    rows = matrix.movedim(axis, 0).flatten(1)
    told: dict[tuple[float, ...], list[int]] = {}
    for row, numbers in enumerate(rows[:, [0, rows.shape[1] // 2, -1]].tolist()):
        told.setdefault(tuple(numbers), []).append(row)
    groups = ([each for each in several if bool((rows[each] == rows[several[0]]).all())] for several in told.values())
    return [several for several in groups if len(several) > 1]


def equal_matrices(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of matrices of the same numbers, in groups; none of those that hold one number everywhere.

    Args:
        parameters: by their names.
    """
    told: dict[tuple[Any, ...], list[str]] = {}
    for name, each in parameters.items():
        if each.ndim > 1 and each.numel() > 1:
            numbers = each.detach().flatten()
            told.setdefault((each.shape, *numbers[[0, len(numbers) // 2, -1]].tolist()), []).append(name)
    found = []
    for first, *others in told.values():
        one = parameters[first].detach()
        same = (
            [each for each in others if torch.equal(parameters[each], one)]
            if bool((one != one.flatten()[0]).any())
            else []
        )
        found += [[first, *same]] if same else []
    return found


def _learns(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and not nn.parameter.is_lazy(parameter) and parameter.is_floating_point()
