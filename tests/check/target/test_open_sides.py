"""Blocks whose picture has sides that the model around them sets, and masks for shifted windows alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.target import invocations
from regard.check.target.picture_sides import sides_of

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfWindows(nn.Module):
    """Of rows that are as long as a window; the model around it sets H and W."""

    def __init__(self, dim: int = 8, window_size: int = 2, shift_size: int = 0) -> None:
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.H = self.W = None

    def chosen(self, mask_matrix: Tensor) -> Tensor | None:
        return None

    def forward(self, x: Tensor, mask_matrix: Tensor) -> Tensor:
        batch, length, width = x.shape
        assert length == self.H * self.W, "the sides are others"
        if self.shift_size > 0:
            x = torch.roll(x, -self.shift_size, 1)
        mask = None
        if self.shift_size > 0:
            mask = mask_matrix
        q, k, v = self.qkv(x.view(batch, -1, self.window_size, width)).chunk(3, -1)
        scores = q @ k.mT * width**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        read = self.proj(scores.softmax(-1) @ v).view(batch, length, width)
        return torch.roll(read, self.shift_size, 1)


class NeverMasked(OfWindows):
    def forward(self, x: Tensor, mask_matrix: Tensor) -> Tensor:
        allowed = mask_matrix.bool()
        batch, length, width = x.shape
        assert length == self.H * self.W, "the sides are others"
        q, k, v = self.qkv(x.view(batch, -1, self.window_size, width)).chunk(3, -1)
        scores = q @ k.mT * width**-0.5
        scores.masked_fill(~allowed[: self.window_size, : self.window_size], -torch.inf)
        return self.proj(scores.softmax(-1) @ v).view(batch, length, width)


def test_sides_that_are_none_are_set_as_a_model_sets_them() -> None:
    call = next(invocations(OfWindows, args={}))
    sides = sides_of(call.target)
    assert sides == (2, 4)
    assert call.arguments["x"].shape[1] == sides[0] * sides[1]


def test_a_mask_for_shifted_windows_has_no_effect_on_others() -> None:
    assert check(OfWindows).verdict in ("right", "different by design")
    assert check(NeverMasked).verdict == "wrong"
