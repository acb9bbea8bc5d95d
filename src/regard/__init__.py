"""regard: attention for transformers that you can run, see and check.

The public names are listed in ``__all__``. Each is imported when it is first used, so that
``import regard`` and ``regard --help`` do not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard.attention import MultiHeadAttention, Plan, Steps, attend, cache, course, mask, plan, positions, steps
    from regard.errors import InputError
    from regard.lens import Explanation, explain
    from regard.pretrained import Pretrained, load

__all__ = [
    "Explanation",
    "InputError",
    "MultiHeadAttention",
    "Plan",
    "Pretrained",
    "Steps",
    "attend",
    "cache",
    "course",
    "explain",
    "load",
    "mask",
    "plan",
    "positions",
    "steps",
]

_ROOMS = {
    "Explanation": "regard.lens",
    "InputError": "regard.errors",
    "MultiHeadAttention": "regard.attention",
    "Plan": "regard.attention",
    "Pretrained": "regard.pretrained",
    "Steps": "regard.attention",
    "attend": "regard.attention",
    "cache": "regard.attention",
    "course": "regard.attention",
    "explain": "regard.lens",
    "load": "regard.pretrained",
    "mask": "regard.attention",
    "plan": "regard.attention",
    "positions": "regard.attention",
    "steps": "regard.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_ROOMS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
