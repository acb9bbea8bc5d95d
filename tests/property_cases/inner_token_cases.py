"""Attention over the places of a picture, after a norm over all of them; and attention of learned queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

HEIGHT, BREADTH = 2, 3
CHANNELS = 12


class OfAMap(nn.Module):
    """Of (batch, channels, height, width): a query for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, CHANNELS)
        self.q, self.k, self.v, self.out = (nn.Linear(CHANNELS, CHANNELS) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(self.norm(x))
        q, k, v = (split(each(tokens)) for each in (self.q, self.k, self.v))
        heads = (q @ k.mT / (CHANNELS // 2) ** 0.5).softmax(-1) @ v  # here
        return x + self.put_back(self.projected(heads), x)

    def cut(self, x: Tensor) -> Tensor:
        return x.flatten(2).mT

    def projected(self, heads: Tensor) -> Tensor:
        return self.out(joined(heads))

    def put_back(self, tokens: Tensor, x: Tensor) -> Tensor:
        return tokens.mT.reshape(x.shape)


class PutBackAsChannels(OfAMap):
    def put_back(self, tokens: Tensor, x: Tensor) -> Tensor:
        return tokens.reshape(x.shape)


class CutByColumns(OfAMap):
    """And put back by rows."""

    def cut(self, x: Tensor) -> Tensor:
        return x.mT.flatten(2).mT


class CutAndPutBackByColumns(CutByColumns):
    def put_back(self, tokens: Tensor, x: Tensor) -> Tensor:
        return tokens.mT.unflatten(2, (BREADTH, HEIGHT)).mT


class HeadsAsTokens(OfAMap):
    def projected(self, heads: Tensor) -> Tensor:
        return self.out(heads.reshape(len(heads), HEIGHT * BREADTH, CHANNELS))


class NormedAfterwards(OfAMap):
    """Each place changes all others by the second norm, which is no mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_of_sums = nn.GroupNorm(3, CHANNELS)

    def put_back(self, tokens: Tensor, x: Tensor) -> Tensor:
        return self.norm_of_sums(super().put_back(tokens, x))


class HeadsAsTokensNormedAfterwards(NormedAfterwards):
    def projected(self, heads: Tensor) -> Tensor:
        merged = heads.reshape(len(heads), HEIGHT * BREADTH, CHANNELS)
        return self.out(merged)  # here


class SecondHeadLost(OfAMap):
    def projected(self, heads: Tensor) -> Tensor:
        return self.out(joined(heads[:, :1].expand_as(heads)))


def of_a_map(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    x = drawn(2, CHANNELS, HEIGHT, BREADTH, seed=0)
    x = torch.cat([x, drawn(2, CHANNELS, HEIGHT, BREADTH, seed=1)])[:4]
    return Invocation(module, {"x": x}, ["x"], [Stream("x", "x", 0, (2, 3))])


class OfLearnedQueries(nn.Module):
    """Five of them read (batch, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Embedding(5, WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        asking = self.queries.weight.expand(len(x), -1, -1)
        q, k, v = split(self.q(asking)), split(self.k(x)), split(self.v(x))
        return self.out(self.merged(self.scaled(q @ k.mT).softmax(-1) @ v))  # here

    def scaled(self, scores: Tensor) -> Tensor:
        return scores / 2

    def merged(self, heads: Tensor) -> Tensor:
        return joined(heads)


class MergedWithoutATranspose(OfLearnedQueries):
    def merged(self, heads: Tensor) -> Tensor:
        return heads.reshape(len(heads), -1, WIDTH)


class ScaledByTheWidth(OfLearnedQueries):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores / WIDTH**0.5


class AsksWhatTheyRead(OfLearnedQueries):
    """The tokens ask what the learned queries have read of them."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, out = self.second
        read = super().forward(x)
        scores = split(q(x)) @ split(k(read)).mT / 2
        return x + out(joined(self.weights(scores) @ split(v(read))))

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class AsksOverTheQueries(AsksWhatTheyRead):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)  # here


CASES = [
    Case("output-of-the-token", PutBackAsChannels, OfAMap, of_a_map),
    Case("output-of-the-token", CutByColumns, CutAndPutBackByColumns, of_a_map),
    Case("output-of-the-token", HeadsAsTokens, OfAMap, of_a_map, has_line=False),
    Case("output-of-the-token", HeadsAsTokensNormedAfterwards, NormedAfterwards, of_a_map),
    Case("heads-in-output", SecondHeadLost, OfAMap, of_a_map),
    Case("output-of-the-token", MergedWithoutATranspose, OfLearnedQueries, of_module),
    Case("scale", ScaledByTheWidth, OfLearnedQueries, of_module, has_line=False),
    Case("softmax-over-keys", AsksOverTheQueries, AsksWhatTheyRead, of_module, attentions=2),
]
