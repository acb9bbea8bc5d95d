"""What the user hands over for a call: tensors that are used as they are, or a way to make them for any sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.check.target.double_precision import WIDER
from regard.check.target.numpy_by_torch import is_array
from regard.check.target.parse import InputFactory
from regard.check.target.sizes import Sizes

__all__ = ["UserInputs"]


@dataclass(frozen=True, eq=False)
class UserInputs:
    """Arguments of a call, by name."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    factory: InputFactory | None = None

    @property
    def names(self) -> frozenset[str]:
        """Of the arguments that need no guess."""
        return frozenset(self.fixed) | frozenset(self.factory.values if self.factory is not None else ())

    @property
    def are_arrays(self) -> bool:
        """Whether they are arrays of numpy, and no tensors."""
        kinds = {
            type(value).__module__ for value in self.fixed.values() if isinstance(value, Tensor) or is_array(value)
        }
        return kinds == {"numpy"}

    def of(self, sizes: Sizes) -> dict[str, Any]:
        """The arguments, in float64."""
        made = {} if self.factory is None else self.factory(sizes)
        return {**made, **{name: _widened(value) for name, value in self.fixed.items()}}


def _widened(value: Any) -> Any:
    if is_array(value):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value.detach().to(WIDER.get(value.dtype, value.dtype))
    if type(value) in (list, tuple):
        return type(value)(_widened(each) for each in value)
    return value
