"""Calls of modules whose queries are handed over beside the tokens, by an argument that may be left out."""

from __future__ import annotations

import pytest
import torch
from target_calls import Packed, attention, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfGlobalQueries(nn.Module):
    """The tokens of a window are asked by queries of the whole picture; without these it has a layer of its own."""

    def __init__(self, dim: int, heads: int, use_global: bool = True) -> None:
        super().__init__()
        self.heads, self.use_global = heads, use_global
        self.kv, self.out = nn.Linear(dim, (2 if use_global else 3) * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        if self.use_global and q_global is not None:
            assert q_global.shape[-1] == x.shape[-1]
            return self.read(q_global, *self.kv(x).chunk(2, -1))
        q, k, v = self.kv(x).view(*x.shape[:2], 3, x.shape[-1]).unbind(2)
        return self.read(q, k, v)

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.out(joined(attention(*(split(each, self.heads) for each in (q, k, v)))))


class OfNamedQueries(OfGlobalQueries):
    def forward(self, x: Tensor, query_tokens: Tensor | None = None) -> Tensor:
        return super().forward(x, query_tokens if query_tokens is None else query_tokens.expand(len(x), -1, -1))


@pytest.mark.parametrize("kind", [OfGlobalQueries, OfNamedQueries])
def test_queries_without_which_it_does_not_run_ask_the_tokens(kind: type) -> None:
    call = first(kind)
    assert {each.role for each in call.streams} == {"x", "context"}
    assert next(each.argument for each in call.streams if each.role == "x").startswith("q")
    assert check(kind).verdict == "right"


class RunsAlone(Packed):
    def forward(self, x: Tensor, q_other: Tensor | None = None) -> Tensor:
        return super().forward(x if q_other is None else x + q_other.view_as(x))


def test_tokens_that_run_alone_are_asked_by_themselves() -> None:
    assert {each.argument for each in first(RunsAlone, width=8, heads=2).streams} == {"x"}


class OfPrecomputedKeys(nn.Module):
    """A decoder's state asks; the keys were made of the features before, once for all of its steps."""

    def __init__(self, rnn_size: int = 24, att_size: int = 10, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis
        self.of_state, self.energy = nn.Linear(rnn_size, att_size), nn.Linear(att_size, 1)

    def forward(self, h: Tensor, att_feats: Tensor, p_att_feats: Tensor) -> Tensor:
        scores = self.energy((p_att_feats + self.of_state(h)[:, None]).tanh())
        return (scores.softmax(self.axis) * att_feats).sum(1)


class OfProjectedRegions(OfPrecomputedKeys):
    def forward(self, hidden: Tensor, regions: Tensor, regions_proj: Tensor) -> Tensor:
        return super().forward(hidden, regions, regions_proj)


class OfProjectedRegionsFirst(OfPrecomputedKeys):
    def forward(self, projected_regions: Tensor, regions: Tensor, hidden_state: Tensor) -> Tensor:
        return super().forward(hidden_state, regions, projected_regions)


@pytest.mark.parametrize("kind", [OfPrecomputedKeys, OfProjectedRegions, OfProjectedRegionsFirst])
def test_keys_that_were_made_before_are_of_the_same_features(kind: type) -> None:
    assert sorted(each.role for each in first(kind).streams) == ["context", "context", "x"]
    assert check(kind).verdict == "different by design"
    assert check(kind, args={"axis": 0}).verdict == "wrong"


class Covers(nn.Module):
    """A state asks two that an encoder made, with what each key was given so far (See et al. 2017)."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.of_state, self.of_past, self.score = nn.Linear(dim, dim), nn.Linear(1, dim), nn.Linear(dim, 1)

    def forward(self, s_hat: Tensor, encoder_outputs: Tensor, encoder_feature: Tensor, coverage: Tensor) -> Tensor:
        asked = self.of_state(s_hat).unsqueeze(1)
        past = self.of_past(coverage.unsqueeze(2))
        weights = self.score((asked + encoder_feature + past).tanh()).squeeze(-1).softmax(-1)
        return torch.bmm(weights[:, None], encoder_outputs)[:, 0]


def test_what_gets_the_axis_of_the_keys_asks_two_that_an_encoder_made() -> None:
    call = first(Covers)
    assert [(each.argument, each.role) for each in call.streams] == [
        ("s_hat", "x"),
        ("encoder_outputs", "context"),
        ("encoder_feature", "context"),
    ]
    assert call.arguments["coverage"].shape == (2, 7)
    assert check(Covers).verdict == "different by design"
