"""Caches of decoders: of texts that are padded in front, beside an encoder, of several new tokens, and by default."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_x
from property_cases.cache_cases import TABLE, Past, attended, length, projected
from property_cases.cache_place_cases import Buffers
from regard.check.target import Invocation, Stream

Kept = dict[str, Tensor] | None


def of_x_alone(kind: type[nn.Module]) -> Invocation:
    """A call of a module, which may be given more."""
    return of_x(kind())


class OfPaddedTexts(nn.Module):
    """Causal attention of texts that are padded in front: attention_mask is 1 for tokens, also for those so far."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, past: Past = None) -> tuple[Tensor, Past]:
        n, tokens = length(past), x.shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(len(x), n + tokens, dtype=torch.long)
        places = self.places(attention_mask, n, tokens)
        q, k, v = projected(x + TABLE[places], past)
        allowed = torch.ones(tokens, n + tokens).tril(n).bool() & self.seen(attention_mask, n)[:, None, None].bool()
        weights = (q @ k.mT / 2).masked_fill(~allowed, -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2), (k, v)

    def places(self, mask: Tensor, n: int, tokens: int) -> Tensor:
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, n:]

    def seen(self, mask: Tensor, n: int) -> Tensor:
        return mask


class CountsPadding(OfPaddedTexts):
    def places(self, mask: Tensor, n: int, tokens: int) -> Tensor:
        places = torch.arange(n, n + tokens).expand(len(mask), -1)
        return super().places(mask, n, tokens) if n == 0 else places


class SeesPadding(OfPaddedTexts):
    def seen(self, mask: Tensor, n: int) -> Tensor:
        return mask if n == 0 else torch.ones_like(mask)


class KnowsNoPlaces(OfPaddedTexts):
    """Padding is hidden, and places are those in the batch, with a cache and without."""

    def places(self, mask: Tensor, n: int, tokens: int) -> Tensor:
        return torch.arange(n, n + tokens).expand(len(mask), -1)


W = drawn(WIDTH, WIDTH, seed=48) / 3


class BesideAnEncoder(nn.Module):
    """A decoder layer: causal attention to itself, then to what an encoder returned."""

    def forward(self, x: Tensor, context: Tensor, cache: Kept = None) -> Tensor:
        past = None if cache is None or "k" not in cache else (cache["k"], cache["v"])
        n = length(past)
        q, k, v = projected(x + TABLE[n : n + x.shape[1]], past)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        h = x + attended(q, k, v, n)
        keys = self.keys(h, context, cache)
        return h + (h @ W @ keys.mT / WIDTH**0.5).softmax(-1) @ keys  # type: ignore[no-any-return]

    def keys(self, x: Tensor, context: Tensor, cache: Kept) -> Tensor:
        if cache is None:
            return context
        cache["of_context"] = cache.get("of_context", context)
        return cache["of_context"]


class AppendsItsTokens(BesideAnEncoder):
    def keys(self, x: Tensor, context: Tensor, cache: Kept) -> Tensor:
        if cache is None:
            return context
        cache["of_context"] = torch.cat([cache["of_context"], x], 1) if "of_context" in cache else context
        return cache["of_context"]


def of_x_and_encoded(kind: type[nn.Module]) -> Invocation:
    """A call of a decoder of 5 tokens with 3 of an encoder."""
    streams = [Stream("x", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    arguments: dict[str, Any] = {"x": drawn(2, 5, WIDTH, seed=0), "context": drawn(2, 3, WIDTH, seed=1)}
    return Invocation(kind(), arguments, ["x", "context"], streams)


class MaskedBesideWhatIsKept(nn.Module):
    """A mask is made for several new tokens alone, and it is as wide as all tokens so far."""

    def forward(self, x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        n, tokens = length(past), x.shape[1]
        q, k, v = projected(x + TABLE[n : n + tokens], past)
        scores = q @ k.mT / 2
        if tokens > 1:
            scores = scores.masked_fill(self.hidden(tokens, n), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), (k, v)

    def hidden(self, tokens: int, n: int) -> Tensor:
        return torch.ones(tokens, n + tokens).triu(1 + n).bool()


class MaskedFromTheFirstKey(MaskedBesideWhatIsKept):
    def hidden(self, tokens: int, n: int) -> Tensor:
        return torch.ones(tokens, n + tokens).triu(1).bool()


class MaskedBehindItsOwn(MaskedBesideWhatIsKept):
    def hidden(self, tokens: int, n: int) -> Tensor:
        return torch.cat([torch.ones(tokens, tokens).triu(1), torch.zeros(tokens, n)], 1).bool()


class ReadsFromItsStart(Buffers):
    """It begins with the first token where it is not told another."""

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        end = start_pos + x.shape[1]
        q, k, v = projected(x + TABLE[start_pos:end], None)
        self.cache_k[:, :, start_pos:end] = k  # here
        self.cache_v[:, :, start_pos:end] = v
        first = self.first(start_pos)
        return attended(q, self.cache_k[:, :, first:end], self.cache_v[:, :, first:end], start_pos - first)

    def first(self, start: int) -> int:
        return 0


class ReadsItsOwnAlone(ReadsFromItsStart):
    def first(self, start: int) -> int:
        return start


CASES = [
    *(
        Case("cache-mask", wrong, right, of_x_alone, has_line=False)
        for wrong, right in ((CountsPadding, OfPaddedTexts), (SeesPadding, KnowsNoPlaces))
    ),
    Case("cache-equals-whole", AppendsItsTokens, BesideAnEncoder, of_x_and_encoded, has_line=False, attentions=2),
    Case("cache-mask", MaskedFromTheFirstKey, MaskedBesideWhatIsKept, of_x_alone, has_line=False),
    Case("cache-mask", MaskedBehindItsOwn, MaskedBesideWhatIsKept, of_x_alone, has_line=False),
    Case("cache-places", ReadsItsOwnAlone, ReadsFromItsStart, of_x_alone),
]
