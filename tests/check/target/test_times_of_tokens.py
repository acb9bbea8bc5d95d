"""Arguments that say when each token was, and those whose axes and numbers lines of code tell."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.target.documented_shapes import written_letters
from regard.check.target.names import call_meaning
from regard.check.target.usage import is_gathered_by


class Decays(nn.Module):
    """Events (b, n, d) at growing times (b, n): a weight falls with the time that has passed."""

    def __init__(self, dim: int, sign: int = -1) -> None:
        super().__init__()
        self.sign, self.qkv, self.rate = sign, nn.Linear(dim, 3 * dim), nn.Parameter(torch.zeros(()))

    def forward(self, events: Tensor, times: Tensor) -> Tensor:
        q, k, v = self.qkv(events).chunk(3, -1)
        passed = times[:, :, None] - times[:, None, :]
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.sign * self.rate.exp() * passed
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


def test_times_are_positions_and_a_weight_that_falls_with_them_is_a_design() -> None:
    assert call_meaning("times") == call_meaning("timestamps") == "positions"
    assert call_meaning("time") != "positions"
    assert check(Decays, args={"dim": 8}).verdict == "different by design"


def test_a_weight_that_grows_with_the_time_is_wrong() -> None:
    assert check(Decays, args={"dim": 8, "sign": 1}).verdict == "wrong"


class Copies(nn.Module):
    """A state asks the words of a text: their weights are what the words are copied with (See et al. 2017)."""

    def __init__(self, d: int, vocab: int) -> None:
        super().__init__()
        self.att, self.words = nn.Linear(d, d, bias=False), nn.Linear(2 * d, vocab)

    def forward(self, state: Tensor, source: Tensor, source_ids: Tensor) -> Tensor:
        weights = torch.einsum("bd,bsd->bs", self.att(state), source).softmax(-1)
        read = torch.einsum("bs,bsd->bd", weights, source)
        written = self.words(torch.cat([state, read], -1)).softmax(-1)
        return (0.5 * written).scatter_add(1, source_ids, 0.5 * weights)


def test_subscripts_tell_the_axes_and_what_is_scattered_by_is_a_place() -> None:
    source = 'a = torch.einsum("bd,bsd->bs", self.att(state), source)'
    assert [written_letters(source, name) for name in ("state", "source", "a")] == ["bd", "btd", ""]
    assert written_letters("torch.einsum('bsd,bd->bs', x, y) + torch.einsum('bd,dk->bk', x, w)", "x") == ""
    assert is_gathered_by("out.scatter_add(1, source_ids, weights)", "source_ids")
    assert not is_gathered_by("out.scatter_add(0, source_ids, weights)", "source_ids")
    assert check(Copies, args={"d": 8, "vocab": 12}).verdict == "different by design"
