"""What only calls of other sizes than the first show: fewer heads of keys, as many heads as windows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check.conclusion import analyses_of
from regard.check.sandbox.torch_settings import UserSettings

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Grouped(nn.Module):
    """Keys and values are repeated where there are fewer heads of them."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int | None = None) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.width = d_model // n_heads
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * self.width * self.n_kv_heads)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = (each.unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2) for each in self.kv(x).chunk(2, -1))
        keys, values = self.repeated(k, v) if self.n_kv_heads < self.n_heads else (k, v)
        read = (q @ keys.mT / self.width**0.5).softmax(-1) @ values
        return self.out(read.transpose(1, 2).flatten(2)), k, v

    def repeated(self, k: Tensor, v: Tensor) -> list[Tensor]:
        return [each.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for each in (k, v)]


class KeysRepeatedTwice(Grouped):
    def repeated(self, k: Tensor, v: Tensor) -> list[Tensor]:
        return super().repeated(k, k)


@pytest.mark.parametrize(("kind", "wanted"), [(Grouped, set()), (KeysRepeatedTwice, {"projection-used"})])
def test_values_that_are_handed_out_alone_are_seen_where_heads_share_them(kind: type, wanted: set[str]) -> None:
    analyses, _ = analyses_of(kind, {}, {}, UserSettings())
    assert analyses[0].violations == []
    assert {each.property for one in analyses for each in one.violations} == wanted


class Shifted(nn.Module):
    """Windows of a rolled map (batch, channels, height, width), with a mask for each of them."""

    mask_axis = 1

    def __init__(self, dim: int, window_size: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.window_size, self.num_heads = window_size, num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def cut(self, x: Tensor) -> Tensor:
        """(batch, height, width, channels) as (batch, windows, tokens, channels)."""
        parted = x.unflatten(1, (-1, self.window_size)).unflatten(3, (-1, self.window_size))
        return parted.transpose(2, 3).flatten(1, 2).flatten(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        (height, width), size = x.shape[2:], self.window_size
        shift = size // 2
        regions = torch.zeros(1, height, width, 1)
        regions[:, -shift:] += 1
        regions[:, :, -shift:] += 2
        parts = self.cut(regions)[0]
        mask = torch.where(parts == parts.mT, 0.0, -100.0).to(x.dtype).unsqueeze(self.mask_axis)
        windows = self.cut(x.movedim(1, -1).roll((-shift, -shift), (1, 2)))
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.num_heads, -1)).permute(3, 0, 1, 4, 2, 5)
        read = ((q @ k.mT / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v).transpose(2, 3).flatten(3)
        rows = self.out(read).unflatten(1, (height // size, -1)).unflatten(3, (size, size)).transpose(2, 3)
        return rows.flatten(1, 2).flatten(2, 3).roll((shift, shift), (1, 2)).movedim(-1, 1)


class MaskedByHeads(Shifted):
    mask_axis = 0


@pytest.mark.more
@pytest.mark.parametrize(("kind", "wanted"), [(Shifted, set()), (MaskedByHeads, {"mask-same-for-heads"})])
def test_masks_of_windows_that_are_added_to_heads_are_seen_where_there_are_as_many(
    kind: type, wanted: set[str]
) -> None:
    analyses, _ = analyses_of(kind, {}, {}, UserSettings())
    assert {each.property for one in analyses for each in one.violations} == wanted


class PaddedKeys(nn.Module):
    """Attention to another sequence, whose padding is told."""

    axis_of_queries = 1

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        scores = self.q(query) @ self.k(key).mT / query.shape[-1] ** 0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask.unsqueeze(self.axis_of_queries), -1e9)
        return scores.softmax(-1) @ self.v(value)


class PaddedQueries(PaddedKeys):
    """The mask stands along the queries, and is taken only where there are as many keys."""

    axis_of_queries = 2


@pytest.mark.parametrize(("kind", "wanted"), [(PaddedKeys, set()), (PaddedQueries, {"mask-argument"})])
def test_a_mask_that_takes_only_as_many_keys_as_queries_is_judged_with_these(kind: type, wanted: set[str]) -> None:
    analyses, _ = analyses_of(kind, {}, {}, UserSettings())
    assert {each.property for one in analyses for each in one.violations} == wanted
    found = [each.property for one in analyses for each in one.findings]
    assert ("mask-form" in found) != bool(wanted)
    assert "mask-refused" not in found


class Windows(nn.Module):
    """Attention inside of windows of a (B, H, W, C) map."""

    def __init__(self, dim: int, window: int, heads: int) -> None:
        super().__init__()
        self.w, self.heads = window, heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def put_back(self, parts: Tensor) -> Tensor:
        """(batch, rows of windows, windows, height, width, channels) as a map."""
        return parts.transpose(2, 3).flatten(1, 2).flatten(2, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        B, H, W, C = x.shape
        parts = x.view(B, H // self.w, self.w, W // self.w, self.w, C).transpose(2, 3)
        windows = parts.reshape(-1, self.w**2, C)
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x + self.put_back(self.out(read).reshape(parts.shape))


class WindowsOfAViewedMap(Windows):
    """The same of a map that is added after it was cut, and joined by one reshape behind a permutation."""

    def put_back(self, parts: Tensor) -> Tensor:
        batch, rows, columns, height, width, channels = parts.shape
        return parts.permute(0, 1, 3, 2, 4, 5).reshape(batch, rows * height, columns * width, channels)


class WindowsInLine(Windows):
    def put_back(self, parts: Tensor) -> Tensor:
        batch, rows, columns, height, width, channels = parts.shape
        return parts.reshape(batch, rows * height, columns * width, channels)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(Windows, set()), (WindowsOfAViewedMap, set()), (WindowsInLine, {"output-at-its-place"})],
)
def test_windows_as_large_as_the_first_map_are_put_back_in_a_larger_one(kind: type, wanted: set[str]) -> None:
    analyses, _ = analyses_of(kind, {"dim": 32, "window": 4, "heads": 4}, {}, UserSettings())
    assert {each.property for one in analyses for each in one.violations} == wanted
