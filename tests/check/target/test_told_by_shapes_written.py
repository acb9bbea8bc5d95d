"""Arguments that the documentation tells: the edges of a graph, the bounds of texts in one row, marks of tokens."""

from __future__ import annotations

import torch
from target_calls import first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.documented_shapes import documented_role


def written(text: str) -> str:
    return f'def forward(self, x, told):\n    """{text}"""\n'


def test_what_is_written_of_an_argument_tells_its_role() -> None:
    for text, role in {
        "told: (2, n_edges), sources and targets": "edge index",
        "told: (2, E)": None,
        "told: (2, n)": None,
        "told = [0, l0, l0 + l1, ..., total]": "boundaries",
        "told: [0, 1, 2]": None,
        "told: (batch, length) bool": "marks",
        "told: bool (batch, length)": "marks",
        "told: (batch, length) long": None,
    }.items():
        assert documented_role(written(text), "told") == role, text


class OfLinks(nn.Module):
    def __init__(self, dim: int = 16, end: int = 1) -> None:
        super().__init__()
        self.end = end
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, links: Tensor) -> Tensor:
        """x: (nodes, dim); links: (2, n_edges), from and to."""
        tail, head = links
        powers = ((self.q(x)[head] * self.k(x)[tail]).sum(-1) / x.shape[-1] ** 0.5).exp()
        total = torch.zeros(len(x), dtype=x.dtype).index_add(0, links[self.end], powers)
        weights = powers / total[links[self.end]]
        return torch.zeros_like(x).index_add(0, head, weights[:, None] * self.v(x)[tail])


class OfRows(nn.Module):
    """Causal attention over the texts of one row."""

    def __init__(self, dim: int = 16, forward: bool = True) -> None:
        super().__init__()
        self.forwards = forward
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x: (total, dim); ends: [0, l0, l0 + l1, ..., total]"""
        q, k, v = self.qkv(x).chunk(3, -1)
        place = torch.arange(len(x))
        text = torch.bucketize(place, ends[1:], right=True)
        order = place[:, None] - place
        seen = (text[:, None] == text) & ((order >= 0) if self.forwards else (order <= 0))
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def test_edges_are_handed_over_and_judged() -> None:
    assert first(OfLinks).arguments["links"].shape[0] == 2
    assert check(OfLinks).verdict != "wrong"
    report = check(OfLinks, args={"end": 0})
    assert (report.verdict, report.causes[0].id) == ("wrong", "softmax-over-keys")


def test_bounds_of_a_row_are_handed_over_and_judged() -> None:
    assert first(OfRows).arguments["ends"].tolist()[0] == 0
    assert check(OfRows).verdict != "wrong"
    assert check(OfRows, args={"forward": False}).verdict == "wrong"
