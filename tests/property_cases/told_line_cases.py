"""Lines that turn around what the code says beside them: gates, shares, sums of weights; memories that learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class MixesAsWritten(nn.Module):
    """Attention, and a gate: out = g * read + (1 - g) * kept."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        read, kept = joined((q @ k.mT / 2).softmax(-1) @ v), x
        g = torch.sigmoid(self.gate(x))
        return g * read + (1 - g) * kept


class MixesTheOtherWay(MixesAsWritten):
    """Attention, and a gate: out = g * read + (1 - g) * kept."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        read, kept = joined((q @ k.mT / 2).softmax(-1) @ v), x
        g = torch.sigmoid(self.gate(x))
        return (1 - g) * read + g * kept  # here


class MixesUnderOtherNames(MixesAsWritten):
    """Attention, and a gate: out = g * new + (1 - g) * old."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        read = joined((q @ k.mT / 2).softmax(-1) @ v)
        g = torch.sigmoid(self.gate(x))
        return (1 - g) * x + g * read


class MixesInBothWays(MixesAsWritten):
    """A gate of two halves: out = g * read + (1 - g) * kept in one, and the other way around in the other."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        read, kept = joined((q @ k.mT / 2).softmax(-1) @ v), x
        g = torch.sigmoid(self.gate(x))
        one, other = g * read + (1 - g) * kept, (1 - g) * read + g * kept
        return torch.cat([one.chunk(2, -1)[0], other.chunk(2, -1)[1]], -1)


class KeepsAShare(nn.Module):
    def __init__(self, keep_prob: float = 0.9) -> None:
        super().__init__()
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(1 - keep_prob)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return joined(self.drop((q @ k.mT / 2).softmax(-1)) @ v)


class DropsWhatIsToBeKept(KeepsAShare):
    def __init__(self, keep_prob: float = 0.9) -> None:
        super().__init__()
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(keep_prob)  # here


class DropsLittleByDefault(KeepsAShare):
    """By its default the share is the one that is dropped, under a name that misleads."""

    def __init__(self, keep_prob: float = 0.1) -> None:
        super().__init__()
        self.drop = nn.Dropout(keep_prob)


class KeepsWhatItMadeOfADrop(KeepsAShare):
    """The name is given another number before."""

    def __init__(self, keep_prob: float = 0.9) -> None:
        super().__init__()
        keep_prob = 1 - keep_prob
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(keep_prob)


class ReadsWhatWasRead(nn.Module):
    """In each step a convolution of the weights of all steps before says what has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.place = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.conv, self.score = nn.Conv1d(1, WIDTH, 3, padding=1, bias=False), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        cum, read = torch.zeros_like(x[..., 0]), []
        for state in x.unbind(1):
            seen = self.place(self.conv(cum[:, None]).mT)
            weights = self.score(torch.tanh(self.query(state)[:, None] + self.key(x) + seen)).squeeze(-1).softmax(-1)
            cum = cum + weights
            read.append((weights[:, None] @ x).squeeze(1))
        return torch.stack(read, 1)


class ReadsTheLastStep(ReadsWhatWasRead):
    def forward(self, x: Tensor) -> Tensor:
        cum, read = torch.zeros_like(x[..., 0]), []
        for state in x.unbind(1):
            seen = self.place(self.conv(cum[:, None]).mT)
            weights = self.score(torch.tanh(self.query(state)[:, None] + self.key(x) + seen)).squeeze(-1).softmax(-1)
            cum = weights  # here
            read.append((weights[:, None] @ x).squeeze(1))
        return torch.stack(read, 1)


class NamesTheLastStep(ReadsWhatWasRead):
    """What the last step read is what it says (Bahdanau's location, and not the sum)."""

    def forward(self, x: Tensor) -> Tensor:
        last, read = torch.zeros_like(x[..., 0]), []
        for state in x.unbind(1):
            seen = self.place(self.conv(last[:, None]).mT)
            weights = self.score(torch.tanh(self.query(state)[:, None] + self.key(x) + seen)).squeeze(-1).softmax(-1)
            last = weights
            read.append((weights[:, None] @ x).squeeze(1))
        return torch.stack(read, 1)


class Memory(nn.Module):
    """A learned table of keys and values, asked by each token."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(6, WIDTH)) for _ in range(2))
        self.query = nn.Linear(WIDTH, WIDTH)

    def of_keys(self) -> Tensor:
        return self.keys

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.query(x) @ self.of_keys().mT / WIDTH**0.5).softmax(-1) @ self.values


class MemoryAsData(Memory):
    def of_keys(self) -> Tensor:
        return self.keys.data


class FrozenMemory(MemoryAsData):
    def __init__(self) -> None:
        super().__init__()
        self.keys.requires_grad_(False)


class KeepsAll(nn.Module):
    """One token after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.keys, self.values = nn.Linear(WIDTH, 3 * WIDTH), None, None

    def step(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 1), torch.cat([self.values, v], 1)
        self.keys, self.values = k, v
        return ((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)[:, 0]

    def reset(self) -> None:
        self.keys = self.values = None

    def forward(self, x: Tensor) -> Tensor:
        self.reset()
        return torch.stack([self.step(each) for each in x.unbind(1)], 1)


class KeepsTheNewest(KeepsAll):
    def step(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        if self.keys is not None:
            k = torch.cat([self.keys, k], 1)
            v = torch.cat([self.values, v], 1)
        self.keys, self.values = k[:, -1:], v[:, -1:]  # here
        return ((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)[:, 0]


class KeepsAWindow(KeepsAll):
    """A query sees a window of three tokens."""

    def step(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 1), torch.cat([self.values, v], 1)
        self.keys, self.values = k[:, -2:], v[:, -2:]
        return ((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)[:, 0]


class ConvolvesTheNewest(KeepsAll):
    """The token before is mixed in first; all keys and values are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.before = None

    def step(self, x: Tensor) -> Tensor:
        x = x[:, None]
        both = x if self.before is None else torch.cat([self.before, x], 1)
        self.before = both[:, -1:]
        return super().step(x[:, 0])


class ReadsAContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def read(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return joined((split(self.q(x)) @ split(k).mT / 2).softmax(-1) @ split(v))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            k, v = self.k(x), self.v(x)
        else:
            k, v = self.k(context), self.v(context)
        return self.read(x, k, v)


class AsksForAContext(ReadsAContext):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:  # here
            k, v = self.k(x), self.v(x)
        else:
            k, v = self.k(x), self.v(x)
        return self.read(x, k, v)


class RefusesAContext(ReadsAContext):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None:
            k, v = self.k(x), self.v(x)
        else:
            raise ValueError("it attends to its own tokens")
        return self.read(x, k, v)


class HidesOnDemand(nn.Module):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return joined(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal))


class HidesWhateverIsAsked(HidesOnDemand):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = False  # here


class HidesUnlessItIsTold(HidesOnDemand):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = False
        if is_causal:
            self.is_causal = True


class TwoMatrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.first, self.second = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def read(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / 2).softmax(-1) @ v)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        y = self.second(y)
        return self.read(y)


class OneOfTwoMatrices(TwoMatrices):
    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)  # here
        y = self.second(x)
        return self.read(y)


class AMethodForWhatItDoes(TwoMatrices):
    def prepared(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise ValueError("x is no number somewhere")
        return self.second(self.first(x).tanh())

    def forward(self, x: Tensor) -> Tensor:
        y = self.prepared(x)
        y = self.prepared(x.clone())
        return self.read(y)


CASES = [
    *(Case("cache-places", KeepsTheNewest, right, of_module) for right in (KeepsAll, KeepsAWindow, ConvolvesTheNewest)),
    Case("mix-as-documented", MixesTheOtherWay, MixesAsWritten, of_module),
    Case("mix-as-documented", MixesTheOtherWay, MixesUnderOtherNames, of_module),
    Case("mix-as-documented", MixesTheOtherWay, MixesInBothWays, of_module),
    *(Case("context-read", AsksForAContext, right, of_module) for right in (ReadsAContext, RefusesAContext)),
    *(Case("settings-read", HidesWhateverIsAsked, right, of_module) for right in (HidesOnDemand, HidesUnlessItIsTold)),
    *(Case("results-read", OneOfTwoMatrices, right, of_module) for right in (TwoMatrices, AMethodForWhatItDoes)),
    Case("dropout-handed-on", DropsWhatIsToBeKept, KeepsAShare, of_module),
    Case("dropout-handed-on", DropsWhatIsToBeKept, KeepsWhatItMadeOfADrop, of_module),
    Case("dropout-handed-on", DropsWhatIsToBeKept, DropsLittleByDefault, of_module),
    Case("weights-cumulated", ReadsTheLastStep, ReadsWhatWasRead, of_module),
    Case("weights-cumulated", ReadsTheLastStep, NamesTheLastStep, of_module),
    Case("gradient", MemoryAsData, Memory, of_module, has_line=False),
    Case("gradient", MemoryAsData, FrozenMemory, of_module, has_line=False),
]
