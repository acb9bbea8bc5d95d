"""Products of queries and keys that are not summed over the channels, and weights of channels by channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import Case, drawn, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

CHANNELS = 3


class WindowAttention(nn.Module):
    """Each place attends to the 3 x 3 places around it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False) for _ in range(3))

    def forward(self, image: Tensor) -> Tensor:
        q = self.q(image)[..., None]
        k, v = (
            F.pad(each(image), (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2) for each in (self.k, self.v)
        )
        return (self.scores(q, k).softmax(-1) * v).sum(-1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(1, keepdim=True) / CHANNELS**0.5


class NotSummed(WindowAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q * k  # here


def of_image(kind: type[nn.Module]) -> Invocation:
    """A call of a module of a map of features."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"image": drawn(2, CHANNELS, 4, 4, seed=0)}, ["image"], [Stream("image", "x", 0, (2, 3))])


class VectorPairs(nn.Module):
    """Of all pairs of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        products = self.q(x)[:, :, None] * self.k(x)[:, None]
        return (products.softmax(2) * self.v(x)[:, None]).sum(2)


class ChannelWise(VectorPairs):
    """Vector attention: each channel has weights of its own."""


class OfOneChannel(VectorPairs):
    """As many heads as channels."""

    num_heads = CHANNELS

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = CHANNELS


class OfHeadsOfOneChannel(nn.Module):
    """The setting is one of a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OfOneChannel()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class OfChannelsInside(OfHeadsOfOneChannel):
    def __init__(self) -> None:
        super().__init__()
        self.inner = VectorPairs()
        self.beside = OfOneChannel()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.beside.v(x)


def of_tokens(kind: type[nn.Module]) -> Invocation:
    """A call of a module of tokens."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"x": drawn(2, 5, CHANNELS, seed=0)}, ["x"], [Stream("x", "x", 0, (1,))])


class OverTheTokens(nn.Module):
    """Channels read channels (XCA)."""

    query_axis: int | None = -1
    key_axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(2 * CHANNELS, 2 * CHANNELS) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)).mT for each in (self.q, self.k, self.v))
        q = q if self.query_axis is None else F.normalize(q, dim=self.query_axis)
        scores = q @ F.normalize(k, dim=self.key_axis).mT  # here
        read = self.weights(scores) @ v
        return self.out(joined(read.mT))

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class OverTheChannelsThatAsk(OverTheTokens):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)  # here


class ReadInTheOtherDirection(OverTheTokens):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).mT  # here


class GatedByChannel(OverTheTokens):
    """What is changed after the softmax need not sum to 1."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * scores.sigmoid()


class KeysOverTheChannels(OverTheTokens):
    """Unit vectors of tokens times unit vectors of channels."""

    key_axis = -2


class OfNormalizedTokens(OverTheTokens):
    """Only keys have a length, over the channels: those of queries are part of what is learned."""

    query_axis, key_axis = None, -2


class OverTheHeads(OverTheTokens):
    """Channels read channels (XCA); both factors are normalized over axis 1, as F.normalize does by default."""

    query_axis, key_axis = 1, 1


class KeysOverTheHeads(OverTheTokens):
    key_axis = 1


class ByEinsum(nn.Module):
    """Channels read channels (XCA), with the heads behind the tokens."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(2 * CHANNELS, 2 * CHANNELS) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (2, -1)) for each in (self.q, self.k, self.v))
        q, k = (each / each.norm(dim=self.axis, keepdim=True) for each in (q, k))
        weights = torch.einsum("bnhc,bnhd->bhcd", q, k).softmax(-1)  # here
        return self.out(torch.einsum("bhcd,bnhd->bnhc", weights, v).flatten(2))


class ByEinsumOverTheHeads(ByEinsum):
    axis = 2


class ProductsOverTheTokens(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = (q.mT @ k / 6**0.5).softmax(-1)  # here
        return v @ weights.mT


class ProductsOverTheTokensAsItSays(ProductsOverTheTokens):
    """Self-attention across the channels."""


class ProductsOverTheTokensOfANorm(ProductsOverTheTokens):
    """Self-attention behind a norm, and by a softmax, whose own documentations speak of others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.softmax = nn.LayerNorm(6), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        weights = self.softmax(self.q(x).mT @ self.k(x) / 6**0.5)  # here
        return self.v(x) @ weights.mT


class OfANormAsItSays(ProductsOverTheTokensOfANorm):
    """Self-attention across the channels."""


class OfALetter(nn.Module):
    """Self-attention of two heads."""

    scores = "bihd,bjhd->bhij"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)) for each in self.qkv(x).chunk(3, -1))
        weights = (torch.einsum(self.scores, q, k) * 3**-0.5).softmax(-1)  # here
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class OfTwoLetters(OfALetter):
    scores = "bihd,bjhe->bhij"


class OfOneHead(nn.Module):
    """Self-attention."""

    scores = "bqd,bkd->bqk"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        products = torch.einsum(self.scores, self.q(x), self.k(x))  # here
        return (products / 6**0.5).softmax(-1) @ self.v(x)


class OfOneHeadAndTwoLetters(OfOneHead):
    scores = "bqd,bke->bqk"


def of_wide_tokens(kind: type[nn.Module]) -> Invocation:
    call = of_tokens(VectorPairs)
    call.target, call.arguments = kind(), {"x": drawn(2, 5, 2 * CHANNELS, seed=0)}
    prepare(call.target, 1)
    return call


CASES = [
    Case("attends-to-tokens", ProductsOverTheTokens, ProductsOverTheTokensAsItSays, of_wide_tokens),
    Case("attends-to-tokens", ProductsOverTheTokensOfANorm, OfANormAsItSays, of_wide_tokens),
    Case("softmax-over-keys", OverTheChannelsThatAsk, OverTheTokens, of_wide_tokens),
    Case("softmax-over-keys", ReadInTheOtherDirection, GatedByChannel, of_wide_tokens),
    Case("norms-over-one-axis", KeysOverTheChannels, OverTheTokens, of_wide_tokens),
    Case("norms-over-one-axis", KeysOverTheChannels, OfNormalizedTokens, of_wide_tokens),
    Case("norms-over-one-axis", OverTheHeads, OverTheTokens, of_wide_tokens),
    Case("norms-over-one-axis", KeysOverTheHeads, OverTheTokens, of_wide_tokens),
    Case("norms-over-one-axis", ByEinsumOverTheHeads, ByEinsum, of_wide_tokens),
    Case("products-summed", OfTwoLetters, OfALetter, of_wide_tokens),
    Case("products-summed", OfOneHeadAndTwoLetters, OfOneHead, of_wide_tokens),
    Case("products-summed", NotSummed, WindowAttention, of_image),
    Case("products-summed", VectorPairs, ChannelWise, of_tokens, has_line=False),
    Case("products-summed", VectorPairs, OfOneChannel, of_tokens, has_line=False),
    Case("products-summed", OfChannelsInside, OfHeadsOfOneChannel, of_tokens, has_line=False),
]
