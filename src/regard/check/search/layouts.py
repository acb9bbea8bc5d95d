"""The sizes and axes of a call: the orders of samples, heads, tokens and channels in which code may want tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = [
    "FUNCTION_WAYS",
    "MODULE_WAYS",
    "Sizes",
    "Way",
    "from_layout",
    "from_module_layout",
    "to_layout",
    "to_module_layout",
]


@dataclass(frozen=True)
class Sizes:
    """Of one call; all different, or all the same, on purpose."""

    batch: int
    heads: int
    queries: int
    keys: int
    d_key: int
    d_value: int

    @property
    def d_model(self) -> int:
        """Of modules."""
        return self.heads * self.d_key


@dataclass(frozen=True)
class Way:
    """One way to call the implementation."""

    layout: str
    says: str
    """What is unusual about the layout; empty for PyTorch's own."""
    flat: bool = False
    """Whether a function takes heads side by side, (batch, tokens, heads * width), and splits them itself."""


FUNCTION_WAYS = (
    Way("bhtd", ""),
    Way("btd", "no heads: (batch, tokens, width)"),
    Way("td", "no batch and no heads: (tokens, width)"),
    Way("bthd", "(batch, tokens, heads, width)"),
    Way("tbhd", "tokens first: (tokens, batch, heads, width)"),
    Way("htd", "no batch: (heads, tokens, width)"),
    Way("bt(hd)", "heads side by side: (batch, tokens, heads * width)", flat=True),
    Way("tbd", "tokens first: (tokens, batch, width)"),
    Way("bdt", "channels first: (batch, width, tokens)"),
    Way("bhdt", "channels first: (batch, heads, width, tokens)"),
)
MODULE_WAYS = (
    Way("btd", ""),
    Way("tbd", "tokens first: (tokens, batch, d_model)"),
    Way("td", "no batch: (tokens, d_model)"),
)


ORDER = {"b": 0, "h": 1, "t": 2, "d": 3}


def to_layout(tensor: Tensor, way: Way) -> Tensor:
    """A tensor (batch, heads, tokens, width) as the way wants it."""
    if way.flat:
        return tensor.transpose(1, 2).flatten(-2).clone()
    kept = tensor.permute([ORDER[letter] for letter in _padded(way.layout)])
    for _at in range(4 - len(way.layout)):
        kept = kept.squeeze(0)
    return kept.clone()


def to_module_layout(tensor: Tensor, layout: str) -> Tensor:
    """A tensor (batch, tokens, width) as a module wants it."""
    if layout == "tbd":
        return tensor.transpose(0, 1).clone()
    return tensor[0].clone() if layout == "td" else tensor.clone()


def from_module_layout(tensor: Tensor, layout: str, x: Tensor) -> Tensor | None:
    """The inverse, of an output for x; None of what has not its samples and tokens."""
    if layout == "tbd" and tensor.ndim == 3:
        tensor = tensor.transpose(0, 1)
    elif layout == "td" and tensor.ndim == 2:
        tensor = tensor[None]
    return tensor if tensor.ndim == 3 and tensor.shape[:2] == x.shape[:2] else None


def _padded(layout: str) -> str:
    return "".join(letter for letter in "bhtd" if letter not in layout) + layout


def from_layout(tensor: Tensor, way: Way, heads: int) -> Tensor:
    """The inverse of `to_layout`.

    Raises:
        RuntimeError: another number of axes.
    """
    if way.flat:
        return tensor.reshape(*tensor.shape[:-1], heads, -1).transpose(1, 2)
    if tensor.ndim != len(way.layout):
        raise RuntimeError(f"{tensor.ndim} axes")
    padded = _padded(way.layout)
    for _ in range(4 - len(way.layout)):
        tensor = tensor.unsqueeze(0)
    return tensor.permute([padded.index(letter) for letter in "bhtd"])
