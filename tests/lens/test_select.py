"""A text of a batch, some heads and the queries that are no padding have the weights that they have in the map."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lens.statistics_by_definition import Dense, assert_near
from masks import build, cases
from regard import mask
from regard.attention.positions import ALiBi
from regard.lens import AttentionMap
from views.recordings import recorded

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


@given(case=cases(min_tokens=1, depth=2), sinks=st.booleans(), data=st.data())
def test_padding_counts_in_no_statistic(case, sinks, data):
    q, k = (torch.randn(case.batch, case.heads, n, 4) for n in (case.queries, case.keys))
    m = AttentionMap(q, k, None, build(case.spec), sinks=torch.randn(case.heads) if sinks else None)
    text = st.lists(st.integers(0, 1), min_size=case.queries, max_size=case.queries)
    valid = torch.tensor(data.draw(st.lists(text, min_size=case.batch, max_size=case.batch)))
    part, expected = m.without_padding(valid), Dense(m.dense().double() * valid[:, None, :, None])
    assert_near(part.dense(), expected.w)
    assert_near(part.entropy(), expected.entropy())
    assert_near(part.received(), expected.received())
    assert_near(part.pooled(1, 1), expected.pooled(1, 1))


def test_heads_of_a_padded_text_have_the_types_of_the_text_alone():
    q, k = 3 * torch.randn(2, 2, 4, 12, 8)
    lengths = [12, 7]
    valid = torch.arange(12) < torch.tensor(lengths)[:, None]
    padded = recorded(AttentionMap(q, k, None, mask.causal() & mask.padding(lengths))).without_padding(valid)
    for row, length in enumerate(lengths):
        alone = recorded(AttentionMap(q[row : row + 1, :, :length], k[row : row + 1, :, :length], None, mask.causal()))
        (found,), (expected,) = (
            recorded(m).head_types().values() for m in (padded["layers.0"].select(row), alone["layers.0"])
        )
        for name, scores in expected.scores.items():
            torch.testing.assert_close(found.scores[name], scores, msg=name)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("valid", "error", "message"),
    [
        (torch.ones(2, 4), TypeError, r"valid must be a boolean tensor \(2, 3\), or one of 0 and 1; got tensor"),
        (torch.tensor([[1, 2, 0]]), TypeError, "or one of 0 and 1"),
        (torch.ones(1, 3).bool(), ValueError, r"valid must be \(2, 3\) \(batch, queries\); got \(1, 3\)"),
    ],
)
def test_padding_that_does_not_fit_is_refused(valid, error, message):
    with pytest.raises(error, match=message):
        AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4)).without_padding(valid)


def test_padding_is_that_of_one_stack():
    recording = recorded(*(AttentionMap(torch.randn(2, 1, 2, 4), torch.randn(2, 1, n, 4)) for n in (5, 6)))
    valid = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    with pytest.raises(ValueError, match=r"layers.1 has 2 texts and 6 tokens, and valid is \(2, 5\): .*subset"):
        recording.without_padding(valid)
    last = recording.subset("layers.0").without_padding(valid)["layers.0"]
    assert (last.dense().sum(-1).squeeze(1) > 0.5).tolist() == [[True, True], [False, True]]
