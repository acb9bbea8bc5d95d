"""Relative positions against their papers' formulas and the numbers of transformers."""

import copy

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from regard.attention.positions import ALiBi, T5Relative

# ALiBi.


def test_alibi_by_loops():
    query, key = [5, 0, 9], [0, 5, 7, 1000]
    expected = [[[-slope * abs(q - k) for k in key] for q in query] for slope in (2**-4, 2**-8, 2**-2)]
    actual = ALiBi(3).double()(torch.tensor(query), torch.tensor(key))
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_the_last_query_as_mpt(heads):
    torch.testing.assert_close(ALiBi(heads).dense(1, 50), build_mpt_alibi_tensor(heads, 50), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_alibi_takes_the_dtype_of_its_module(dtype):
    alibi, query, key = ALiBi(12).to(dtype), torch.tensor([300_001]), torch.arange(100)
    bias = alibi(query, key)
    assert bias.dtype == alibi.slopes.dtype == dtype
    # Distances are not rounded before they are multiplied.
    assert torch.equal(bias, (-alibi.slopes[:, None, None].double() * (query[:, None] - key)).to(dtype))


def test_slopes_are_exact_after_any_cast():
    alibi = ALiBi(12).to(torch.bfloat16).to(torch.float32)
    assert torch.equal(alibi.slopes, ALiBi(12).slopes)
    assert alibi.half().double().slopes[8].item() == 2**-0.5


def test_alibi_has_nothing_to_learn_or_to_save():
    with torch.device("meta"):
        alibi = ALiBi(6)
    assert alibi.slopes.is_meta
    assert torch.equal(alibi.to_empty(device="cpu").slopes, ALiBi(6).slopes)
    assert [*alibi.parameters(), *alibi.state_dict()] == []


def t5(*, bidirectional=True):
    """T5's module of transformers and ours with the same weights."""
    config = transformers.T5Config(d_model=8, d_kv=2, num_heads=4)
    config.is_decoder = not bidirectional
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Relative(4, bidirectional=bidirectional)
    ours.load_state_dict(theirs.relative_attention_bias.state_dict())
    return theirs, ours


@given(half=st.integers(2, 100), further=st.integers(1, 5000), bidirectional=st.booleans())
def test_the_bucket_of_every_distance(half, further, bidirectional):
    options = {"num_buckets": 2 * half, "max_distance": half + further, "bidirectional": bidirectional}
    relative = torch.cat([torch.arange(-6000, 6001), torch.tensor([-(10**6), 10**6])])
    expected = T5Attention._relative_position_bucket(relative, **options)
    assert torch.equal(T5Relative(1, **options).bucket(relative), expected)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (300, 300), (5, 200)])
def test_the_bias_of_t5(queries, keys, bidirectional):
    theirs, ours = t5(bidirectional=bidirectional)
    expected = theirs.compute_bias(queries, keys, past_seen_tokens=keys - queries)[0]
    assert torch.equal(ours.dense(queries, keys), expected)


def test_t5_saves_its_weight_alone_and_draws_it_as_an_embedding():
    torch.manual_seed(3)
    expected = torch.nn.Embedding(16, 4).weight
    torch.manual_seed(3)
    module = T5Relative(4, num_buckets=16)
    assert list(module.state_dict()) == [name for name, _ in module.named_parameters()] == ["weight"]
    assert torch.equal(module.weight, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_t5_takes_the_dtype_of_its_weight(dtype):
    _, ours = t5()
    expected = ours.dense(200, 200).to(dtype)
    assert torch.equal(ours.to(dtype).dense(200, 200), expected)


biases = pytest.mark.parametrize("bias", [ALiBi(6), T5Relative(6)], ids=["alibi", "t5"])


@biases
@pytest.mark.parametrize(("queries", "keys"), [(0, 4), (3, 0), (0, 0)])
def test_no_positions(bias, queries, keys):
    assert bias(torch.arange(queries), torch.arange(keys)).shape == (6, queries, keys)


@biases
def test_the_bias_of_every_pair_goes_to_the_device_asked_for(bias):
    assert copy.deepcopy(bias).to("meta").dense(3, 5, device=torch.device("meta")).device.type == "meta"


@biases
def test_positions_of_32_bits(bias):
    query, key = torch.arange(40, 300), torch.arange(300)
    assert torch.equal(bias(query.int(), key.int()), bias(query, key))


@biases
def test_a_copy_after_a_call_without_gradients(bias):
    query, key = torch.arange(9), torch.arange(9)
    with torch.inference_mode():
        expected = bias(query, key)
    scores = torch.randn(6, 9, 9, requires_grad=True)
    again = copy.deepcopy(bias)(query, key)
    (scores * again).sum().backward()
    assert torch.equal(again, expected)
    assert torch.equal(scores.grad, expected)


@pytest.mark.usefixtures("as_a_user_runs_it")
@biases
@pytest.mark.parametrize(
    ("name", "wrong"), [("query", torch.zeros(2, 3).long()), ("key", torch.tensor(1)), ("key", torch.zeros(3))]
)
def test_positions_that_are_not_one_row_of_whole_numbers(bias, name, wrong):
    with pytest.raises(ValueError, match=rf"{name} positions must be one row of whole numbers; got shape \("):
        bias(**{"query": torch.arange(3), "key": torch.arange(3), name: wrong})


def test_says_what_it_is():
    assert str(ALiBi(6)) == "ALiBi(6)"
    assert str(T5Relative(6)) == "T5Relative(6, num_buckets=32, max_distance=128, bidirectional=True)"


T5_BUCKETS = "num_buckets=31 must be at least 2, and with bidirectional=True an even number from 4"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda kind=kind, heads=heads: kind(heads), f"num_heads={heads} must be at least 1")
          for kind in (ALiBi, T5Relative) for heads in (0, -4)),
        (lambda: T5Relative(4, num_buckets=31), T5_BUCKETS),
        (lambda: T5Relative(4, num_buckets=2), "num_buckets=2 must be"),
        (lambda: T5Relative(4, num_buckets=1, bidirectional=False), "num_buckets=1 must be"),
        (lambda: T5Relative(4, max_distance=8), "max_distance=8 must be above 8, .* own bucket with num_buckets=32"),
        (lambda: T5Relative(4, max_distance=16, bidirectional=False), "max_distance=16 must be above 16"),
        (lambda: T5Relative(4, max_distance=10**400), "max_distance=10+ must be above 8, and at most 4.6e.18"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()
