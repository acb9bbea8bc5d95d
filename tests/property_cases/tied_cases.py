"""Layers whose parameters are to be their own, and weights that are to be one."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from property_cases.surrounding_cases import Attention


class OfAttentionAndNetwork(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.attention, self.network = Attention(), network

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.network(x)
        return out


class OfAttentionAndStep(OfAttentionAndNetwork):
    def __init__(self, of_time: nn.Module) -> None:
        super().__init__(network())
        self.of_time = of_time

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.of_time(torch.ones(WIDTH, dtype=x.dtype)))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class Layers(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.made())

    def made(self) -> list[nn.Module]:
        return [OfAttentionAndNetwork(network()) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        for each in self.layers:
            x = each(x)
        return x


class OfOneNetwork(Layers):
    """Layers one after the other, with a network made before them."""

    def made(self) -> list[nn.Module]:
        one = network()
        return [OfAttentionAndNetwork(one) for _ in range(2)]


class OfOneWideNetwork(Layers):
    """Layers one after the other, which share one feed-forward network (Pires et al. 2023)."""

    def made(self) -> list[nn.Module]:
        one = network()
        return [OfAttentionAndNetwork(one) for _ in range(2)]


class OfOneStep(OfOneNetwork):
    """Layers one after the other, which are all told how far a diffusion is."""

    def made(self) -> list[nn.Module]:
        one = network()
        return [OfAttentionAndStep(one) for _ in range(2)]


class OfShallowCopies(Layers):
    """Layers one after the other."""

    def made(self) -> list[nn.Module]:
        first = OfAttentionAndNetwork(network())
        return [copy.copy(first) for _ in range(2)]


class OfDeepCopies(Layers):
    """Layers one after the other."""

    def made(self) -> list[nn.Module]:
        first = OfAttentionAndNetwork(network())
        return [copy.deepcopy(first) for _ in range(2)]


class OfCopiesThatShare(OfShallowCopies):
    """Layers one after the other, which share all weights."""


class Tied(Attention):
    """The matrix behind the attention is that before it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.behind.weight = self.before.weight
        self.apply(self.begun)

    def begun(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.behind(super().forward(self.before(x)))
        return out


class UntiedAgain(Tied):
    def begun(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().clone())


class BegunAlike(UntiedAgain):
    """The matrices begin as the same."""

    def __init__(self) -> None:
        super().__init__()
        self.behind.weight = self.before.weight
        self.behind.weight = nn.Parameter(self.before.weight.detach().clone())


class Parts(nn.Module):
    """Attention by matrices for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class OneThreeTimes(Parts):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.q, self.k, self.v = nn.ModuleList([nn.Linear(WIDTH, WIDTH)] * 3)  # here


class OneForKeysAndValues(Parts):
    def __init__(self) -> None:
        super().__init__()
        layers = 2 * (nn.Linear(WIDTH, WIDTH),)  # here
        self.k = layers[0]
        self.v = layers[1]


class OneOfEachName(Parts):
    def __init__(self) -> None:
        super().__init__()
        for name, layer in dict.fromkeys("qkv", nn.Linear(WIDTH, WIDTH)).items():  # here
            setattr(self, name, layer)


class SharedByName(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.k = self.q


class SharedAsSaid(OneThreeTimes):
    """Attention in which queries, keys and values share one matrix."""


class RepeatedFunctions(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = [nn.ReLU()] * 2


class OfADict(nn.Module):
    """Attention by matrices for queries, keys and values, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(self.by_name[name](x)) for name in ("query", "key", "value"))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class OneInADict(OfADict):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(WIDTH, WIDTH)
        self.by_name = nn.ModuleDict(dict.fromkeys(("query", "key", "value"), layer))


class OneForTwoLanguages(OfADict):
    """What embeds the words stands under the names of both."""

    def __init__(self) -> None:
        super().__init__()
        table = nn.Linear(WIDTH, WIDTH)
        self.embed = nn.ModuleDict({"src": table, "tgt": table})

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.embed["src"](x))


CASES = [
    *(
        Case("projections-apart", OneInADict, right, of_module, has_line=False)
        for right in (OfADict, OneForTwoLanguages)
    ),
    *(
        Case("projections-apart", wrong, right, of_module)
        for wrong, right in (
            (OneThreeTimes, Parts),
            (OneThreeTimes, SharedAsSaid),
            (OneForKeysAndValues, SharedByName),
            (OneOfEachName, RepeatedFunctions),
        )
    ),
    Case("layers-apart", OfShallowCopies, OfDeepCopies, of_module, has_line=False, attentions=2),
    Case("layers-apart", OfShallowCopies, OfCopiesThatShare, of_module, has_line=False, attentions=2),
    Case("layers-apart", OfOneNetwork, Layers, of_module, has_line=False, attentions=2),
    Case("layers-apart", OfOneNetwork, OfOneWideNetwork, of_module, has_line=False, attentions=2),
    Case("layers-apart", OfOneNetwork, OfOneStep, of_module, has_line=False, attentions=2),
    Case("weights-stay-tied", UntiedAgain, Tied, of_module, has_line=False),
    Case("weights-stay-tied", UntiedAgain, BegunAlike, of_module, has_line=False),
]
