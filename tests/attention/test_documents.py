"""Packed documents: those of one length together, pairs of a query's and a key's document, and what is cached."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from cases import DEFAULT_LIMITS, HALF, SMALL_LIMITS, Attention, OperatorTrace, assert_is_the_definition
from grids import some_examples
from regard import mask
from regard.attention.positions import ALiBi, T5Relative


def ids_of(lengths):
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))


def qkv(queries, keys=None, *, batch=1, widths=(8, 8), dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    keys = queries if keys is None else keys
    shapes = (4, queries, widths[0]), (2, keys, widths[0]), (2, keys, widths[1])
    return [torch.randn(batch, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def kernel_calls(q, k, v, m):
    """(batch, queries, keys) of every call of the fused kernel."""
    with OperatorTrace() as trace:
        regard.attend(q, k, v, m)
    return [(len(call["query"]), call["query"].shape[2], call["key"].shape[2]) for call in trace.fused]


@pytest.mark.parametrize("other", [None, mask.causal(), mask.window(40)], ids=repr)
def test_neighbouring_documents_of_one_length_are_one_call(other):
    m = mask.documents(ids_of([3] * 20 + [5] * 30 + [9] + [5] * 2))
    m = m if other is None else m & other
    assert kernel_calls(*qkv(229), m) == [(20, 3, 3), (30, 5, 5), (1, 9, 9), (2, 5, 5)]
    assert_is_the_definition(Attention(*qkv(229), m, {}))


def test_pairs_are_one_call_where_both_lengths_are_equal():
    m = mask.documents(ids_of([3] * 4 + [5] * 2), ids_of([7] * 2 + [2] * 2 + [4] * 2))
    assert kernel_calls(*qkv(22, 26), m) == [(2, 3, 7), (2, 3, 2), (2, 5, 4)]


def test_memory_does_not_grow_with_the_number_of_documents():
    for count in (1500, 4000):
        assert max(kernel_calls(*qkv(8 * count), mask.documents(ids_of([8] * count)))) == (1024, 8, 8)


class Absolute(regard.attention.bias.PositionBias):
    """A bias that depends on where a token stands, not on distances."""

    num_heads = 4

    def forward(self, query, key):
        return (torch.arange(4)[:, None, None] + query[:, None] * 3.0 + key * 7.0).sin()


def table(queries, keys, dtype):
    return torch.randn(4, queries, keys, generator=torch.Generator().manual_seed(5)).to(dtype)


def t5(dtype):
    return T5Relative(4, num_buckets=8, max_distance=20).to(dtype)


OPTIONS = {
    "plain": lambda *_: {},
    "sinks": lambda queries, keys, dtype: {"sinks": torch.linspace(-1, 1, 4).to(dtype).requires_grad_()},
    "bias": lambda *sizes: {"bias": table(*sizes)},
    "bias, one number for a row": lambda *sizes: {"bias": table(*sizes)[:1, :, :1]},
    "learned bias, one row for all": lambda *sizes: {"bias": table(*sizes)[:, :1].clone().requires_grad_()},
    "ALiBi": lambda queries, keys, dtype: {"bias": ALiBi(4).to(dtype)},
    "T5": lambda queries, keys, dtype: {"bias": t5(dtype)},
    "fixed T5": lambda queries, keys, dtype: {"bias": t5(dtype).requires_grad_(False)},
    "absolute": lambda *_: {"bias": Absolute()},
}


@st.composite
def packings(draw):
    """Ids of queries and of keys, each for all batch rows or for each its own; None for keys that are the queries."""
    batch = draw(st.integers(1, 3))
    runs = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=4))
    lengths = [length for length, count in runs for _ in range(count)]

    def ids(lengths):
        row = ids_of(lengths)
        kind = draw(st.sampled_from(["one row for all", "other documents of the same lengths", "other lengths"]))
        if kind == "one row for all":
            return row
        if kind == "other lengths":
            return torch.stack([(torch.arange(len(row)) + n) // draw(st.integers(2, 9)) for n in range(batch)])
        order = [torch.tensor(draw(st.permutations(range(len(lengths) + 1)))) for _ in range(batch)]
        return torch.stack([names[row] for names in order])

    key_lengths = st.sampled_from([lengths, [7] * len(lengths), lengths[::-1], [2, *lengths[1:]], [2, *lengths]])
    return batch, ids(lengths), ids(draw(key_lengths)) if draw(st.booleans()) else None


@pytest.mark.parametrize("option", OPTIONS)
@some_examples(0.15)
@given(
    packings(),
    st.sampled_from([None, mask.causal(), mask.window(4, 2), mask.causal(offset=1)]),
    st.sampled_from([SMALL_LIMITS, SMALL_LIMITS, DEFAULT_LIMITS]),
    st.sampled_from([(8, 8), (8, 5)]),
    st.sampled_from([torch.float32, torch.float64, *HALF]),
)
def test_it_is_the_definition(option, packing, other, limits, widths, dtype):
    batch, ids, key_ids = packing
    queries, keys = ids.shape[-1], (ids if key_ids is None else key_ids).shape[-1]
    m = mask.documents(ids) if key_ids is None else mask.documents(ids, key_ids)
    m = m if other is None else m & other
    dtype = torch.float32 if option == "absolute" else dtype
    tensors = qkv(queries, keys, batch=batch, widths=widths, dtype=dtype)
    with limits.apply():
        plan = assert_is_the_definition(Attention(*tensors, m, OPTIONS[option](queries, keys, dtype)))
    assert plan.kernel in ("packed", "chunked")
    assert "documents, each in one piece" in plan.reason


def test_the_plan_of_pairs():
    tensors, ids, key_ids = qkv(600, 2000), ids_of([30] * 20), ids_of([100] * 20)
    plan = regard.plan(*tensors, mask.documents(ids, key_ids))
    assert (plan.kernel, plan.flops) == ("packed", 2 * 4 * 16 * 20 * 30 * 100)
    assert regard.plan(*tensors, mask.documents(ids, key_ids.flip(0))).kernel == "packed"
    assert regard.plan(*tensors, mask.documents(ids, key_ids % 3)).kernel == "tiles"


def test_a_model_of_many_layers_finds_the_documents_once():
    m, tensors = mask.documents(ids_of([3] * 20)) & mask.causal(), qkv(60)
    regard.attend(*tensors, m)
    with OperatorTrace() as trace:
        torch.autograd.grad(regard.attend(*tensors, m).sum(), tensors)
    assert "aten::unique_consecutive" not in trace.operators


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_ids_that_were_changed_in_place_are_read_again(mode):
    with mode():
        m, tensors = mask.documents(torch.zeros(1, 12, dtype=torch.long)), qkv(12)
        regard.attend(*tensors, m)
        m.ids[0, 5:] = 1
        torch.testing.assert_close(regard.attend(*tensors, m), regard.steps(*tensors, m).output)
