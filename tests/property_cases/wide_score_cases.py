"""Scores that are said to be of float32, of queries and keys of float16."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class InFloat32(nn.Module):
    """For weights of float16: scores are computed in float32, and so are their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = self.scores(q, k).softmax(-1).to(v.dtype)
        return self.out(joined(weights @ v))  # type: ignore[no-any-return]

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q.float() @ k.float().mT / q.shape[-1] ** 0.5


class CastAfterwards(InFloat32):
    """For weights of float16: scores are computed in float32, and so are their weights."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).float() / q.shape[-1] ** 0.5  # here


class CastAsIsSaid(CastAfterwards):
    """For weights of float16: scores are cast to float32 after they are computed."""


CASES = [
    Case("scores-in-float32", CastAfterwards, InFloat32, of_module),
    Case("scores-in-float32", CastAfterwards, CastAsIsSaid, of_module),
]
