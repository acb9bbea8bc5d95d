"""What only calls with fewer heads of keys and values than of queries show."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check.conclusion import analyses_of
from regard.check.sandbox.torch_settings import UserSettings


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
