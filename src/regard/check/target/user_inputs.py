"""What the user hands over for a call: tensors that are used as they are, or a way to make them for any sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.check.target.double_precision import widened
from regard.check.target.numpy_by_torch import is_array
from regard.check.target.parse import InputFactory
from regard.check.target.sizes import Sizes

__all__ = ["UserInputs"]


@dataclass(frozen=True, eq=False)
class UserInputs:
    """Arguments of a call, by name."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    factory: InputFactory | None = None
    rows: frozenset[str] = frozenset()
    """Of those that it makes, the ones whose first axis is of all tokens of all samples."""

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
        """The arguments, in float64; rows of all samples with an axis of these in front: a call takes them as one."""
        made = {} if self.factory is None else self.factory(sizes)
        made |= {name: made[name].unflatten(0, (sizes.batch, -1)) for name in self.rows}
        return {**made, **{name: widened(value) for name, value in self.fixed.items()}}
