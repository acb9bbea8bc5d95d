"""What others call a mask, both ways, held against what the others themselves make of it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import LlamaConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_sliding_window_causal_mask

import regard
from grids import grid, some_examples
from masks import BATCH, EVERY_KIND, HEADS, KEYS, QUERIES, MaskCase, build, cases
from regard import mask
from regard.attention.mask.geometry import Tile

# PyTorch says so at the first call that is not compiled, which on a CPU is every call here.
uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def qkv():
    return (torch.randn(BATCH, HEADS, n, 8, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))


def expanded(m):
    return m.dense(QUERIES, KEYS).expand(BATCH, HEADS, QUERIES, KEYS)


@given(cases(depth=3))
def test_there_and_back_is_the_same_mask(case: MaskCase):
    m, expected = build(case.spec), case.definition()
    sizes = case.queries, case.keys
    rows, heads = m.batch_heads(*sizes)
    same_for_all = (rows, heads) == (None, None)

    def assert_is_the_mask(t, dtype, shape, read, **arguments):
        assert (t.dtype, tuple(t.shape)) == (dtype, (*shape, *sizes))
        assert torch.equal(case.expand(read(t, **arguments).dense(*sizes)), expected)

    for dtype in (None, torch.float32, torch.bfloat16):
        t = m.to_sdpa(*sizes, dtype=dtype)
        assert_is_the_mask(t, dtype or torch.bool, t.shape[:-2], mask.from_sdpa)
        t = m.to_multihead(*sizes, batch_size=case.batch, num_heads=case.heads, dtype=dtype)
        shape, split = ((), {}) if same_for_all else ((case.batch * case.heads,), {"num_heads": case.heads})
        assert_is_the_mask(t, dtype or torch.bool, shape, mask.from_multihead, **split)
    for dtype in (torch.float64, torch.float16):
        t = m.to_huggingface(*sizes, dtype=dtype)
        assert_is_the_mask(t, dtype, (rows or 1, heads or 1), mask.from_huggingface)


@some_examples(0.3)
@given(cases(min_tokens=1, depth=3))
@pytest.mark.more
def test_there_and_back_through_blocks(case: MaskCase):
    m, sizes = build(case.spec), (case.queries, case.keys)
    for block_size in (2, (4, 1)):
        block_mask = m.to_flex(*sizes, device="cpu", block_size=block_size)
        assert tuple(block_mask.shape) == (*(size or 1 for size in m.batch_heads(*sizes)), *sizes)
        again = mask.from_flex(block_mask)
        assert torch.equal(case.expand(again.dense(*sizes)), case.definition())
        both = mask.from_flex((again & m).to_flex(*sizes, device="cpu"))
        assert torch.equal(case.expand(both.dense(*sizes)), case.definition())


@grid(m=EVERY_KIND, dtype=[None, torch.float64])
def test_sdpa_reads_it_as_regard_does(m, dtype):
    q, k, v = qkv()
    expected = regard.steps(q, k, v, m).output
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=m.to_sdpa(QUERIES, KEYS, dtype=dtype))
    attends = expanded(m).any(-1)
    torch.testing.assert_close(output[attends], expected[attends])


def run_multihead(queries, m, keys=None, *, bias=True, **masks):
    """Output and weights of nn.MultiheadAttention, and of ours with its weights."""
    theirs = nn.MultiheadAttention(24, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    drawn = {name.replace("in_proj_", "qkv."): nn.init.normal_(t) for name, t in theirs.state_dict().items()}
    ours = regard.MultiHeadAttention(24, HEADS, bias=bias).double()
    ours.load_state_dict(drawn)
    x = torch.randn(BATCH, queries, 24).double()
    context = x if keys is None else torch.randn(BATCH, keys, 24).double()
    steps = ours.steps(x, context, m)
    torch.testing.assert_close(ours(x, context, m), steps.projected)
    return *theirs(x, context, context, average_attn_weights=False, **masks), steps.projected, steps.weights


@grid(m=EVERY_KIND, dtype=[None, torch.float64], need_weights=[True, False])
def test_multihead_reads_it_as_regard_does__pytorch_170400(m, dtype, need_weights):
    attn_mask = m.to_multihead(QUERIES, KEYS, batch_size=BATCH, num_heads=HEADS, dtype=dtype)
    output, weights, expected, expected_weights = run_multihead(
        QUERIES, m, KEYS, attn_mask=attn_mask, need_weights=need_weights
    )
    attends = expanded(m).any(-1)
    in_all_heads = attends.all(1)  # the heads of one query come out together
    assert in_all_heads.any()
    torch.testing.assert_close(output[in_all_heads], expected[in_all_heads])
    if need_weights:
        torch.testing.assert_close(weights[attends], expected_weights[attends])
    else:
        assert weights is None


KEY_PADDING = torch.tensor([[False, False, False, True, True], [False, True, False, False, False]])


@grid(
    axes=[0, 2, 3],
    padded=[True, False],
    as_float=[True, False],
    need_weights=[True, False],
    bias=[True, False],
    where=lambda axes, padded, **_: axes or padded,
)
def test_the_two_masks_of_multihead__LLMs_from_scratch_1061(axes, padded, as_float, need_weights, bias):
    blocked = torch.ones(5, 5).bool().triu(1)
    if axes == 3:
        blocked = blocked & (torch.rand(BATCH * HEADS, 5, 5) < 0.7)
    masks = {**({"attn_mask": blocked} if axes else {}), **({"key_padding_mask": KEY_PADDING} if padded else {})}
    if as_float:
        masks = {name: torch.zeros(t.shape).double().masked_fill(t, -torch.inf) for name, t in masks.items()}
    m = mask.from_multihead(**masks, num_heads=HEADS if axes == 3 else None)
    output, weights, expected, expected_weights = run_multihead(5, m, **masks, need_weights=need_weights, bias=bias)
    torch.testing.assert_close(output, expected)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights)


@uncompiled
@pytest.mark.usefixtures("as_a_user_runs_it")  # FlexAttention traces the mask, but cannot trace the test run's checks
@pytest.mark.parametrize(
    "m", [pytest.param(m, marks=pytest.mark.more if n % 10 else (), id=repr(m)) for n, m in enumerate(EVERY_KIND)]
)
def test_flex_reads_it_as_regard_does(m):
    q, k, v = qkv()
    block_mask = m.to_flex(QUERIES, KEYS, batch_size=BATCH, num_heads=HEADS, device="cpu", block_size=2)
    assert tuple(block_mask.shape) == (BATCH, HEADS, QUERIES, KEYS)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), regard.steps(q, k, v, m).output)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # PyTorch's compiler, on loading itself
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("m", [mask.padding([150, 200]), *(m for m in EVERY_KIND if "where" in repr(m))], ids=repr)
def test_flex_compiled(m):
    torch._dynamo.reset()
    q, k, v = (torch.randn(BATCH, HEADS, 200, 16) for _ in "qkv")
    block_mask = m.to_flex(200, 200, batch_size=BATCH, num_heads=HEADS, device="cpu")
    output = torch.compile(flex_attention, dynamic=False)(q, k, v, block_mask=block_mask)
    torch.testing.assert_close(output, regard.steps(q, k, v, m).output)


HUGGING_FACE = {
    "causal": create_causal_mask,
    "window": create_sliding_window_causal_mask,
    "all": create_bidirectional_mask,
}

TEXTS = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@grid(kind=HUGGING_FACE, implementation=["sdpa", "eager"], dtype=[torch.float32, torch.bfloat16])
def test_hugging_face_means_the_same__transformers_38094_39389_39408(implementation, kind, dtype):
    config = LlamaConfig(attn_implementation=implementation)
    config.sliding_window = 3
    t = HUGGING_FACE[kind](config, torch.zeros(3, 6, 8, dtype=dtype), TEXTS, past_key_values=None)
    assert t.dtype == (torch.bool if implementation == "sdpa" else dtype)
    texts = mask.from_huggingface(TEXTS)
    m = {"causal": mask.causal() & texts, "window": mask.window(3) & texts, "all": texts}[kind]
    assert torch.equal(mask.from_huggingface(t).dense(6, 6), m.dense(6, 6))
    if implementation == "eager":
        assert torch.equal(m.to_huggingface(6, 6, dtype=dtype), t)


def test_polarity_is_each_library_s_own__pytorch_170400__transformers_38094():
    first, second, low = torch.tensor([[True, False]]), [[False, True]], torch.finfo(torch.float16).min
    read = [
        mask.from_sdpa(first),
        mask.from_multihead(first),
        mask.from_multihead(key_padding_mask=first),
        mask.from_multihead(key_padding_mask=first[0]),
        mask.from_huggingface(first),
        mask.from_huggingface(first[None, None]),
    ]
    assert [m.dense(1, 2).tolist() for m in read] == [
        first.tolist(), second, [[second]], second, [[first.tolist()]], [[first.tolist()]]
    ]  # fmt: skip
    m = mask.allowed(first)
    assert (m.to_sdpa(1, 2).tolist(), m.to_multihead(1, 2).tolist()) == (first.tolist(), second)
    assert m.to_sdpa(1, 2, dtype=torch.float16).tolist() == [[0, -torch.inf]]
    assert m.to_multihead(1, 2, dtype=torch.float16).tolist() == [[0, -torch.inf]]
    assert m.to_huggingface(1, 2, dtype=torch.float16).tolist() == [[[[0, low]]]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_hugging_face_rows_padded_on_either_side(dtype):
    dense = mask.from_huggingface(TEXTS.to(dtype)).dense(2, 6)
    assert torch.equal(dense, (TEXTS == 1)[:, None, None].expand(3, 1, 2, 6))


def test_masks_of_hugging_face_that_were_added_to_one_another():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        causal, texts = (m.to_huggingface(6, 6, dtype=dtype) for m in (mask.causal(), mask.from_huggingface(TEXTS)))
        both = causal + texts
        assert both.isinf().any()
        expected = (mask.causal() & mask.from_huggingface(TEXTS)).dense(6, 6)
        assert torch.equal(mask.from_huggingface(both).dense(6, 6), expected)
        if dtype != torch.float16:  # its smallest number is one that a bias can have in a wider dtype
            assert torch.equal(mask.from_sdpa(both.float()).dense(6, 6), expected)


READERS = {
    "from_sdpa": mask.from_sdpa,
    r"from_multihead\(attn_mask\)": mask.from_multihead,
    r"from_multihead\(key_padding_mask\)": lambda t: mask.from_multihead(key_padding_mask=t),
    "from_huggingface": lambda t: mask.from_huggingface(t[None, None]),
}
ADDED = r"a torch.float.* mask is added to the scores.*mask\.allowed\(t == 1\)"
BIAS = r" is neither 0 .* so this is a bias: attend\(\.\.\., bias=t\)"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.0, 1.0]], ADDED),
        (torch.tensor([[1.0, 1.0]]).half(), ADDED),
        ([[0.0, -1e4]], f"-10000{BIAS}"),
        ([[0.0, torch.finfo(torch.float16).min]], f"-65504{BIAS}"),
        ([[0.5, 0.0, -torch.inf]], f"0.5{BIAS}"),
        ([[1.0, -torch.inf]], f"1{BIAS}"),
        ([[0.0, torch.inf]], f"inf{BIAS}"),
        ([[0.0, torch.nan, -torch.inf]], "NaN is neither"),
    ],
    ids=repr,
)
def test_other_numbers_than_0_and_minus_infinity_are_no_mask__pytorch_21518(name, values, message):
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        READERS[name](torch.as_tensor(values))


@pytest.mark.parametrize("name", READERS)
def test_zeros_are_a_mask_and_whole_numbers_are_not(name):
    m = READERS[name](torch.zeros(3, 3)).dense(3, 3)
    assert m.all()
    assert m.shape[-2:] == (3, 3)
    message = rf"{name} wants a boolean tensor.*got a torch\.int64 tensor.*mask\.from_.*\(t == 1\)"
    with pytest.raises(TypeError, match=message):
        READERS[name](torch.ones(2, 2).long())


def true(*shape):
    return torch.ones(shape, dtype=torch.bool)


CAUSAL, TWO_ROWS, THREE_HEADS = mask.causal(), mask.padding([1, 2]), mask.allowed(true(3, 1, 1))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mask.from_sdpa([[True]]), TypeError, r"from_sdpa wants a boolean tensor.*got list"),
        (lambda: mask.from_sdpa(true(3)), ValueError, r"wants the shape \(\.\.\., queries, keys\)"),
        (lambda: mask.from_huggingface(None), TypeError, r"from_huggingface wants a boolean tensor.*got NoneType"),
        (lambda: mask.from_huggingface(torch.ones(2, 3)), TypeError, r"\(2, 3\).*float32.*from_huggingface\(t == 1\)"),
        (lambda: mask.from_huggingface(torch.tensor([[1, 2, 2]])), ValueError, r"got 2\. .*mask\.documents\(t\)"),
        (lambda: mask.from_huggingface(true(2, 3, 3)), ValueError, r"got \(2, 3, 3\)"),
        (mask.from_multihead, ValueError, "no mask; where every query may attend to every key, use mask=None"),
        (lambda: mask.from_multihead(true(4, 2, 2)), ValueError, r"\(4, 2, 2\).*say num_heads"),
        (lambda: mask.from_multihead(true(4, 2, 2), num_heads=3), ValueError, r"\(4, 2, 2\): 4 masks .* 3 heads each"),
        (lambda: mask.from_multihead(true(4, 2, 2), num_heads=0), ValueError, r"not for 0 heads each"),
        (lambda: mask.from_multihead(true(2)), ValueError, r"attn_mask\) wants .*got \(2,\)"),
        (lambda: mask.from_multihead(key_padding_mask=true(2, 2, 2)), ValueError,
         r"key_padding_mask\) wants \(batch, keys\) or \(keys,\); got \(2, 2, 2\)"),
        (lambda: mask.from_multihead(true(3, 3), true(2, 4)), ValueError, r"is for 3 keys, the right for 4"),
        (lambda: mask.from_multihead(true(4, 3, 3), true(3, 3), num_heads=2), ValueError,
         r"the left is for 2 batch rows, the right for 3"),
        (lambda: mask.from_flex(true(2, 2)), TypeError, r"wants a BlockMask of flex_attention; got Tensor"),
        (lambda: CAUSAL.to_sdpa(2, 2, dtype=torch.int64), TypeError, r"to_sdpa\(dtype=torch\.int64\)"),
        (lambda: CAUSAL.to_multihead(2, 2, dtype=torch.bool), TypeError, r"to_multihead\(dtype=torch\.bool\)"),
        (lambda: CAUSAL.to_huggingface(2, 2, dtype=torch.int8), TypeError, r"to_huggingface\(dtype=torch\.int8"),
        (lambda: TWO_ROWS.to_multihead(2, 2), ValueError, r"padding\(\[1, 2\]\).*say num_heads"),
        (lambda: mask.padding([1]).to_multihead(2, 2), ValueError, r"padding\(\[1\]\).*say num_heads"),
        (lambda: THREE_HEADS.to_multihead(2, 2), ValueError, r"<bool \(3, 1, 1\)>.*say batch"),
        (lambda: TWO_ROWS.to_multihead(2, 2, batch_size=3, num_heads=1), ValueError,
         r"padding\(\[1, 2\]\) has 2 batch rows, but there are 3"),
        (lambda: THREE_HEADS.to_multihead(2, 2, batch_size=1, num_heads=2), ValueError, "has 3 heads, but there are 2"),
        (lambda: TWO_ROWS.to_flex(2, 2, batch_size=3, device="cpu"), ValueError,
         r"padding\(\[1, 2\]\) has 2 batch rows, but there are 3"),
        (lambda: CAUSAL.to_flex(0, 2, device="cpu"), ValueError, r"\.to_flex\(0, 2\): .*at least one query"),
        (lambda: mask.padding([5]).to_flex(4, 4, device="cpu"), ValueError, r"padding\(\[5\]\) is for 5 keys"),
        (lambda: mask.from_flex(CAUSAL.to_flex(5, 6, device="cpu")).dense(6, 6), ValueError,
         r"from_flex\(<BlockMask \(1, 1, 5, 6\)>\) does not fit 6 queries and 6 keys"),
        (lambda: mask.from_flex(CAUSAL.to_flex(5, 6, device="cpu")) & mask.documents([0, 0, 1]), ValueError,
         "the left is for 6 keys, the right for 3"),
        (lambda: mask.from_flex(TWO_ROWS.to_flex(2, 2, device="cpu")) & mask.padding([1, 2, 2]), ValueError,
         "is for 2 batch rows, the right for 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_block_mask_that_speaks_of_rows_and_heads():
    # As a lambda, because the test run wraps functions and FlexAttention counts their arguments.
    stripes = lambda b, h, i, j: (i + j) % (1 + b + 2 * h) == 0  # noqa: E731
    m = mask.from_flex(create_block_mask(stripes, 2, 3, 5, 7, "cpu", BLOCK_SIZE=4))
    assert m.batch_heads(5, 7) == (2, 3)
    expected = torch.tensor([stripes(*at) for at in itertools.product(*map(range, (2, 3, 5, 7)))]).reshape(2, 3, 5, 7)
    assert torch.equal(m.dense(5, 7), expected)
    assert torch.equal(m.evaluate(Tile(5, 7, (1, 4), (2, 7))), expected[:, :, 1:4, 2:7])
    assert m.evaluate(Tile(5, 7, (2, 2), (0, 7))).shape == (2, 3, 0, 7)
    assert [m[1, 2, query, 2].item() for query in (3, 4)] == [False, True]


def test_blocks_that_a_mask_mod_alone_does_not_know():
    """Blocks can be listed by hand: what is full needs no mask_mod, what is listed has one, the rest is skipped."""
    listed = [[1, 0]], [[[1, 0, 0], [0, 0, 0]]], [[0, 1]], [[[0, 0, 0], [2, 1, 0]]]
    numbers_and_indices = (torch.tensor([blocks], dtype=torch.int32) for blocks in listed)
    block_mask = BlockMask.from_kv_blocks(
        *numbers_and_indices, BLOCK_SIZE=2, mask_mod=lambda b, h, i, j: j > i + 1, seq_lengths=(4, 5)
    )
    expected = [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert mask.from_flex(block_mask).dense(4, 5)[0, 0].int().tolist() == expected


def test_equal_block_masks():
    block_mask = CAUSAL.to_flex(4, 4, device="cpu")
    assert mask.from_flex(block_mask) == mask.from_flex(block_mask)
    assert mask.from_flex(block_mask) != mask.from_flex(mask.window(2).to_flex(4, 4, device="cpu"))
