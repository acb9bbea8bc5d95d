"""Attentions of queries, keys and values inside of a model that hands them the same sequence three times."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined((split(q) @ split(k).mT / 2).softmax(-1) @ split(v))  # here


class _Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))


class OfThree(_Projected):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attended(self.w_q(query), self.w_k(key), self.w_v(value))


class WithQueriesOfKeys(_Projected):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attended(self.w_q(key), self.w_k(key), self.w_v(value))


class WithKeysOfQueries(_Projected):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attended(self.w_q(query), self.w_k(query), self.w_v(value))


class WithValuesOfKeys(_Projected):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attended(self.w_q(query), self.w_k(key), self.w_v(key))


class OfOneSequence(_Projected):
    """Reads three sequences where it is told so."""

    are_several = False

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.are_several:
            return attended(self.w_q(query), self.w_k(key), self.w_v(value))
        return attended(self.w_q(query), self.w_k(query), self.w_v(query))


class WithOneProjection(nn.Module):
    """Its keys are its queries, whatever it is handed over."""

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q = self.w_q(query)
        return attended(q, q, self.w_v(value))


class _Layer(nn.Module):
    kind: type[nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.attention = self.kind()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x)


class LayerOfThree(_Layer):
    kind = OfThree


class LayerWithQueriesOfKeys(_Layer):
    kind = WithQueriesOfKeys


class LayerWithKeysOfQueries(_Layer):
    kind = WithKeysOfQueries


class LayerWithValuesOfKeys(_Layer):
    kind = WithValuesOfKeys


class LayerOfOneSequence(_Layer):
    kind = OfOneSequence


class LayerWithOneProjection(_Layer):
    kind = WithOneProjection


CASES = [
    Case("queries-from-their-input", LayerWithQueriesOfKeys, LayerOfThree, of_module),
    Case("keys-from-their-input", LayerWithKeysOfQueries, LayerOfOneSequence, of_module),
    Case("values-from-their-input", LayerWithValuesOfKeys, LayerWithOneProjection, of_module),
]
