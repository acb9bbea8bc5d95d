"""Axes that `view` makes in another order than the numbers lie in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, drawn, of_module, of_x, of_x_and_context
from regard.check.target import Invocation, Stream

W_QKV = drawn(WIDTH, 3 * WIDTH, seed=20)
W_Q, W_K, W_V = W_QKV.split(WIDTH, 1)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of sequences with axes of tokens and heads in front of the width; anything before them is samples."""
    weights = torch.einsum("bihd,bjhd->bijh", q, k).div(q.shape[-1] ** 0.5).softmax(2)
    return torch.einsum("bijh,bjhd->bihd", weights, v)


def tokens_then_heads(x: Tensor) -> Tensor:
    q, k, v = (x @ W_QKV).view(len(x), x.shape[1], HEADS, -1).chunk(3, -1)
    return attended(q, k, v).reshape(x.shape)


def heads_then_tokens(x: Tensor) -> Tensor:
    q, k, v = (x @ W_QKV).view(len(x), HEADS, x.shape[1], -1).chunk(3, -1)
    return attended(q, k, v).reshape(x.shape)


def tokens_then_samples(x: Tensor) -> Tensor:
    q, k, v = (x @ W_QKV).view(x.shape[1], len(x), HEADS, -1).chunk(3, -1)
    return attended(q, k, v).reshape(x.shape)


def blocks_of_two(x: Tensor) -> Tensor:
    """As many tokens as make whole blocks; the others are padding that is cut off again."""
    missing = -x.shape[1] % 2
    padded = torch.nn.functional.pad(x, (0, 0, 0, missing))
    return tokens_then_heads(padded.unflatten(1, (-1, 2)).flatten(0, 1)).view(padded.shape)[:, : x.shape[1]]


def of_channels(x: Tensor, context: Tensor, *, samples_first: bool) -> Tensor:
    """Heads whose channels stand in front of the tokens."""
    order = (len(x), WIDTH // HEADS) if samples_first else (WIDTH // HEADS, len(x))
    given = ((x, W_Q), (context, W_K), (context, W_V))
    q, k, v = ((each @ weight).mT.reshape(*order, HEADS, -1) for each, weight in given)
    weights = torch.einsum("bdhn,bdhm->bhnm", q, k).div(q.shape[1] ** 0.5).softmax(-1)
    read = torch.einsum("bhnm,bdhm->bdhn", weights, v)
    return read.reshape(len(x), WIDTH, -1).mT


def channels_then_samples(x: Tensor, context: Tensor) -> Tensor:
    return of_channels(x, context, samples_first=False)


def samples_then_channels(x: Tensor, context: Tensor) -> Tensor:
    return of_channels(x, context, samples_first=True)


class Viewed(nn.Module):
    """Channels as (heads, width), or as (width, heads)."""

    is_turned = False

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.projections = nn.ModuleList(nn.Linear(num_heads * 6, num_heads * 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        sizes = (self.num_heads, 6)[:: -1 if self.is_turned else 1]
        q, k, v = (each(x).unflatten(-1, sizes) for each in self.projections[:3])
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / sizes[1] ** 0.5  # here
        read = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        return self.projections[3](read)


class NeverSplit(Viewed):
    """Its heads are one."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x) for each in self.projections[:3])
        scores = q @ k.mT / 12**0.5  # here
        return self.projections[3](scores.softmax(-1) @ v)


class OneNumberEach(NeverSplit):
    """As many heads as channels."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (12, 1)).transpose(1, 2) for each in self.projections[:3])
        weights = (q @ k.mT).softmax(-1)  # here
        return self.projections[3]((weights @ v).transpose(1, 2).flatten(2))


class OneOfTheHeads(NeverSplit):
    """Told how many heads there are beside it, it is as wide as one of them."""

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.projections = nn.ModuleList(nn.Linear(12, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x) for each in self.projections[:3])
        return (q @ k.mT / 6**0.5).softmax(-1) @ v


class GatedByHeads(nn.Module):
    """Tokens that learned matrices mix, one for each head; beside them an attention of one head (aMLP)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.attention, self.gate = OneHead(), Gate(num_heads)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x) * self.attention(x)


class OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x) for each in self.projections[:3])
        return self.projections[3]((q @ k.mT / 12**0.5).softmax(-1) @ v)


class Gate(nn.Module):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.weight = num_heads, nn.Parameter(torch.ones(num_heads, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("hmn,bnhd->bmhd", self.weight, x.unflatten(-1, (self.num_heads, -1))).flatten(2)


class ViewedTurned(Viewed):
    is_turned = True


def windows_of(x: Tensor, *, are_exchanged: bool) -> Tensor:
    """Attention in windows of 2 x 2 of a picture as wide as a token, which are put together again."""
    batch, height, width, channels = x.shape
    windows = x.view(batch, height // 2, 2, width // 2, 2, channels).transpose(2, 3).reshape(-1, 4, channels)
    read = (windows @ windows.mT / channels**0.5).softmax(-1) @ windows
    read = read.view(batch, height // 2, width // 2, 2, 2, channels).transpose(2, 3).reshape(x.shape)
    places = read.flatten(1, 2)
    return x + ((places.mT.reshape(places.shape) if are_exchanged else places) @ W_Q).view(x.shape)  # here


def windows_and_an_exchanged_picture(x: Tensor) -> Tensor:
    return windows_of(x, are_exchanged=True)


def windows_put_together(x: Tensor) -> Tensor:
    return windows_of(x, are_exchanged=False)


def of_tall_picture(function: Any) -> Invocation:
    """A picture as high as a token is wide."""
    stream = Stream("x", "x", 0, (1, 2))
    return Invocation(function, {"x": drawn(2, WIDTH, 4, WIDTH, seed=26)}, ["x"], [stream])


class AskedByVectors(Viewed):
    """Five learned vectors ask: there are as many scores of a token as vectors, in each head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.projections = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.vectors = nn.Parameter(torch.randn(5, 12))

    def forward(self, x: Tensor) -> Tensor:
        sizes = (self.num_heads, -1)[:: -1 if self.is_turned else 1]
        q, k, v = (
            each(of).unflatten(-1, sizes).transpose(-2, -3)
            for each, of in zip(self.projections, (self.vectors, x, x), strict=False)
        )
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.projections[3]((weights @ v).transpose(1, 2).flatten(2))


class AskedByVectorsTurned(AskedByVectors):
    is_turned = True


class SubtractedOutputs(nn.Module):
    """Differential attention (Ye et al. 2024): what half of the heads read is taken from what the other half read."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, heads  # as wide as there are heads
        inner = heads * self.head_dim
        self.queries, self.keys = nn.Linear(12, 2 * inner), nn.Linear(12, 2 * inner)
        self.values, self.joined = nn.Linear(12, inner), nn.Linear(inner, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (self.queries, self.keys, self.values)
        )
        weights = (q @ k.mT / self.head_dim**0.5).softmax(-1)
        read = weights @ v.repeat(1, 2, 1, 1)
        return self.joined((read[:, : self.heads] - read[:, self.heads :]).transpose(1, 2).flatten(2))


OVER_TOKENS, OVER_PLACES = drawn(WIDTH, 1, 3, seed=24), drawn(WIDTH, 1, 3, 3, seed=25)


def convolved(x: Tensor) -> Tensor:
    """(batch, channels, tokens): each channel by itself."""
    return torch.nn.functional.conv1d(x.mT, OVER_TOKENS, padding=1, groups=WIDTH).sigmoid()


def convolved_and_reshaped(x: Tensor) -> Tensor:
    x = x + tokens_then_heads(x)
    return x + convolved(x).reshape(x.shape) @ W_Q  # here


def convolved_and_transposed(x: Tensor) -> Tensor:
    x = x + tokens_then_heads(x)
    return x + convolved(x).mT.reshape(x.shape) @ W_Q


def added_to(x: Tensor, picture: Tensor) -> Tensor:
    return x + torch.nn.functional.conv2d(picture, OVER_PLACES, padding=1, groups=WIDTH).flatten(2).mT


def picture_of_rows(x: Tensor) -> Tensor:
    x = x + tokens_then_heads(x)
    return added_to(x, x.view(len(x), WIDTH, 2, 2))  # here


def picture_of_tokens(x: Tensor) -> Tensor:
    x = x + tokens_then_heads(x)
    return added_to(x, x.mT.reshape(len(x), WIDTH, 2, 2))


def of_three_heads(kind: Any) -> Invocation:
    return of_two_heads(kind, 3)


def of_two_heads(kind: Any, heads: int = 2) -> Invocation:
    module = of_module(lambda: kind(heads)).target
    call = of_x(module)
    call.arguments["x"] = drawn(2, 4, 12, seed=0)
    return call


class WidthForHeads(nn.Module):
    """As many heads as channels."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        width = 6 * heads
        self.heads = width
        self.qkv, self.out = nn.Linear(12, 3 * width, bias=False), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class HeadsOfAWidth(WidthForHeads):
    """As many heads as are told."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.heads = heads


class ANarrowHeadEach(WidthForHeads):
    """Nobody tells how many heads there are."""

    def __init__(self, width: int) -> None:
        super().__init__(2)
        self.heads = width = 12
        self.out = nn.Linear(width, 12)


CASES = [
    Case("heads-as-told", WidthForHeads, HeadsOfAWidth, of_two_heads),
    Case("heads-as-told", WidthForHeads, ANarrowHeadEach, of_two_heads),
    Case("sum-of-one-of-heads", heads_then_tokens, tokens_then_heads, of_x, has_line=False),
    Case("sum-of-one-of-heads", heads_then_tokens, blocks_of_two, of_x, has_line=False),
    Case("samples-apart", tokens_then_samples, tokens_then_heads, of_x, has_line=False),
    Case("samples-apart", channels_then_samples, samples_then_channels, of_x_and_context, has_line=False),
    Case("axes-transposed", convolved_and_reshaped, convolved_and_transposed, of_x),
    Case("axes-transposed", picture_of_rows, picture_of_tokens, of_x),
    Case("output-of-the-token", windows_and_an_exchanged_picture, windows_put_together, of_tall_picture),
    Case("heads-as-told", ViewedTurned, Viewed, of_two_heads),
    Case("heads-as-told", AskedByVectorsTurned, AskedByVectors, of_three_heads),
    Case("heads-as-told", AskedByVectorsTurned, SubtractedOutputs, of_three_heads),
    Case("heads-as-told", NeverSplit, Viewed, of_two_heads),
    Case("heads-as-told", NeverSplit, GatedByHeads, of_two_heads),
    Case("heads-as-told", OneNumberEach, OneOfTheHeads, of_two_heads),
]
