"""Packed documents: those of one length together, pairs of a query's and a key's document, and what is found once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from cases import HALF, LONG, SHORT, Attention, OperatorTrace, assert_is_the_definition
from regard import mask
from regard.attention.positions import ALiBi, T5Relative


def ids_of(lengths):
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))


def qkv(queries, keys=None, *, batch=1, heads=(4, 2), widths=(8, 8), dtype=torch.float32, seed=0):
    coins = torch.Generator().manual_seed(seed)
    keys = queries if keys is None else keys
    shapes = (heads[0], queries, widths[0]), (heads[1], keys, widths[0]), (heads[1], keys, widths[1])
    return [torch.randn(batch, *shape, generator=coins).to(dtype).requires_grad_() for shape in shapes]


def calls(q, k, v, who, **options):
    with OperatorTrace() as seen:
        regard.attend(q, k, v, who, **options)
    return seen.fused


# Those of one length together.


@pytest.mark.parametrize("beside", [None, mask.causal(), mask.window(40)], ids=repr)
def test_documents_of_one_length_side_by_side_are_one_call(beside):
    who = mask.documents(ids_of([3] * 20 + [5] * 30 + [9] + [5] * 2))
    who = who if beside is None else who & beside
    given = qkv(229)
    assert [tuple(call["query"].shape) for call in calls(*given, who)] == [
        (20, 4, 3, 8),
        (30, 4, 5, 8),
        (1, 4, 9, 8),
        (2, 4, 5, 8),
    ]
    assert_is_the_definition(Attention(*given, who, {}))


def test_pairs_are_one_call_where_both_lengths_are_equal():
    targets, sources = ids_of([3] * 4 + [5] * 2), ids_of([7] * 2 + [2] * 2 + [4] * 2)
    given = qkv(22, 26)
    fused = calls(*given, mask.documents(targets, sources))
    assert [(len(call["query"]), call["query"].shape[2], call["key"].shape[2]) for call in fused] == [
        (2, 3, 7),
        (2, 3, 2),
        (2, 5, 4),
    ]


def test_memory_does_not_grow_with_how_many_documents_there_are():
    few, many = (
        max(len(call["query"]) for call in calls(*qkv(8 * n), mask.documents(ids_of([8] * n)))) for n in (1500, 4000)
    )
    assert few == many == 1024


LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=4)


@st.composite
def packings(draw):
    """Ids of queries and of keys, each for all batch rows or for each its own; None for keys that are the queries."""
    batch = draw(st.integers(1, 3))
    lengths = [n for n, times in draw(LENGTHS) for _ in range(times)]
    pairs = draw(st.booleans())
    sources = draw(st.sampled_from([lengths, [7] * len(lengths), lengths[::-1], [2, *lengths[1:]], [2, *lengths]]))

    def rows(lengths):
        ids = ids_of(lengths)
        if draw(st.booleans()):
            return ids
        order = [torch.tensor(draw(st.permutations(range(len(lengths) + 1)))) for _ in range(batch)]
        if draw(st.booleans()):  # the same lengths, other documents
            return torch.stack([names[ids] for names in order])
        starts = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
        return torch.stack([(torch.arange(len(ids)) + start) // draw(st.integers(2, 9)) for start in starts])

    return batch, rows(lengths), rows(sources) if pairs else None


def options(name, dtype, queries, keys):
    coins = torch.Generator().manual_seed(5)
    table = torch.randn(4, queries, keys, generator=coins).to(dtype)
    one_row, learned = table[:, :1], name.startswith("learned")
    t5 = T5Relative(4, num_buckets=8, max_distance=20).to(dtype)
    return {
        "plain": {},
        "sinks": {"sinks": torch.linspace(-1, 1, 4).to(dtype).requires_grad_()},
        "bias": {"bias": table},
        "bias, one row for all": {"bias": one_row},
        "bias, one number for a row": {"bias": table[:1, :, :1]},
        "learned bias": {"bias": table.clone().requires_grad_(learned)},
        "learned bias, one row for all": {"bias": one_row.clone().requires_grad_(learned)},
        "ALiBi": {"bias": ALiBi(4).to(dtype)},
        "T5": {"bias": t5},
        "T5, fixed": {"bias": t5.requires_grad_(name != "T5, fixed")},
        "own": {"bias": Absolute()},
        "softcap and sinks": {"softcap": 2.0, "sinks": torch.linspace(-1, 1, 4).to(dtype)},
    }[name]


class Absolute(regard.attention.bias.PositionBias):
    """A bias that goes by where a token stands, not by distances."""

    num_heads = 4

    def forward(self, query, key):
        return (torch.arange(4)[:, None, None] + query[:, None] * 3.0 + key * 7.0).sin()


NAMES = ["plain", "sinks", "bias", "bias, one row for all", "bias, one number for a row", "learned bias"]
NAMES += ["learned bias, one row for all", "ALiBi", "T5", "T5, fixed", "own", "softcap and sinks"]


@settings(max_examples=100, deadline=None)
@given(
    packings(),
    st.sampled_from(NAMES),
    st.sampled_from([None, mask.causal(), mask.window(4, 2), mask.causal(offset=1)]),
    st.sampled_from([SHORT, SHORT, LONG]),
    st.sampled_from([(8, 8), (8, 5)]),
    st.sampled_from([torch.float32, torch.float32, *HALF]),
)
def test_it_is_the_definition(packing, name, beside, sizes, widths, dtype):
    batch, ids, take_keys = packing
    queries, keys = ids.shape[-1], (ids if take_keys is None else take_keys).shape[-1]
    who = mask.documents(ids) if take_keys is None else mask.documents(ids, take_keys)
    who = who if beside is None else who & beside
    dtype = torch.float32 if name == "own" else dtype
    given = qkv(queries, keys, batch=batch, widths=widths, dtype=dtype)
    with sizes.apply():
        plan = assert_is_the_definition(Attention(*given, who, options(name, dtype, queries, keys)))
    assert plan.kernel in ("packed", "chunked")
    assert "documents, each in one piece" in plan.reason


@pytest.mark.parametrize("name", NAMES)
def test_a_document_has_the_numbers_that_it_has_alone(name):
    """Each option, many documents of few lengths, gradients included: in float64, where rounding hides nothing."""
    lengths = [3] * 5 + [6] * 4 + [7]
    ids = ids_of(lengths)
    given = [t.detach().double().requires_grad_() for t in qkv(len(ids))]
    beside = options(name, torch.float64, len(ids), len(ids)) if name != "own" else {}
    with SHORT.apply():
        packed = Attention(*given, mask.documents(ids) & mask.causal(), beside)
        output = packed.attend()
        cotangent = torch.randn_like(output)
        gradients = packed.gradients(output, cotangent)
        expected = packed.steps().output
        torch.testing.assert_close(output, expected)
        for n, gradient in packed.gradients(expected, cotangent).items():
            torch.testing.assert_close(gradients[n], gradient)


def test_dropout_falls_on_every_document():
    """Each weight is dropped or scaled up; forward and backward agree on which."""
    ids = ids_of([4] * 50)
    zeros = torch.zeros(1, 1, 200, 4, dtype=torch.float64)
    given = zeros, zeros, torch.eye(4, dtype=torch.float64).repeat(50, 1)[None, None].requires_grad_()
    output = regard.attend(*given, mask.documents(ids), dropout=0.5)
    values = output.detach().unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert output.mean().item() == pytest.approx(0.25, abs=0.05)
    cotangent = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, given[2], cotangent)
    weights = output.detach()[0, 0].view(50, 4, 4)
    torch.testing.assert_close(gradient[0, 0], (weights.transpose(1, 2) @ cotangent[0, 0].view(50, 4, 4)).flatten(0, 1))


# Pairs.


def test_a_target_sees_its_own_source():
    q, k, v = qkv(7, 8)
    output = regard.attend(q, k, v, mask.documents([5, 5, 5, 1, 1, 9, 9], [1, 1, 1, 3, 5, 5, 5, 5]))
    torch.testing.assert_close(output[:, :, :3], regard.attend(q[:, :, :3], k[:, :, 4:], v[:, :, 4:]))
    torch.testing.assert_close(output[:, :, 3:5], regard.attend(q[:, :, 3:5], k[:, :, :3], v[:, :, :3]))
    assert (output[:, :, 5:] == 0).all()  # 9 has no source
    gradients = torch.autograd.grad(output.sum(), (q, k, v))
    assert (gradients[0][:, :, 5:] == 0).all()
    assert all((gradient[:, :, 3] == 0).all() for gradient in gradients[1:])  # nobody asks for 3


def test_the_plan_of_pairs():
    q, k, v = qkv(600, 2000)
    targets, sources = ids_of([30] * 20), ids_of([100] * 20)
    plan = regard.plan(q, k, v, mask.documents(targets, sources))
    assert (plan.kernel, plan.flops) == ("packed", 2 * 4 * 16 * 20 * 30 * 100)
    assert regard.plan(q, k, v, mask.documents(targets, sources.flip(0))).kernel == "packed"
    assert regard.plan(q, k, v, mask.documents(targets, sources % 3)).kernel == "tiles"


# What is found once.


def test_a_model_of_many_layers_looks_at_the_ids_once():
    who, given = mask.documents(ids_of([3] * 20)) & mask.causal(), qkv(60)
    regard.attend(*given, who)
    with OperatorTrace() as seen:
        torch.autograd.grad(regard.attend(*given, who).sum(), given)
    assert "aten::unique_consecutive" not in seen.operators


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_ids_that_somebody_writes_into_are_looked_at_again(mode):
    with mode():
        who, given = mask.documents(torch.zeros(1, 12, dtype=torch.long)), qkv(12)
        regard.attend(*given, who)
        who.ids[0, 5:] = 1
        torch.testing.assert_close(regard.attend(*given, who), regard.steps(*given, who).output)
