"""Packed documents: those of one length together, pairs of a query's and a key's document, and what is cached."""

import pytest
import torch

import regard
from cases import Attention, OperatorTrace, assert_is_the_definition
from regard import mask


def ids_of(lengths):
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))


def qkv(queries, keys=None):
    shapes = (4, queries, 8), (2, keys or queries, 8), (2, keys or queries, 8)
    return [torch.randn(1, *shape, requires_grad=True) for shape in shapes]


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
