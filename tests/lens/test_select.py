"""One text of a batch, and some heads, have the weights that they have in the whole map."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grids import grid
from masks import build, cases
from regard import mask
from regard.attention.positions import ALiBi
from regard.lens import AttentionMap


@given(case=cases(min_tokens=1, depth=2), bias=st.booleans(), sinks=st.booleans())
def test_one_text_is_its_row_of_the_batch(case, bias, sinks):
    size = case.batch, case.heads, case.queries, case.keys
    q, k = (torch.randn(case.batch, case.heads, tokens, 4) for tokens in size[2:])
    options = {"bias": torch.randn(size) if bias else None, "sinks": torch.randn(case.heads) if sinks else None}
    m = AttentionMap(q, k, None, build(case.spec), **options)
    m.label(*([[f"{b}.{i}" for i in range(n)] for b in range(case.batch)] for n in size[2:]))
    for row in range(case.batch):
        one = m.select(row)
        torch.testing.assert_close(one.dense()[0], m.dense()[row])
        torch.testing.assert_close(one.entropy()[0], m.entropy()[row], atol=1e-6, rtol=1e-5)
        assert one.tokens[1][0][0] == f"{row}.0"


@grid(
    options=[
        {},
        {"mask": mask.padding([6, 2, 4])},
        {"mask": mask.allowed(torch.arange(120).view(1, 4, 5, 6) % 7 < 5)},
        {"bias": ALiBi(4)},
        {"bias": torch.arange(360.0).view(3, 4, 5, 6).sin()},
    ],
    at=[(None, [2]), (1, [3, 0]), (2, [1])],
)
def test_a_head_is_a_head_of_the_whole_map(options, at):
    batch, heads = at
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 6, 8), torch.randn(3, 2, 6, 3)
    m = AttentionMap(q, k, v, sinks=torch.randn(4), **options)
    part = m.select(batch, heads)
    rows = slice(None) if batch is None else slice(batch, batch + 1)
    torch.testing.assert_close(part.dense(), m.dense()[rows][:, heads])
    torch.testing.assert_close(part.v, m.v[rows][:, [head // 2 for head in heads]])


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there_is_refused(row):
    with pytest.raises(IndexError, match=f"no batch row {row}: the map has 2"):
        AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4)).select(row)
