"""What is computed without gradients, and moves the output or cancels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


@torch.no_grad()
def total_without_gradients(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True)


def largest_without_gradients(scores: Tensor) -> Tensor:
    with torch.no_grad():
        return scores.amax(-1, keepdim=True)


def divided_by_a_total_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return (weights / total_without_gradients(weights)) @ v


def less_the_largest_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores - largest_without_gradients(scores)).softmax(-1) @ v


def divided_by_a_total_on_purpose(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights learn by the numerator alone: the total is detached."""
    weights = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return (weights / total_without_gradients(weights)) @ v


class Features(nn.Module):
    """Causal linear attention with positive features, divided by the sum of a query's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def total(self, k: Tensor) -> Tensor:
        return k.cumsum(1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q.square() + 0.1, k.square() + 0.1
        return (q @ k.mT).tril() @ v / (q * self.total(k)).sum(-1, keepdim=True)


class FeaturesWithoutGradients(Features):
    def total(self, k: Tensor) -> Tensor:
        with torch.no_grad():
            return super().total(k)


class Summaries(nn.Module):
    """Linear attention whose features are summed before a query asks."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def normalizer(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bnhd,bhd->bnh", q, k.sum(1)).unsqueeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)) for each in self.qkv(x).chunk(3, -1))
        q, k = q.exp(), k.exp()
        read = torch.einsum("bnhd,bhde->bnhe", q, torch.einsum("bnhd,bnhe->bhde", k, v))
        return (read * (1 / self.normalizer(q, k))).flatten(2)


class SummariesOfDetachedKeys(Summaries):
    def normalizer(self, q: Tensor, k: Tensor) -> Tensor:
        return super().normalizer(q, k.detach())


class SummariesLessTheLargest(Summaries):
    """Features are less their largest number, which cancels."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)) for each in self.qkv(x).chunk(3, -1))
        q, k = ((each - each.amax((1, 3), keepdim=True).detach()).exp() for each in (q, k))
        read = torch.einsum("bnhd,bhde->bnhe", q, torch.einsum("bnhd,bnhe->bhde", k, v))
        return (read / self.normalizer(q, k)).flatten(2)


class OfUnitLength(nn.Module):
    """Queries and keys are divided by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def length(self, x: Tensor) -> Tensor:
        return x.square().sum(-1, keepdim=True).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        q, k = (each / self.length(each) for each in (self.q(x), self.k(x)))
        return (4 * q @ k.mT).softmax(-1) @ self.v(x)  # type: ignore[no-any-return]


class LengthWithoutGradients(OfUnitLength):
    @torch.no_grad()
    def length(self, x: Tensor) -> Tensor:
        return super().length(x)


class LengthOfAFrozenPart(LengthWithoutGradients):
    """Lengths are frozen."""


class RunningSums(nn.Module):
    """Causal linear attention, written out: products of queries and keys, divided by a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def total(self, k: Tensor) -> Tensor:
        return k.cumsum(1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q.sigmoid(), k.sigmoid()
        read = (q @ k.mT).tril() @ v
        return read / ((q * self.total(k)).sum(-1, keepdim=True) + 1e-9)  # type: ignore[no-any-return]


class RunningSumsOfDetachedKeys(RunningSums):
    def total(self, k: Tensor) -> Tensor:
        return super().total(k.detach())


class RunningSumsWithoutGradients(RunningSumsOfDetachedKeys):
    """The normalizer is held constant: no gradient leads to it."""


class OneMatrix(nn.Module):
    """A state asks others, by one matrix: nothing else is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def query(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ x.mT / WIDTH**0.5).softmax(-1) @ x


class OneMatrixAsData(OneMatrix):
    def query(self, x: Tensor) -> Tensor:
        return super().query(x).data


class OneMatrixWithoutGradients(OneMatrix):
    def query(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().query(x)


class OneMatrixMadeAnew(OneMatrix):
    """A tensor that is made of another one's numbers."""

    def query(self, x: Tensor) -> Tensor:
        return torch.tensor(super().query(x).tolist(), dtype=x.dtype)


class OneFrozenMatrix(OneMatrixAsData):
    """The matrix is that of a teacher."""


class ForInference(OneMatrix):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


CASES = [
    Case("gradient", OneMatrixAsData, OneMatrix, of_module, has_line=False),
    Case("gradient", OneMatrixAsData, OneFrozenMatrix, of_module, has_line=False),
    Case("gradient", OneMatrixWithoutGradients, ForInference, of_module, has_line=False),
    Case("gradient", OneMatrixMadeAnew, OneMatrix, of_module, has_line=False),
    Case("gradient-of-the-whole", LengthWithoutGradients, OfUnitLength, of_module, has_line=False),
    Case("gradient-of-the-whole", LengthWithoutGradients, LengthOfAFrozenPart, of_module, has_line=False),
    Case("gradient-of-the-whole", SummariesOfDetachedKeys, Summaries, of_module, has_line=False),
    Case("gradient-of-the-whole", SummariesOfDetachedKeys, SummariesLessTheLargest, of_module, has_line=False),
    Case("gradient-of-the-whole", FeaturesWithoutGradients, Features, of_module, has_line=False),
    Case("gradient-of-the-whole", RunningSumsOfDetachedKeys, RunningSums, of_module, has_line=False),
    Case("gradient-of-the-whole", RunningSumsOfDetachedKeys, RunningSumsWithoutGradients, of_module, has_line=False),
    Case(
        "gradient-of-the-whole",
        divided_by_a_total_without_gradients,
        less_the_largest_without_gradients,
        has_line=False,
    ),
    Case("gradient-of-the-whole", divided_by_a_total_without_gradients, divided_by_a_total_on_purpose, has_line=False),
]
