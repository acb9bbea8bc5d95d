"""Shape annotations such as ``Float[Tensor, "*batch queries d_key"]``.

They are jaxtyping's wherever jaxtyping is at work: under a type checker, and in the test run, which enforces
them with beartype. Elsewhere the same spelling stands for the bare array type, so that regard needs neither
package to run and never imports them itself.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.modules.get("jaxtyping"):
    from jaxtyping import Bool, Float, Int
else:

    class _Bare:
        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            array, _shape = item
            return array

    class Bool(_Bare):
        """A boolean array; its shape is for the reader."""

    class Float(_Bare):
        """A floating-point array; its shape is for the reader."""

    class Int(_Bare):
        """An integer array; its shape is for the reader."""


__all__ = ["Bool", "Float", "Int"]
