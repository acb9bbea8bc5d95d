"""Attention over the frames of a film: a token sees its own frame whole, and the earlier ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_styles import tokens_call
from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation, Stream

FRAMES, ROWS, COLUMNS = 3, 2, 2
W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=each) / 3 for each in range(90, 93))


def of_a_film(function: Any) -> Invocation:
    """A call of (batch, frames, rows, columns, width)."""
    call = tokens_call(function, drawn(2, FRAMES, ROWS, COLUMNS, WIDTH, seed=0))
    call.streams = [Stream("x", "x", 0, (1, 2, 3))]
    return call


def over_all(x: Tensor, allowed: Tensor) -> Tensor:
    q, k, v = (split(x.flatten(1, 3) @ each) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / 2  # here
    return joined(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v).view(x.shape)


def by_frames(tokens: int) -> Tensor:
    frame = torch.arange(tokens) // (ROWS * COLUMNS)
    return frame[:, None] >= frame


def token_by_token(x: Tensor) -> Tensor:
    """Autoregressive over frames: a patch attends to all patches of its own frame and to the frames before it."""
    return over_all(x, torch.ones(12, 12).tril().bool())


def frame_by_frame(x: Tensor) -> Tensor:
    """Autoregressive over frames: a patch attends to all patches of its own frame and to the frames before it."""
    return over_all(x, by_frames(12))


def token_by_token_on_purpose(x: Tensor) -> Tensor:
    """Autoregressive over the patches of all frames, in their order."""
    return over_all(x, torch.ones(12, 12).tril().bool())


def own_frame(x: Tensor) -> Tensor:
    """Causal self-attention of the patches in a film."""
    frame = torch.arange(12) // (ROWS * COLUMNS)
    return over_all(x, frame[:, None] == frame)


def own_place(x: Tensor) -> Tensor:
    """Causal self-attention of the patches in a film."""
    place = torch.arange(12) % (ROWS * COLUMNS)
    return over_all(x, place[:, None] == place)


def last_two_frames(x: Tensor) -> Tensor:
    """Causal self-attention of a few frames, each whole."""
    frame = torch.arange(12) // (ROWS * COLUMNS)
    distance = frame[:, None] - frame
    return over_all(x, (distance >= 0) & (distance < 2))


def next_two_frames(x: Tensor) -> Tensor:
    """Causal self-attention of a few frames, each whole."""
    frame = torch.arange(12) // (ROWS * COLUMNS)
    distance = frame - frame[:, None]
    return over_all(x, (distance >= 0) & (distance < 2))


def frames_in_a_row(x: Tensor) -> Tensor:
    """Causal self-attention; the frames of a clip are samples of their own."""
    frames = x.unflatten(1, (2, -1)).flatten(0, 1)
    q, k, v = (split(frames @ each) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / 2
    return joined(scores.softmax(-1) @ v).view(x.shape)


def halves_in_a_row(x: Tensor) -> Tensor:
    """Causal self-attention, in the two halves of a text."""
    halves = x.unflatten(1, (2, -1)).flatten(0, 1)
    q, k, v = (split(halves @ each) for each in (W_Q, W_K, W_V))
    scores = q @ k.mT / 2  # here
    return joined(scores.softmax(-1) @ v).view(x.shape)


CASES = [
    Case("mask-pattern", own_place, own_frame, of_a_film),
    Case("mask-pattern", own_place, last_two_frames, of_a_film),
    Case("mask-pattern", next_two_frames, last_two_frames, of_a_film),
    Case("mask-pattern", halves_in_a_row, frames_in_a_row, of_x),
    Case("own-frame-whole", token_by_token, frame_by_frame, of_a_film),
    Case("own-frame-whole", token_by_token, token_by_token_on_purpose, of_a_film),
]
