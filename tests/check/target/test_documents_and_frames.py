"""Calls with the words of the sentences of documents, and with frames of which fewer tokens are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import axes, first
from torch import Tensor, nn

from regard.check import check


class Pooled(nn.Module):
    over = 1

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(12, 8), nn.Linear(8, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        weights = self.score(self.hidden(states).tanh()).softmax(self.over)
        return (weights * states).sum(1)


class PooledByOnes(Pooled):
    over = -1


class OfDocuments(nn.Module):
    """Sentences are pooled states of their words, read from both sides."""

    pooling: Any = Pooled

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, 10)
        self.words = nn.GRU(10, 6, batch_first=True, bidirectional=True)
        self.sentences = nn.GRU(12, 6, batch_first=True, bidirectional=True)
        self.of_words, self.of_sentences = self.pooling(), self.pooling()

    def forward(self, documents: Tensor) -> Tensor:
        n_docs, n_sentences, n_words = documents.shape
        states, _ = self.words(self.table(documents.reshape(-1, n_words)))
        vectors = self.of_words(states).view(n_docs, n_sentences, -1)
        out: Tensor = self.of_sentences(self.sentences(vectors)[0])
        return out


def test_documents_alone_are_the_words_of_their_sentences() -> None:
    call = first(OfDocuments, vocab_size=20)
    assert axes(call) == [("ids", 0, (1, 2), None)]
    assert not call.documents


@pytest.mark.more
@pytest.mark.parametrize("kind", [Pooled, PooledByOnes])
def test_words_of_several_sentences_are_judged(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfDocuments, "pooling", kind)
    found = check(OfDocuments, args={"vocab_size": 20})
    assert found.verdict == ("wrong" if kind is PooledByOnes else "right")


class OfFrames(nn.Module):
    """Of two frames one token is made, and of two of these one again."""

    def __init__(self, idim: int, adim: int = 8) -> None:
        super().__init__()
        self.fewer = nn.Sequential(nn.Conv2d(1, adim, 3, 2), nn.ReLU(), nn.Conv2d(adim, adim, 3, 2))
        self.out = nn.Linear(adim * self.left(idim), adim)
        self.attention = nn.MultiheadAttention(adim, 2, batch_first=True)

    def left(self, count: Any) -> Any:
        return ((count - 1) // 2 - 1) // 2

    def forward(self, xs: Tensor, xlens: Tensor) -> tuple[Tensor, Tensor]:
        """xs: (B, T, idim) features of frames, xlens: (B,)."""
        x = self.out(self.fewer(xs[:, None]).transpose(1, 2).flatten(2))
        is_padding = torch.arange(x.shape[1]) >= self.counted(xlens)[:, None]
        return self.attention(x, x, x, is_padding, need_weights=False)[0], self.left(xlens)

    def counted(self, xlens: Tensor) -> Tensor:
        return self.left(xlens)  # type: ignore[no-any-return]


class OfAllFrames(OfFrames):
    def counted(self, xlens: Tensor) -> Tensor:
        return xlens


def test_a_width_that_is_written_by_the_name_of_an_argument_is_that_argument() -> None:
    call = first(OfFrames, idim=14)
    assert call.arguments["xs"].shape[-1] == 14
    assert call.lengths == ["xlens"]


@pytest.mark.more
@pytest.mark.parametrize("kind", [OfFrames, OfAllFrames])
def test_a_mask_of_fewer_tokens_is_of_their_lengths(kind: Any) -> None:
    found = check(kind, args={"idim": 14})
    assert found.verdict == ("wrong" if kind is OfAllFrames else "right")


class WrittenByMistake(nn.Module):
    """Its documentation says the width of its feed-forward network for that of its tokens."""

    def __init__(self, width: int, fully_connected: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(width, fully_connected), nn.Linear(fully_connected, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch_size, seq_len, fully_connected)"""
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.outer(torch.relu(self.inner(x)))


def test_a_width_that_is_written_and_that_nothing_takes_is_not_meant() -> None:
    assert axes(first(WrittenByMistake, width=8, fully_connected=20)) == [("x", 0, (1,), None)]


class OfAnyLength(nn.Module):
    """Of at most `block_size` tokens, as its table of positions has."""

    def __init__(self, width: int, block_size: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(block_size, width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, C)"""
        x = x + self.places[: x.shape[1]]
        return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def test_a_letter_for_the_number_of_tokens_is_not_the_largest_number() -> None:
    assert first(OfAnyLength, width=8, block_size=40).arguments["x"].shape[1] < 40


def over_frames(video, w_in, w_out, n_heads=4):  # type: ignore[no-untyped-def]
    """video: (batch, frames, pixels, dim). Each pixel attends over its own frames."""
    b, f, p, d = video.shape
    q, k, v = (video.transpose(1, 2) @ w_in).reshape(b, p, f, 3, n_heads, d // n_heads).unbind(3)
    weights = (torch.einsum("bpihd,bpjhd->bphij", q, k) / (d // n_heads) ** 0.5).softmax(-1)
    return (torch.einsum("bphij,bpjhd->bpihd", weights, v).reshape(b, p, f, d) @ w_out).transpose(1, 2)


def over_frames_scaled_by_the_width(video, w_in, w_out, n_heads=4):  # type: ignore[no-untyped-def]
    """video: (batch, frames, pixels, dim). Each pixel attends over its own frames."""
    b, f, p, d = video.shape
    q, k, v = (video.transpose(1, 2) @ w_in).reshape(b, p, f, 3, n_heads, d // n_heads).unbind(3)
    weights = (torch.einsum("bpihd,bpjhd->bphij", q, k) / d**0.5).softmax(-1)
    return (torch.einsum("bphij,bpjhd->bpihd", weights, v).reshape(b, p, f, d) @ w_out).transpose(1, 2)


def test_a_function_of_frames_and_matrices_is_called_with_the_axes_that_are_written() -> None:
    assert check(over_frames).verdict == "different by design"
    assert "scale" in {each.id for each in check(over_frames_scaled_by_the_width).causes}
