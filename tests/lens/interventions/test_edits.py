"""Every kind of edit, on any attention, is the edited attention by the definition in float64."""

from __future__ import annotations

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
from regard.lens.maps.verify import MAX_ERROR

HEADS = 4


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


@pytest.mark.parametrize("heads", [None, 1, [0, 3], slice(1, 3), -1])
def test_heads_that_are_not_named_keep_their_bits(heads):
    q, k, v = random_qkv()
    chosen = range(HEADS) if heads is None else torch.arange(HEADS)[heads].flatten().tolist()
    plain = scaled_dot_product_attention(q, k, v)
    output, _ = edited([lambda a: (a if heads is None else a.heads[heads]).ablate()], q, k, v)
    others = [head for head in range(HEADS) if head not in chosen]
    assert torch.equal(output[:, others], plain[:, others])
    assert not output[:, list(chosen)].any()


def test_one_batch_row_is_edited_alone():
    q, k, v = random_qkv(batch=3)
    plain = scaled_dot_product_attention(q, k, v)
    output, report = edited([lambda a: a.batch[1].heads[2].ablate()], q, k, v)
    plain[1, 2] = 0
    assert torch.equal(output, plain)
    assert report.edits[0].rows == q.shape[2]


SCORE_EDITS = {
    "mask": (lambda a: a.mask(mask.window(3)), lambda *_: (mask.window(3), {})),
    "mask by head": (
        lambda a: a.mask(mask.allowed(torch.ones(2, HEADS, 5, 7).tril(2) > 0)),
        lambda *_: (mask.allowed(torch.ones(5, 7).tril(2) > 0), {}),
    ),
    "scale": (lambda a: a.scale(0.5), lambda *_: (None, {"scale": 0.5 * 8**-0.5})),
    "scale of 0": (lambda a: a.scale(0), lambda *_: (None, {"scale": 0.0})),
    "bias": (
        lambda a: a.bias(torch.arange(35.0).view(5, 7).cos()),
        lambda *_: (None, {"bias": torch.arange(35.0).view(5, 7).cos()}),
    ),
    "position bias": (
        lambda a: a.bias(regard.positions.ALiBi(HEADS)),
        lambda *_: (None, {"bias": regard.positions.ALiBi(HEADS).dense(5, 7)}),
    ),
    "block": (lambda a: a.block(keys=[0, -1]), lambda *_: (not_allowed(5, 7, range(5), [0, 6]), {})),
    "block every key": (lambda a: a.block(queries=[-1]), lambda *_: (not_allowed(5, 7, [4], range(7)), {})),
}


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("name", SCORE_EDITS)
def test_an_edit_of_the_scores_is_the_definition_with_that_argument(name, kv_heads):
    q, k, v = random_qkv(kv_heads=kv_heads)
    write, arguments = SCORE_EDITS[name]
    m, options = arguments()
    output, report = edited([write], q, k, v, function=lambda *qkv: scaled_dot_product_attention(*qkv, enable_gqa=True))
    assert_close(output, by_definition(q, k, v, m, **options))
    assert report.edits[0].error < MAX_ERROR


def test_edits_of_the_same_heads_add_up():
    q, k, v = random_qkv()
    bias = torch.randn(5, 7)
    writes = [lambda a: a.mask(mask.window(3)), lambda a: a.bias(bias), lambda a: a.scale(0.5), lambda a: a.scale(3)]
    output, _ = edited([*writes, lambda a: a.heads[0].block([-1], [6]), lambda a: a.heads[3].ablate()], q, k, v)
    expected = by_definition(q, k, v, mask.window(3), bias=bias, scale=1.5 * 8**-0.5)
    first = by_definition(q, k, v, mask.window(3) & not_allowed(5, 7, [4], [6]), bias=bias, scale=1.5 * 8**-0.5)
    expected[:, 0], expected[:, 3] = first[:, 0], 0
    assert_close(output, expected)


def test_a_bias_of_some_heads_and_rows_has_their_shape():
    q, k, v = random_qkv()
    bias = torch.randn(1, 2, 5, 7)
    output, _ = edited([lambda a: a.batch[1].heads[[1, 3]].bias(bias), lambda a: a.heads[3].scale(2)], q, k, v)
    whole, scale = torch.zeros(2, HEADS, 5, 7), torch.ones(HEADS, 1, 1)
    whole[1, [1, 3]], scale[3] = bias[0], 2
    assert_close(output, by_definition(q * scale, k, v, bias=whole))


def test_gradients_flow_through_edited_rows_and_past_the_others():
    q, k, v = (t.requires_grad_() for t in random_qkv(dtype=torch.float64))
    output, _ = edited([lambda a: a.heads[1].block([2], [3]), lambda a: a.heads[2].ablate()], q, k, v)
    allowed = torch.ones(HEADS, 5, 7, dtype=torch.bool)
    allowed[1, 2, 3] = False
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    kept = torch.ones(HEADS, 1, 1).index_fill(0, torch.tensor([2]), 0.0)
    expected = regard.steps(*exact, mask.allowed(allowed)).output * kept
    cotangent = torch.randn(output.shape, dtype=torch.float64)
    ours = torch.autograd.grad(output, (q, k, v), cotangent)
    theirs = torch.autograd.grad(expected, exact, cotangent)
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


def patched(part, sources, q, k, v):
    """The attention with some parts of another one, by the definition in float64."""
    other = dict(zip(("queries", "keys", "values"), sources, strict=True))
    parts = {"queries": q, "keys": k, "values": v}
    taken = {"weights": ("queries", "keys"), "output": tuple(parts)}.get(part, (part,))
    return by_definition(*(other[name] if name in taken else t for name, t in parts.items()))


@pytest.mark.parametrize("part", ["output", "weights", "values", "queries", "keys"])
def test_a_patched_part_is_that_of_the_recording(part):
    sources, (q, k, v) = random_qkv(seed=1), random_qkv()
    recording, _ = record(FunctionModel(), *sources)
    output, _ = edited([lambda a: a.heads[2].patch(recording, part)], q, k, v)
    plain = scaled_dot_product_attention(q, k, v)
    assert torch.equal(output[:, [0, 1, 3]], plain[:, [0, 1, 3]])
    assert_close(output[:, 2], patched(part, sources, q, k, v)[:, 2])


def test_one_recorded_text_is_patched_into_every_batch_row():
    recording, one = record(FunctionModel(), *random_qkv(batch=1, seed=1))
    output, _ = edited([lambda a: a.patch(recording)], *random_qkv(batch=3))
    assert_close(output, one.double().expand(3, -1, -1, -1))


def test_a_patch_of_some_queries_leaves_the_others():
    recording, other = record(FunctionModel(), *random_qkv(queries=9, keys=9, seed=1))
    q, k, v = random_qkv(queries=5, keys=5)
    expected = scaled_dot_product_attention(q, k, v).clone()
    expected[:, :, [1, 4]] = other[:, :, [1, 4]]
    output, _ = edited([lambda a: a.patch(recording, queries=[1, 4])], q, k, v)
    assert_close(output, expected.double())


def test_a_mean_is_over_all_texts_and_queries_of_every_recording():
    function = FunctionModel()
    (first, one), (second, two) = (record(function, *random_qkv(queries=n, seed=n)) for n in (3, 4))
    means = torch.cat([t.double().transpose(0, 1).flatten(1, 2) for t in (one, two)], 1).mean(1)
    output, _ = edited([lambda a: a.ablate("mean", [first, second])], *random_qkv())
    assert_close(output, means[:, None].expand(output.shape))


def test_a_mean_without_recording_is_that_of_the_call():
    q, k, v = random_qkv()
    output, _ = edited([lambda a: a.heads[1].ablate("mean")], q, k, v)
    expected = scaled_dot_product_attention(q, k, v)[:, 1].double().mean((0, 1))
    assert_close(output[:, 1], expected.expand(2, 5, -1))


def test_resampled_rows_are_texts_of_the_recording_drawn_by_the_seed():
    recording, others = record(FunctionModel(), *random_qkv(batch=6, seed=1))
    draws = [edited([lambda a, s=s: a.ablate("resample", recording, seed=s)], *random_qkv())[0] for s in (0, 0, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert any(not torch.equal(draws[0], other) for other in draws[2:])
    for row in draws[0]:
        assert min((row - other).abs().max() for other in others) < 1e-6 * others.abs().max()


def test_half_precision_is_edited_within_its_own_rounding():
    q, k, v = random_qkv(dtype=torch.bfloat16)
    output, report = edited([lambda a: a.mask(mask.window(3))], q, k, v)
    expected = by_definition(q, k, v, mask.window(3))
    assert output.dtype == torch.bfloat16
    assert (output.double() - expected).abs().max() < 2e-2 * expected.abs().max()
    assert report.edits[0].error < 2e-2
