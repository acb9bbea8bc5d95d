"""Keys that each query looks up by their numbers, in rounds (LSH attention): proved, or left open."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from property_cases import WIDTH, drawn, of_x
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze


def in_rounds(
    x: Tensor, *, rounds: int = 2, scale: float = WIDTH**-0.5, are_merged: bool = True, is_put_back: bool = True
) -> Tensor:
    """Tokens are sorted by a direction; each attends to those of its bucket of three, in each round to others."""
    reads, totals = [], []
    for number in range(rounds):
        order = (x @ drawn(WIDTH, seed=90 + number)).sort(-1).indices
        back = order.argsort(-1) if is_put_back else order
        bucket = x.gather(1, order[..., None].expand_as(x)).unflatten(1, (-1, 3))
        scores = bucket @ normalize(bucket, dim=-1).mT * scale
        total = scores.logsumexp(-1, keepdim=True)
        read = ((scores - total).exp() @ bucket).flatten(1, 2)
        reads.append(read.gather(1, back[..., None].expand_as(x)))
        totals.append(total.flatten(1, 2).gather(1, back[..., None]))
    shares = torch.stack(totals).softmax(0) if are_merged else torch.full((rounds, 1, 1, 1), 1 / rounds).double()
    return (shares * torch.stack(reads)).sum(0)


def judged(**changes: object) -> Analysis:
    return analyze(of_x(partial(in_rounds, **changes), tokens=9))


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_softmax_among_the_keys_of_all_rounds_is_a_design(rounds: int) -> None:
    analysis = judged(rounds=rounds)
    assert analysis.complete
    assert not analysis.violations
    assert [each.property for each in analysis.designs] == ["sparse-by-content"]
    assert {"scale", "weights-sum-to-one", "output-of-the-token"} <= {
        each.property for each in analysis.findings if each.kind == "holds"
    }


@pytest.mark.parametrize("changes", [{"scale": 1.0}, {"are_merged": False}, {"is_put_back": False}])
def test_what_is_scaled_merged_or_put_back_otherwise_is_not_called_right(changes: dict[str, object]) -> None:
    analysis = judged(**changes)
    assert not analysis.complete or analysis.violations
