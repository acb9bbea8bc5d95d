"""One text of a batch, and some heads, have the weights that they have in the whole map."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from masks import build, cases
from regard.attention.positions import ALiBi
from regard.lens import AttentionMap

BIASES = {
    "none": lambda *size: None,
    "of texts": lambda *size: torch.randn(size),
    "of heads": lambda batch, *size: torch.randn(size),
    "ALiBi": lambda batch, heads, *size: ALiBi(heads),
}


@given(
    case=cases(min_tokens=1, depth=2),
    group=st.integers(1, 2),
    bias=st.sampled_from([*BIASES]),
    sinks=st.booleans(),
    row=st.sampled_from([None, 0, 1]),
    heads=st.sampled_from([None, [0], [1], [1, 0]]),
)
def test_a_part_is_that_part_of_the_whole_map(case, group, bias, sinks, row, heads):
    size = case.batch, case.heads, case.queries, case.keys
    q, (k, v) = torch.randn(*size[:3], 4), torch.randn(2, case.batch, max(1, case.heads // group), case.keys, 4)
    options = {"bias": BIASES[bias](*size), "sinks": torch.randn(case.heads) if sinks else None}
    m = AttentionMap(q, k, v, build(case.spec), **options)
    m.label(*([[f"{b}.{i}" for i in range(n)] for b in range(case.batch)] for n in size[2:]))
    row = None if row is None else row % case.batch
    rows = slice(None) if row is None else slice(row, row + 1)
    heads = None if heads is None else [head % case.heads for head in heads]
    index = list(range(case.heads)) if heads is None else heads
    part = m.select(row, heads)
    torch.testing.assert_close(part.dense(), m.dense()[rows][:, index])
    torch.testing.assert_close(part.entropy(), m.entropy()[rows][:, index], atol=1e-6, rtol=1e-5)
    by_head = torch.tensor(index) // (case.heads // k.shape[1])
    torch.testing.assert_close(part.v.expand(-1, len(index), -1, -1), v[rows][:, by_head])
    assert part.tokens[1][0][0] == f"{row or 0}.0"


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there_is_refused(row):
    with pytest.raises(IndexError, match=f"no batch row {row}: the map has 2"):
        AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4)).select(row)
