"""Attentions that keep their input, or say that they add it, and those that leave it to others."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module
from property_cases.output_cases import attention


class NormedAndAdded(nn.Module):
    """An attention with a norm in front and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.added(x, self.out(attention(self.norm(x))))

    def added(self, x: Tensor, read: Tensor) -> Tensor:
        return x + read


class SaidAndNotAdded(NormedAndAdded):
    """An attention with a norm in front and a residual connection."""

    def added(self, x: Tensor, read: Tensor) -> Tensor:
        return read


class LeftToTheBlock(SaidAndNotAdded):
    """The norm and the attention; the block that holds it adds a residual connection around both."""


class SaysNothing(SaidAndNotAdded):
    """The norm and the attention."""


class KeptAndNotAdded(SaidAndNotAdded):
    """The norm and the attention."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x  # noqa: F841
        x = self.norm(x)
        return self.out(attention(x))  # type: ignore[no-any-return]


class KeptWithoutNorm(KeptAndNotAdded):
    """The attention alone, of which the line is left that a block does."""

    def __init__(self) -> None:
        super().__init__()
        del self.norm

    def forward(self, x: Tensor) -> Tensor:
        residual = x  # noqa: F841
        return self.out(attention(x))  # type: ignore[no-any-return]


class KeptAndAdded(KeptAndNotAdded):
    """The norm and the attention."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(x)
        return shortcut + self.out(attention(x))


CASES = [
    Case("residual-of-the-input", SaidAndNotAdded, NormedAndAdded, of_module, has_line=False),
    Case("residual-of-the-input", SaidAndNotAdded, LeftToTheBlock, of_module, has_line=False),
    Case("residual-of-the-input", KeptAndNotAdded, KeptAndAdded, of_module, has_line=False),
    Case("residual-of-the-input", KeptAndNotAdded, SaysNothing, of_module, has_line=False),
    Case("residual-of-the-input", KeptAndNotAdded, KeptWithoutNorm, of_module, has_line=False),
]
