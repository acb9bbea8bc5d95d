"""Blocks with a setting that says whether norms stand before attention and feed-forward network, or after."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class BeforeOrAfter(nn.Module):
    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attending()
        self.hidden = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            return x + self.hidden(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.last(x + self.hidden(x))

    def last(self, x: Tensor) -> Tensor:
        return self.norm2(x)


class SecondNormBeforeAlone(BeforeOrAfter):
    def last(self, x: Tensor) -> Tensor:
        return x


class NormsOfTheirOwn(BeforeOrAfter):
    """One norm is for blocks with norms in front, and another for the others."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__(norm_first)
        self.norm3 = nn.LayerNorm(WIDTH)

    def last(self, x: Tensor) -> Tensor:
        return self.norm3(x)


class Stack(nn.Module):
    """A norm at the end where blocks have theirs in front."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.blocks = nn.ModuleList(BeforeOrAfter(norm_first) for _ in range(2))
        self.norm_in, self.norm_out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Any:
        x = self.norm_in(x)
        for block in self.blocks:
            x = block(x)
        return self.norm_out(x) if self.norm_first else x


class ListsOfNorms(nn.Module):
    """Norms of attentions and of networks, in a list of each."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attentions = nn.ModuleList(Attending() for _ in range(2))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
        )
        self.before, self.between = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for number, (attend, network) in enumerate(zip(self.attentions, self.networks, strict=True)):
            if self.norm_first:
                x = x + attend(self.before[number](x))
                x = x + network(self.of_network(number)(x))
            else:
                x = self.before[number](x + attend(x))
                x = self.between[number](x + network(x))
        return x

    def of_network(self, number: int) -> nn.Module:
        return self.between[number]


class OneListForBoth(ListsOfNorms):
    def of_network(self, number: int) -> nn.Module:
        return self.before[number]


class NetworksWithoutNorms(ListsOfNorms):
    """Norms in front are for the attentions alone."""

    def of_network(self, number: int) -> nn.Module:
        return nn.Identity()


CASES = [
    Case("norm-used", OneListForBoth, ListsOfNorms, of_module, has_line=False, attentions=2),
    Case("norm-used", OneListForBoth, NetworksWithoutNorms, of_module, has_line=False, attentions=2),
    Case("norm-used", SecondNormBeforeAlone, BeforeOrAfter, of_module, has_line=False),
    Case("norm-used", SecondNormBeforeAlone, NormsOfTheirOwn, of_module, has_line=False),
]
