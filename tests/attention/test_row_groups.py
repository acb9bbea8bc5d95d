"""Rows in an order of their own: tiles whose neighbouring rows attend to different keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from cases import SMALL_LIMITS, Attention, KernelLimits, OperatorTrace, assert_is_the_definition
from grids import grid, some_examples
from regard import mask
from regard.attention.positions import ALiBi

LONG = 4096
RULES = {
    "every other key": lambda i, j: (i - j) % 2 == 0,
    "every third key, causal": lambda i, j: (j <= i) & ((i - j) % 3 == 0),
    "all but every third": lambda i, j: (i - j) % 3 != 0,
    "some keys for all": lambda i, j: ((i - j) % 4 == 0) | (j < 5),
    "odd rows nothing": lambda i, j: (i % 4 != 1) & ((i - j) % 2 == 0),
}
OPTIONS = {
    "plain": lambda tokens: {},
    "sinks": lambda tokens: {"sinks": torch.linspace(-1, 1, 4).requires_grad_()},
    "ALiBi": lambda tokens: {"bias": ALiBi(4)},
    "bias": lambda tokens: {"bias": torch.linspace(-1, 1, tokens * tokens).sin().view(tokens, tokens)},
    "learned bias": lambda tokens: {"bias": torch.linspace(-1, 1, tokens**2).view(1, -1, tokens).requires_grad_()},
    "learned bias of rows": lambda tokens: {"bias": torch.linspace(-1, 1, tokens)[:, None].requires_grad_()},
    "softcap": lambda tokens: {"softcap": 2.0},
}


def qkv(tokens, batch=1, dtype=torch.float32):
    return [torch.randn(batch, heads, tokens, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


def to(options, dtype):
    return {
        name: o.detach().to(dtype).requires_grad_(o.requires_grad) if isinstance(o, torch.Tensor) else o
        for name, o in options.items()
    }


@grid(rule=RULES, option=OPTIONS, dtype=[torch.float32, torch.float64])
def test_it_is_the_definition_with_gradients(rule, option, dtype):
    options = to(OPTIONS[option](50), dtype)
    if isinstance(options.get("bias"), torch.nn.Module):
        options["bias"].to(dtype)
    with SMALL_LIMITS.apply():
        assert_is_the_definition(Attention(*qkv(50, 2, dtype), mask.where(RULES[rule]), options))


@some_examples(1)
@given(
    tokens=st.integers(1, 60),
    sets=st.lists(st.integers(0, 2**60 - 1), min_size=1, max_size=6),
    batch=st.sampled_from([1, 2]),
    by_row=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    max_merged_rows=st.sampled_from([1, 7, 20, 2048]),
    seed=st.integers(0, 2**32),
)
def test_any_sets_of_keys_shared_by_any_rows(tokens, sets, batch, by_row, dtype, max_merged_rows, seed):
    generator = torch.Generator().manual_seed(seed)
    members = torch.tensor([[(bits >> key) & 1 for key in range(tokens)] for bits in sets], dtype=torch.bool)
    which = torch.randint(len(sets), (batch if by_row else 1, 1, tokens), generator=generator)
    m = mask.allowed(members[which])
    limits = KernelLimits(0, 16, 8, 24, 100, 2**9, max_merged_rows)
    with limits.apply():
        assert_is_the_definition(Attention(*qkv(tokens, batch, dtype), m, {}))


@pytest.mark.more
@pytest.mark.parametrize("step", [2, 3, 16])
def test_keys_at_a_distance_cost_no_others(step):
    """Every n-th key: n times fewer pairs, or what the definition of the mask counts."""
    tensors, m = qkv(LONG), mask.where(lambda i, j: (i - j) % step == 0)
    pairs = int(m.dense(LONG, LONG).sum())
    assert regard.plan(*tensors, m).flops == 2 * 4 * 16 * pairs


def test_rows_of_several_tiles_are_one_call_of_the_kernel():
    q, k, v = (t.detach() for t in qkv(512))
    with KernelLimits(max_dense_pairs=0, max_merged_rows=128).apply(), OperatorTrace() as trace:
        regard.attend(q, k, v, mask.where(RULES["every other key"]))
    assert [(call["query"].shape[2], call["key"].shape[2]) for call in trace.fused] == 4 * [(128, 256)]
    assert all(call.get("attn_mask") is None for call in trace.fused)


def test_documents_in_pieces_are_computed_by_themselves():
    """Tokens of 4 documents in turn: each against its own keys, a quarter of all pairs."""
    m, tensors = mask.documents(torch.arange(LONG) % 4), qkv(LONG)
    assert regard.plan(*tensors, m).kernel == "tiles"
    assert regard.plan(*tensors, m).flops == regard.plan(*tensors).flops // 4


def test_rows_that_share_little_stay_together():
    """Random keys: a group for each row would be slower than all of them at once."""
    keep = torch.rand(1, LONG, LONG, generator=torch.Generator().manual_seed(0)) < 0.4
    tensors = [t.detach() for t in qkv(LONG)]
    assert regard.plan(*tensors, mask.allowed(keep)).flops == regard.plan(*tensors).flops


@pytest.mark.more
def test_memory_does_not_grow_with_the_square():
    tensors = [[t.detach()[:, :1] for t in qkv(tokens)] for tokens in (LONG, 2 * LONG)]
    peaks = [regard.plan(*t, mask.where(RULES["every other key"])).peak_bytes for t in tensors]
    assert peaks[1] < 2.1 * peaks[0]
    with OperatorTrace() as trace:
        regard.attend(*tensors[1], mask.where(RULES["every other key"]))
    assert trace.max_bytes <= 2**8 * 2 * LONG * 8  # one tile of the mask, as positions


def test_a_batch_row_of_few_keys_is_computed_as_it_would_be_alone():
    q, k, v = qkv(50, 3)
    m = mask.where(RULES["some keys for all"])
    with SMALL_LIMITS.apply():
        together = regard.attend(q, k, v, m)
        for row in range(3):
            assert torch.equal(regard.attend(q[row : row + 1], k[row : row + 1], v[row : row + 1], m)[0], together[row])
