"""One text of a batch answers as it does within the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masks import build, cases
from regard.lens import AttentionMap
from regard.lens.maps.select import select_batch


@settings(max_examples=60, deadline=None)
@given(case=cases(least=1, depth=2), bias=st.booleans(), sinks=st.booleans())
def test_one_text_is_its_row_of_the_batch(case, bias, sinks):
    q, k = torch.randn(case.batch, case.heads, case.queries, 4), torch.randn(case.batch, case.heads, case.keys, 4)
    m = AttentionMap(
        q,
        k,
        None,
        build(case.fact),
        bias=torch.randn(case.batch, case.heads, case.queries, case.keys) if bias else None,
        sinks=torch.randn(case.heads) if sinks else None,
    )
    m.label(*([[f"{b}.{i}" for i in range(n)] for b in range(case.batch)] for n in (case.queries, case.keys)))
    for row in range(case.batch):
        one = select_batch(m, row)
        torch.testing.assert_close(one.dense()[0], m.dense()[row])
        torch.testing.assert_close(one.entropy()[0], m.entropy()[row], atol=1e-6, rtol=1e-5)
        assert one.tokens[1][0][0] == f"{row}.0"


def test_no_such_row():
    m = AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"no batch row {row}: the map has 2"):
            select_batch(m, row)
