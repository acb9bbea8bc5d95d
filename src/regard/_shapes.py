"""Shape annotations such as ``Float[Tensor, "*batch queries d_key"]``.

In the test run, which enforces them with beartype, they are jaxtyping's own. Elsewhere ``Float[Tensor, "..."]`` is
``Tensor``, so that regard runs without jaxtyping and never imports it by itself. A type checker reads
``Annotated[Tensor, "..."]``, as jaxtyping has it too, so that nobody needs jaxtyping to check code that uses regard.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
elif sys.modules.get("jaxtyping"):
    from jaxtyping import Bool, Float, Int
else:

    class _Annotation:
        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            array, _shape = item
            return array

    Bool = Float = Int = _Annotation


__all__ = ["Bool", "Float", "Int"]
