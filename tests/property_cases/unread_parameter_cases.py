"""Methods that do not read what they are handed: a mask, or what another method of the same arguments reads."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_x_and_context, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split(self.q(x)), split(self.k(keys)), split(self.v(values))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e9)
        return self.out(joined(scores.softmax(-1) @ v))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_first = False
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)

    def forward(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        if self.norm_first:
            return self.normed_before(x, context, context_mask, pos)
        return self.normed_after(x, context, context_mask, pos)

    def normed_before(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return x + self.attention(self.norm(x), self.placed(context, pos), context, context_mask)

    def normed_after(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return self.norm(x + self.attention(x, self.placed(context, pos), context, context_mask))

    def placed(self, context: Tensor, pos: Tensor | None) -> Tensor:
        return context if pos is None else context + pos


class WithoutItsMask(Decoder):
    def normed_after(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return self.norm(x + self.attention(x, self.placed(context, pos), context))  # here


def of_decoder(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_x_and_context(module)


class OnceWithout(Decoder):
    """The keys get their positions with the norm before alone."""

    def normed_before(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return x + self.attention(self.norm(x), self.placed(context, pos), context, context_mask)

    def normed_after(  # here
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return self.norm(x + self.attention(x, context, context, context_mask))


class ForItsCallers(OnceWithout):
    def normed_before(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        return x + self.attention(self.norm(x), self.placed(context, pos), context, context_mask)

    def normed_after(
        self, x: Tensor, context: Tensor, context_mask: Tensor | None = None, pos: Tensor | None = None
    ) -> Tensor:
        """The same after the sum; pos is not used: the keys have their positions."""
        return self.norm(x + self.attention(x, context, context, context_mask))


class OfPairs(nn.Module):
    """Vectors of each query and key are handed over, for the keys and for the values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, a_key: Tensor, a_value: Tensor) -> Tensor:
        weights = ((q @ k.mT + (q.transpose(0, 1) @ a_key.mT).transpose(0, 1)) / q.shape[-1] ** 0.5).softmax(-1)
        return weights @ v + (weights.transpose(0, 1) @ a_value).transpose(0, 1)


class OfPairsOfKeys(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, a_key: Tensor, a_value: Tensor) -> Tensor:
        weights = ((q @ k.mT + (q.transpose(0, 1) @ a_key.mT).transpose(0, 1)) / q.shape[-1] ** 0.5).softmax(-1)
        return weights @ v + (weights.transpose(0, 1) @ a_key).transpose(0, 1)  # here


def of_pairs(kind: type[nn.Module]) -> Invocation:
    """A call with vectors of three queries and four keys."""
    arguments = {name: drawn(2, 3 + (name != "q"), WIDTH, seed=seed) for seed, name in enumerate("qkv")}
    arguments |= {name: drawn(3, 4, WIDTH, seed=seed) for seed, name in enumerate(("a_key", "a_value"), 3)}
    return Invocation(kind().double(), arguments, [*arguments], [Stream(name, name, 0, (1,)) for name in "qkv"])


CASES = [
    Case("vectors-of-values", OfPairsOfKeys, OfPairs, of_pairs),
    Case("mask-argument", WithoutItsMask, Decoder, of_decoder),
    Case("arguments-read", OnceWithout, ForItsCallers, of_decoder),
    Case("arguments-read", OnceWithout, Decoder, of_decoder),
]
