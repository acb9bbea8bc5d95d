"""Layers that a module keeps in a collection: one of PyTorch, or one of Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, of_module


class Single(nn.Module):
    """One head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class InAList(nn.Module):
    """The heads are kept one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Any = []
        for _ in range(HEADS):
            self.made.append(Single())
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([each(x) for each in self.made], -1))


class InAModuleList(InAList):
    """The same, registered."""

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.ModuleList(self.made)


class NamedBesides(InAList):
    """Each is registered by a name of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        for number, each in enumerate(self.made):
            self.add_module(f"head{number}", each)


class HandedOver(InAList):
    """Its caller has made them, and registers them where they are made."""

    def __init__(self, made: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.made = made or self.made


class InADict(nn.Module):
    """The projections by their names."""

    keep: Any = dict

    def __init__(self) -> None:
        super().__init__()
        self.by_name = self.keep({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.by_name[name](x) for name in ("query", "key", "value"))
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class InAModuleDict(InADict):
    keep = nn.ModuleDict


class Matrices(nn.Module):
    """Parameters in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        matrices = tuple(nn.Parameter(torch.randn(WIDTH, WIDTH) / 3) for _ in range(3))
        self.matrices: Any = matrices
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x @ each for each in self.matrices)
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class FrozenMatrices(Matrices):
    """What never learns may stand anywhere."""

    def __init__(self) -> None:
        super().__init__()
        for each in self.matrices:
            each.requires_grad_(False)


class Biased(nn.Module):
    """Scores with a number for each head and each key's channel besides."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.asked: Any = nn.Parameter(torch.empty(WIDTH))
        nn.init.normal_(self.asked)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((((q + self.asked) @ k.mT) / WIDTH**0.5).softmax(-1) @ v)


class BiasedByATensor(Biased):
    def __init__(self) -> None:
        super().__init__()
        del self.asked
        self.asked = torch.empty(WIDTH)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.asked, std=0.5)


class BiasedWithGradients(Biased):
    def __init__(self) -> None:
        super().__init__()
        del self.asked
        self.asked = torch.zeros(WIDTH, requires_grad=True)


class BiasedAsItSays(Biased):
    def __init__(self) -> None:
        super().__init__()
        del self.asked
        # what is asked for by all tokens, learned
        self.asked = 0.1 * torch.randn(WIDTH)


class BiasedAtRandom(Biased):
    """What all tokens ask for is drawn, and stays fixed."""

    def __init__(self) -> None:
        super().__init__()
        del self.asked
        self.asked = torch.empty(WIDTH)
        nn.init.normal_(self.asked)


class BiasedByNumbers(Biased):
    """Nothing says that they learn."""

    def __init__(self) -> None:
        super().__init__()
        del self.asked
        self.asked = torch.randn(WIDTH)


class BiasedByABuffer(Biased):
    def __init__(self) -> None:
        super().__init__()
        del self.asked
        self.register_buffer("asked", torch.empty(WIDTH))
        nn.init.normal_(self.asked)


class Placed(nn.Module):
    """Vectors of the places are added to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.places: Any = None
        self.places = self.made()

    def made(self) -> Any:
        return nn.Parameter(torch.randn(16, WIDTH))

    def place_embedding(self, count: int) -> Tensor:
        return self.places[:count]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x + self.place_embedding(x.shape[1])).chunk(3, -1)
        return self.out((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class PlacedAtRandom(Placed):
    """They are drawn."""

    def __init__(self) -> None:
        super().__init__()
        del self.places
        self.places = torch.randn([16, WIDTH], requires_grad=False)

    def place_embedding(self, count: int) -> Tensor:
        return self.places[:count]


class PlacedAlike(PlacedAtRandom):
    def __init__(self) -> None:
        super().__init__()
        self.places = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1))


CASES = [
    Case("parameters-registered", InAList, HandedOver, of_module, has_line=False),
    Case("parameters-registered", InADict, InAModuleDict, of_module, has_line=False),
    Case("parameters-registered", Matrices, FrozenMatrices, of_module, has_line=False),
    Case("parameters-registered", BiasedByATensor, Biased, of_module, has_line=False),
    Case("parameters-registered", BiasedByATensor, BiasedAtRandom, of_module, has_line=False),
    Case("parameters-registered", BiasedWithGradients, BiasedByNumbers, of_module, has_line=False),
    Case("parameters-registered", BiasedAsItSays, BiasedByABuffer, of_module, has_line=False),
    Case("parameters-registered", PlacedAtRandom, Placed, of_module, has_line=False),
    Case("parameters-registered", PlacedAtRandom, PlacedAlike, of_module, has_line=False),
]
