"""Every kind of edit, on any attention, is the edited attention by the definition in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import regard
from cases import AttentionCase, cases
from lens.watching import FunctionModel, random_qkv, record
from regard import mask


def edited(edits, *args, function=scaled_dot_product_attention):
    """The output of a function of queries, keys and values under some edits, and the report."""
    model = FunctionModel(function)
    with regard.intervene(model) as edit:
        for write in edits:
            write(edit["attn"])
        output = model(*args)
    return output, edit.report()


def by_definition(q, k, v, m=None, **options):
    """The definition in float64."""
    options = {n: t.double() if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    return regard.steps(q.double(), k.double(), v.double(), m, **options).output


def assert_close(got, expected):
    assert got.dtype == torch.float32
    assert (got.double() - expected).abs().max() <= 1e-6 * max(1.0, float(expected.detach().abs().max()))


def not_allowed(queries, keys, blocked_queries, blocked_keys):
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    for i in blocked_queries:
        allowed[i, list(blocked_keys)] = False
    return mask.allowed(allowed)


@given(cases(plain=False), st.data())
def test_a_blocked_edge_of_any_attention_is_blocked_in_the_definition(case: AttentionCase, data):
    if len(case.lead) > 1 or 0 in (*case.lead, case.queries, case.keys):
        return  # what is edited has one batch axis, and a query and a key
    case = replace(case, heads=case.heads or (1, 1), dtype=torch.float32, lead=case.lead or [1])
    query = data.draw(st.integers(0, case.queries - 1))
    keys = data.draw(st.lists(st.integers(0, case.keys - 1), min_size=1, unique=True))
    attention = case.make()
    own, blocked = attention.mask, not_allowed(case.queries, case.keys, [query], keys)
    model = FunctionModel(lambda: attention.attend())
    before = model()
    with regard.intervene(model) as edit:
        # With fewer queries than keys, the queries are the last positions of a cache.
        edit["attn"].block([query - case.queries], keys)
        after = model()
    expected = replace(attention.in_float64(), mask=blocked if own is None else own & blocked).steps().output
    others = [i for i in range(case.queries) if i != query]
    assert torch.equal(after[..., others, :], before[..., others, :])
    if not case.d_value:
        return  # nothing to compare
    bound = 1e-4 * max(1.0, float(expected.detach().abs().max()))
    assert (after[..., query, :].double() - expected[..., query, :]).abs().max() <= bound


@pytest.mark.parametrize(
    ("select", "rows", "heads"),
    [
        (lambda a: a, [0, 1], [0, 1, 2, 3]),
        (lambda a: a.heads[1], [0, 1], [1]),
        (lambda a: a.heads[[0, 3]], [0, 1], [0, 3]),
        (lambda a: a.heads[1:3], [0, 1], [1, 2]),
        (lambda a: a.heads[-1], [0, 1], [3]),
        (lambda a: a.batch[1].heads[2], [1], [2]),
    ],
)
def test_heads_and_rows_that_are_not_named_keep_their_bits(select, rows, heads):
    q, k, v = random_qkv()
    expected = scaled_dot_product_attention(q, k, v)
    expected[torch.tensor(rows)[:, None], heads] = 0
    output, report = edited([lambda a: select(a).ablate()], q, k, v)
    assert torch.equal(output, expected)
    assert report.edits[0].rows == len(rows) * q.shape[2]


def test_a_mean_is_over_all_texts_and_queries_of_every_recording():
    function = FunctionModel()
    (first, one), (second, two) = (record(function, *random_qkv(queries=n, seed=n)) for n in (3, 4))
    means = torch.cat([t.double().transpose(0, 1).flatten(1, 2) for t in (one, two)], 1).mean(1)
    output, _ = edited([lambda a: a.ablate("mean", [first, second])], *random_qkv())
    assert_close(output, means[:, None].expand(output.shape))


def test_half_precision_is_edited_within_its_own_rounding():
    q, k, v = random_qkv(dtype=torch.bfloat16)
    output, report = edited([lambda a: a.mask(mask.window(3))], q, k, v)
    expected = by_definition(q, k, v, mask.window(3))
    assert output.dtype == torch.bfloat16
    assert (output.double() - expected).abs().max() < 2e-2 * expected.abs().max()
    assert report.edits[0].error < 2e-2
