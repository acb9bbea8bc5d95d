"""One text of a batch, and some heads, have the weights that they have in the whole map."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masks import build, cases
from regard import mask
from regard.attention.positions import ALiBi
from regard.lens import AttentionMap


@settings(max_examples=60, deadline=None)
@given(case=cases(min_tokens=1, depth=2), bias=st.booleans(), sinks=st.booleans())
def test_one_text_is_its_row_of_the_batch(case, bias, sinks):
    q, k = torch.randn(case.batch, case.heads, case.queries, 4), torch.randn(case.batch, case.heads, case.keys, 4)
    m = AttentionMap(
        q,
        k,
        None,
        build(case.spec),
        bias=torch.randn(case.batch, case.heads, case.queries, case.keys) if bias else None,
        sinks=torch.randn(case.heads) if sinks else None,
    )
    m.label(*([[f"{b}.{i}" for i in range(n)] for b in range(case.batch)] for n in (case.queries, case.keys)))
    for row in range(case.batch):
        one = m.select(row)
        torch.testing.assert_close(one.dense()[0], m.dense()[row])
        torch.testing.assert_close(one.entropy()[0], m.entropy()[row], atol=1e-6, rtol=1e-5)
        assert one.tokens[1][0][0] == f"{row}.0"


def test_a_head_is_a_head_of_the_whole_map():
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 6, 8), torch.randn(3, 2, 6, 3)
    by_head = mask.allowed(torch.rand(1, 4, 5, 6) < 0.7)
    for options in ({}, {"mask": mask.padding([6, 2, 4])}, {"mask": by_head}, {"bias": ALiBi(4)}):
        options = {"bias": torch.randn(3, 4, 5, 6), "sinks": torch.randn(4), **options}
        m = AttentionMap(q, k, v, **options)
        for batch, heads in ((None, [2]), (1, [3, 0]), (2, [1])):
            part = m.select(batch, heads)
            rows = slice(None) if batch is None else slice(batch, batch + 1)
            torch.testing.assert_close(part.dense(), m.dense()[rows][:, heads])
            torch.testing.assert_close(part.v, m.v[rows][:, [head // 2 for head in heads]])


def test_no_such_row():
    m = AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"no batch row {row}: the map has 2"):
            m.select(row)
