"""What others call a mask, both ways, held against what the others themselves make of it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaModel
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_sliding_window_causal_mask

import regard
from masks import Case, build, cases
from regard import mask
from regard.attention.mask.geometry import Tile

# PyTorch says so at the first call that is not compiled, which on a CPU is every call here.
uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 6

EVERY_KIND = [
    mask.causal(),
    mask.causal(offset=0),
    mask.window(3),
    mask.window(2, 1),
    mask.padding([4, 6]),
    mask.documents([0, 0, 1, 1, 0, 2]),
    mask.documents([[0, 0, 1, 1, 2, 2], [3, 3, 3, 0, 0, 0]]),
    mask.documents([0, 1, 1, 2], [[2, 0, 0, 1, 1, 1], [1, 0, 2, 2, 3, 3]]),
    mask.prefix(2),
    mask.prefix([3, 1]),
    mask.where(lambda i, j: (i - j) % 2 == 0),
    mask.where(lambda i, j: (i - j) % torch.tensor([1, 2, 3])[:, None, None] == 0),
    mask.allowed(torch.eye(4, 6).bool()),
    mask.blocked(torch.eye(4, 6).bool().expand(2, 1, 4, 6)),
    mask.causal() & mask.padding([5, 6]),
    mask.window(2) | ~mask.documents([[0, 0, 1, 1, 2, 2], [3, 3, 3, 0, 0, 0]]),
]
every_kind = pytest.mark.parametrize("m", EVERY_KIND, ids=repr)


def numbers(queries=QUERIES, keys=KEYS):
    return (torch.randn(BATCH, HEADS, n, 8, dtype=torch.float64) for n in (queries, keys, keys))


def whole(m, queries=QUERIES, keys=KEYS):
    return m.dense(queries, keys).expand(BATCH, HEADS, queries, keys)


# There and back.


@settings(max_examples=200, deadline=None)
@given(cases(depth=3))
def test_there_and_back_is_the_same_mask(case: Case):
    m, expected = build(case.spec), case.definition()
    sizes = case.queries, case.keys

    def back(again: mask.Mask) -> torch.Tensor:
        return case.expand(again.dense(*sizes))

    rows, heads = m.batch_heads(*sizes)
    speaks = (rows, heads) != (None, None)
    split = {"num_heads": case.heads} if speaks else {}
    for dtype in (None, torch.float32, torch.bfloat16):
        there = m.to_sdpa(*sizes, dtype=dtype)
        assert there.dtype == (dtype or torch.bool)
        assert torch.equal(back(mask.from_sdpa(there)), expected)

        there = m.to_multihead(*sizes, batch_size=case.batch, num_heads=case.heads, dtype=dtype)
        assert there.shape == ((case.batch * case.heads, *sizes) if speaks else sizes)
        assert torch.equal(back(mask.from_multihead(there, **split)), expected)

    for dtype in (torch.float64, torch.float16):
        there = m.to_huggingface(*sizes, dtype=dtype)
        assert there.dtype == dtype
        assert there.shape == (rows or 1, heads or 1, *sizes)
        assert torch.equal(back(mask.from_huggingface(there)), expected)


@settings(max_examples=30, deadline=None)
@given(cases(min_tokens=1, depth=3))
def test_there_and_back_through_blocks(case: Case):
    m, sizes = build(case.spec), (case.queries, case.keys)
    for block_size in (2, (4, 1)):
        there = m.to_flex(*sizes, device="cpu", block_size=block_size)
        assert tuple(there.shape) == (*(size or 1 for size in m.batch_heads(*sizes)), *sizes)
        again = mask.from_flex(there)
        assert torch.equal(case.expand(again.dense(*sizes)), case.definition())
        both = again & m
        assert torch.equal(
            case.expand(mask.from_flex(both.to_flex(*sizes, device="cpu")).dense(*sizes)), case.definition()
        )


# What the others make of it.


@every_kind
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_sdpa_reads_it_as_regard_does(m, dtype):
    q, k, v = numbers()
    expected = regard.steps(q, k, v, m).output
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=m.to_sdpa(QUERIES, KEYS, dtype=dtype))
    seen = whole(m).any(-1)
    torch.testing.assert_close(output[seen], expected[seen])


@every_kind
@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_reads_it_as_regard_does__pytorch_170400(m, dtype, need_weights):
    theirs = nn.MultiheadAttention(24, HEADS, batch_first=True, dtype=torch.float64)
    x, context = torch.randn(BATCH, QUERIES, 24).double(), torch.randn(BATCH, KEYS, 24).double()
    output, weights = theirs(
        x,
        context,
        context,
        attn_mask=m.to_multihead(QUERIES, KEYS, batch_size=BATCH, num_heads=HEADS, dtype=dtype),
        need_weights=need_weights,
        average_attn_weights=False,
    )
    steps = by_the_definition(theirs, x, context, m)
    seen = whole(m).any(-1)
    everywhere = seen.all(1)  # the heads of one query come out together
    expected = theirs.out_proj(steps.output.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output[everywhere], expected[everywhere])
    assert everywhere.any()
    if need_weights:
        torch.testing.assert_close(weights[seen], steps.weights[seen])
    else:
        assert weights is None


def by_the_definition(theirs, x, context, m):
    """regard.steps on the queries, keys and values that nn.MultiheadAttention makes."""
    projected = [
        F.linear(t, weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for t, weight, bias in zip(
            (x, context, context), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        )
    ]
    return regard.steps(*projected, m)


KEY_PADDING = torch.tensor([[False, False, False, True, True], [False, True, False, False, False]])


@pytest.mark.parametrize("axes", [None, 2, 3])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("as_float", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_two_masks_of_multihead__LLMs_from_scratch_1061(axes, padded, as_float, need_weights):
    blocked = torch.ones(5, 5).bool().triu(1)
    if axes == 3:
        blocked = blocked & (torch.rand(BATCH * HEADS, 5, 5) < 0.7)
    attn_mask, key_padding_mask = None if axes is None else blocked, KEY_PADDING if padded else None
    if as_float:
        attn_mask, key_padding_mask = (
            None if t is None else torch.zeros(t.shape).double().masked_fill(t, -torch.inf)
            for t in (attn_mask, key_padding_mask)
        )
    if attn_mask is None and key_padding_mask is None:
        with pytest.raises(
            ValueError, match="was given no mask; where every query may attend to every key, use mask=None"
        ):
            mask.from_multihead(attn_mask, key_padding_mask)
        return
    m = mask.from_multihead(attn_mask, key_padding_mask, num_heads=HEADS if axes == 3 else None)
    theirs = nn.MultiheadAttention(24, HEADS, batch_first=True, dtype=torch.float64)
    x = torch.randn(BATCH, 5, 24).double()
    output, weights = theirs(
        x,
        x,
        x,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        average_attn_weights=False,
    )
    steps = by_the_definition(theirs, x, x, m)
    torch.testing.assert_close(output, theirs.out_proj(steps.output.transpose(1, 2).flatten(2)))
    if need_weights:
        torch.testing.assert_close(weights, steps.weights)


@uncompiled
@pytest.mark.usefixtures(
    "as_a_user_runs_it"
)  # FlexAttention traces the mask, and cannot trace the checks of the test run
@every_kind
def test_flex_reads_it_as_regard_does(m):
    q, k, v = numbers()
    block_mask = m.to_flex(QUERIES, KEYS, batch_size=BATCH, num_heads=HEADS, device="cpu", block_size=2)
    assert tuple(block_mask.shape) == (BATCH, HEADS, QUERIES, KEYS)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), regard.steps(q, k, v, m).output)


STEPS = torch.tensor([[1, 2, 3], [4, 5, 6]])

AS_A_TABLE = [
    mask.where(lambda i, j: (i - j) % STEPS[0, :, None, None] == 0),
    mask.where(lambda i, j: (i - j) % STEPS[:, :, None, None] == 0),
    mask.where(lambda i, j: (j % 2 == 0)[0]),
]


@pytest.mark.parametrize("m", AS_A_TABLE, ids=["heads", "batch and heads", "a row of keys"])
def test_flex_asks_for_one_pair_at_a_time(m):
    # A function that returns more than one answer for it gave a wrong result, without a word, once compiled.
    says = m.predicate(QUERIES, KEYS)
    b, h, i, j = torch.tensor(1), torch.tensor(2), torch.tensor(0), torch.tensor(4)
    assert says(b, h, i, j).shape == ()
    assert says(b, h, i, j) == whole(m)[1, 2, 0, 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # PyTorch's compiler, on loading itself
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("m", [mask.causal() & mask.padding([150, 200]), *AS_A_TABLE], ids=repr)
def test_flex_compiled(m):
    torch._dynamo.reset()
    q, k, v = (torch.randn(BATCH, HEADS, 200, 16) for _ in "qkv")
    block_mask = m.to_flex(200, 200, batch_size=BATCH, num_heads=HEADS, device="cpu")
    output = torch.compile(flex_attention, dynamic=False)(q, k, v, block_mask=block_mask)
    torch.testing.assert_close(output, regard.steps(q, k, v, m).output)


@uncompiled
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_flex_with_one_block_mask_for_all():
    q, k, v = numbers()
    m = mask.causal() & mask.window(3)
    block_mask = m.to_flex(QUERIES, KEYS, device="cpu")
    assert tuple(block_mask.shape) == (1, 1, QUERIES, KEYS)
    expected = regard.steps(q, k, v, m).output
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), expected)
    torch.testing.assert_close(regard.steps(q, k, v, mask.from_flex(block_mask)).output, expected)


HUGGING_FACE = {
    "causal": create_causal_mask,
    "window": create_sliding_window_causal_mask,
    "all": create_bidirectional_mask,
}

TEXTS = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def llama(implementation, **settings):
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=24,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        attn_implementation=implementation,
        **settings,
    )
    return LlamaModel(config).double().eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("kind", "ours"),
    [("causal", mask.causal()), ("window", mask.window(3)), ("all", None)],
    ids=["causal", "window", "all"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hugging_face_means_the_same__transformers_38094__transformers_39408(implementation, kind, ours, dtype):
    config = LlamaConfig(attn_implementation=implementation)
    config.sliding_window = 3
    theirs = HUGGING_FACE[kind](config, torch.zeros(3, 6, 8, dtype=dtype), TEXTS, past_key_values=None)
    assert theirs.dtype == (torch.bool if implementation == "sdpa" else dtype)
    texts = mask.from_huggingface(TEXTS)
    m = texts if ours is None else ours & texts
    assert torch.equal(mask.from_huggingface(theirs).dense(6, 6), m.dense(6, 6))
    if implementation == "eager":
        assert torch.equal(m.to_huggingface(6, 6, dtype=dtype), theirs)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model_of_hugging_face_takes_it__transformers_39389(implementation):
    model = llama(implementation)
    ids = torch.arange(18).reshape(3, 6) % 11
    m = mask.causal() & mask.from_huggingface(TEXTS)
    with torch.no_grad():
        theirs = model(ids, attention_mask=TEXTS, position_ids=torch.arange(6)[None]).last_hidden_state
        given = m.to_huggingface(6, 6, dtype=torch.float64)
        ours = model(ids, attention_mask=given, position_ids=torch.arange(6)[None]).last_hidden_state
        unmasked = model(ids, position_ids=torch.arange(6)[None]).last_hidden_state
    seen = m.dense(6, 6).any(-1)[:, 0]
    assert seen.sum() == 16  # all but the two that stand before their text
    torch.testing.assert_close(ours[seen], theirs[seen])
    assert not torch.allclose(ours[1, 2:], unmasked[1, 2:])  # the mask was not dropped on the way


# Rectangles.


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (1, 5), (5, 5), (5, 2)])
def test_causal_rectangles_end_together__pytorch_108108__pytorch_103082__mlx_2835__x_transformers_187(queries, keys):
    expected = torch.tensor([[queries - i <= keys - j for j in range(keys)] for i in range(queries)])
    m = mask.causal()
    assert torch.equal(m.to_sdpa(queries, keys), expected)
    assert torch.equal(m.to_multihead(queries, keys), ~expected)
    assert torch.equal(m.to_huggingface(queries, keys, dtype=torch.float32)[0, 0] == 0, expected)
    assert torch.equal(mask.from_flex(m.to_flex(queries, keys, device="cpu")).dense(queries, keys)[0, 0], expected)


def test_a_block_mask_counts_queries_from_the_first():
    block_mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, 2, 5, "cpu")
    m = mask.from_flex(block_mask)
    assert torch.equal(m.dense(2, 5)[0, 0], mask.causal(offset=0).dense(2, 5))
    assert repr(m) == "from_flex(<BlockMask (1, 1, 2, 5)>)"


# Polarity, in both spellings.


def test_polarity_is_each_library_s_own__pytorch_170400__transformers_38094():
    first_only = torch.tensor([[True, False]])
    assert mask.from_sdpa(first_only).dense(1, 2).tolist() == [[True, False]]
    assert mask.from_multihead(first_only).dense(1, 2).tolist() == [[False, True]]
    assert mask.from_multihead(key_padding_mask=first_only).dense(1, 2).tolist() == [[[[False, True]]]]
    assert mask.from_multihead(key_padding_mask=first_only[0]).dense(1, 2).tolist() == [[False, True]]
    assert mask.from_huggingface(first_only).dense(1, 2).tolist() == [[[[True, False]]]]
    assert mask.from_huggingface(first_only[None, None]).dense(1, 2).tolist() == [[[[True, False]]]]
    m = mask.allowed(first_only)
    assert m.to_sdpa(1, 2).tolist() == [[True, False]]
    assert m.to_multihead(1, 2).tolist() == [[False, True]]
    low = torch.finfo(torch.float16).min
    assert m.to_sdpa(1, 2, dtype=torch.float16).tolist() == [[0, -torch.inf]]
    assert m.to_multihead(1, 2, dtype=torch.float16).tolist() == [[0, -torch.inf]]
    assert m.to_huggingface(1, 2, dtype=torch.float16).tolist() == [[[[0, low]]]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_hugging_face_rows_padded_on_either_side(dtype):
    m = mask.from_huggingface(TEXTS.to(dtype))
    expected = [[[[real == 1 for real in text]] * 2] for text in TEXTS.tolist()]
    assert m.dense(2, 6).tolist() == expected
    with pytest.raises(ValueError, match=r"allowed\(<bool \(3, 1, 1, 6\)>\) does not fit 7 queries and 7 keys"):
        m.dense(7, 7)


def test_masks_of_hugging_face_that_were_added_to_one_another():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        causal, texts = (m.to_huggingface(6, 6, dtype=dtype) for m in (mask.causal(), mask.from_huggingface(TEXTS)))
        both = causal + texts
        assert both.isinf().any()
        expected = (mask.causal() & mask.from_huggingface(TEXTS)).dense(6, 6)
        assert torch.equal(mask.from_huggingface(both).dense(6, 6), expected)
        if dtype != torch.float16:  # its smallest number is one that a bias can have in a wider dtype
            assert torch.equal(mask.from_sdpa(both.float()).dense(6, 6), expected)


# What is refused.

float_readers = pytest.mark.parametrize(
    ("read", "name"),
    [
        (mask.from_sdpa, "from_sdpa"),
        (mask.from_multihead, r"from_multihead\(attn_mask\)"),
        (lambda t: mask.from_multihead(key_padding_mask=t), r"from_multihead\(key_padding_mask\)"),
        (lambda t: mask.from_huggingface(t[None, None]), "from_huggingface"),
    ],
    ids=["sdpa", "multihead", "padding", "huggingface"],
)


@float_readers
@pytest.mark.parametrize("values", [[[0.0, 1.0]], [[1.0, 1.0]]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_float_mask_of_0_and_1_is_added__pytorch_21518(read, name, values, dtype):
    with pytest.raises(
        ValueError, match=rf"{name}: a torch.float.* mask is added to the scores.*mask\.allowed\(t == 1\)"
    ):
        read(torch.tensor(values, dtype=dtype))


@float_readers
@pytest.mark.parametrize(
    ("values", "first"),
    [
        ([[0.0, -1e4]], "-10000"),
        ([[0.0, torch.finfo(torch.float16).min]], "-65504"),
        ([[0.5, 0.0, -torch.inf]], "0.5"),
        ([[1.0, -torch.inf]], "1"),
        ([[0.0, torch.inf]], "inf"),
    ],
)
def test_a_bias_is_not_a_mask(read, name, values, first):
    with pytest.raises(
        ValueError, match=rf"{name}: {first} is neither 0 .* so this is a bias: attend\(\.\.\., bias=t\)"
    ):
        read(torch.tensor(values))


@float_readers
def test_nan_is_not_a_mask(read, name):
    with pytest.raises(ValueError, match=rf"{name}: NaN is neither"):
        read(torch.tensor([[0.0, torch.nan, -torch.inf]]))


@float_readers
def test_zeros_let_everyone_attend(read, name):
    assert read(torch.zeros(3, 3)).dense(3, 3).all()
    assert read(torch.zeros(3, 3)).dense(3, 3).shape[-2:] == (3, 3)


@float_readers
def test_numbers_that_say_nothing_of_polarity(read, name):
    with pytest.raises(
        TypeError, match=rf"{name} wants a boolean tensor.*got a torch\.int64 tensor.*mask\.from_.*\(t == 1\)"
    ):
        read(torch.ones(2, 2).long())


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mask.from_sdpa([[True]]), TypeError, r"from_sdpa wants a boolean tensor.*got list"),
        (lambda: mask.from_sdpa(torch.ones(3).bool()), ValueError, r"wants the shape \(\.\.\., queries, keys\)"),
        (lambda: mask.from_huggingface(None), TypeError, r"from_huggingface wants a boolean tensor.*got NoneType"),
        (
            lambda: mask.from_huggingface(torch.ones(2, 3)),
            TypeError,
            r"\(2, 3\).*got torch\.float32.*from_huggingface\(t == 1\)",
        ),
        (lambda: mask.from_huggingface(torch.tensor([[1, 2, 2]])), ValueError, r"got 2\. .*mask\.documents\(t\)"),
        (lambda: mask.from_huggingface(torch.ones(2, 3, 3).bool()), ValueError, r"got \(2, 3, 3\)"),
        (lambda: mask.from_multihead(torch.ones(4, 2, 2).bool()), ValueError, r"\(4, 2, 2\).*say num_heads"),
        (
            lambda: mask.from_multihead(torch.ones(4, 2, 2).bool(), num_heads=3),
            ValueError,
            r"\(4, 2, 2\): 4 masks are not for 3 heads each",
        ),
        (lambda: mask.from_multihead(torch.ones(4, 2, 2).bool(), num_heads=0), ValueError, r"not for 0 heads each"),
        (lambda: mask.from_multihead(torch.ones(2).bool()), ValueError, r"attn_mask\) wants .*got \(2,\)"),
        (
            lambda: mask.from_multihead(key_padding_mask=torch.ones(2, 2, 2).bool()),
            ValueError,
            r"key_padding_mask\) wants \(batch, keys\) or \(keys,\); got \(2, 2, 2\)",
        ),
        (
            lambda: mask.from_multihead(torch.ones(3, 3).bool(), torch.ones(2, 4).bool()),
            ValueError,
            r"the left is for 3 keys, the right for 4",
        ),
        (
            lambda: mask.from_multihead(torch.ones(4, 3, 3).bool(), torch.ones(3, 3).bool(), num_heads=2),
            ValueError,
            r"the left is for 2 batch rows, the right for 3",
        ),
        (
            lambda: mask.from_flex(torch.ones(2, 2).bool()),
            TypeError,
            r"wants a BlockMask of flex_attention; got Tensor",
        ),
        (lambda: mask.causal().to_sdpa(2, 2, dtype=torch.int64), TypeError, r"to_sdpa\(dtype=torch\.int64\)"),
        (lambda: mask.causal().to_multihead(2, 2, dtype=torch.bool), TypeError, r"to_multihead\(dtype=torch\.bool\)"),
        (
            lambda: mask.causal().to_huggingface(2, 2, dtype=torch.int8),
            TypeError,
            r"to_huggingface\(dtype=torch\.int8\)",
        ),
        (lambda: mask.padding([1, 2]).to_multihead(2, 2), ValueError, r"padding\(\[1, 2\]\).*say num_heads"),
        (lambda: mask.padding([1]).to_multihead(2, 2), ValueError, r"padding\(\[1\]\).*say num_heads"),
        (
            lambda: mask.allowed(torch.ones(3, 1, 1).bool()).to_multihead(2, 2),
            ValueError,
            r"<bool \(3, 1, 1\)>.*say batch",
        ),
        (
            lambda: mask.padding([1, 2]).to_multihead(2, 2, batch_size=3, num_heads=1),
            ValueError,
            r"padding\(\[1, 2\]\) has 2 batch rows, but there are 3",
        ),
        (
            lambda: mask.allowed(torch.ones(3, 1, 1).bool()).to_multihead(2, 2, batch_size=1, num_heads=2),
            ValueError,
            r"has 3 heads, but there are 2",
        ),
        (
            lambda: mask.padding([1, 2]).to_flex(2, 2, batch_size=3, device="cpu"),
            ValueError,
            r"padding\(\[1, 2\]\) has 2 batch rows, but there are 3",
        ),
        (
            lambda: mask.causal().to_flex(0, 2, device="cpu"),
            ValueError,
            r"causal\(\)\.to_flex\(0, 2\): .*at least one query",
        ),
        (lambda: mask.padding([5]).to_flex(4, 4, device="cpu"), ValueError, r"padding\(\[5\]\) is for 5 keys"),
    ],
)
def test_what_cannot_be_converted_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


# BlockMasks in particular.


def test_a_block_mask_is_for_its_own_sizes():
    m = mask.from_flex(mask.causal().to_flex(5, 6, device="cpu"))
    with pytest.raises(ValueError, match=r"from_flex\(<BlockMask \(1, 1, 5, 6\)>\) does not fit 6 queries and 6 keys"):
        m.dense(6, 6)
    with pytest.raises(ValueError, match=r"the left is for 6 keys, the right for 3"):
        m & mask.documents([0, 0, 1])
    with pytest.raises(ValueError, match=r"is for 2 batch rows, the right for 3"):
        mask.from_flex(mask.padding([1, 2]).to_flex(2, 2, device="cpu")) & mask.padding([1, 2, 2])


def test_a_block_mask_that_speaks_of_rows_and_heads():
    def stripes(b, h, i, j):
        return (i + j) % (1 + b + 2 * h) == 0

    # As a lambda, because the test run wraps functions and FlexAttention counts their arguments.
    block_mask = create_block_mask(lambda b, h, i, j: stripes(b, h, i, j), 2, 3, 5, 7, "cpu", BLOCK_SIZE=4)
    m = mask.from_flex(block_mask)
    assert m.batch_heads(5, 7) == (2, 3)
    expected = [
        [[[(i + j) % (1 + b + 2 * h) == 0 for j in range(7)] for i in range(5)] for h in range(3)] for b in range(2)
    ]
    assert m.dense(5, 7).tolist() == expected
    part = m.evaluate(Tile(5, 7, (1, 4), (2, 7)))
    assert part.tolist() == [[[row[2:7] for row in head[1:4]] for head in text] for text in expected]
    assert m.evaluate(Tile(5, 7, (2, 2), (0, 7))).shape == (2, 3, 0, 7)
    assert m[1, 2, 3, 2].item() is False
    assert m[1, 2, 4, 2].item() is True


def test_blocks_that_a_mask_mod_alone_does_not_know():
    """Blocks can be listed by hand: what is full needs no mask_mod, what is listed has one, the rest is skipped."""
    number = torch.tensor([[[1, 0]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0, 0], [0, 0, 0]]]], dtype=torch.int32)
    full_number = torch.tensor([[[0, 1]]], dtype=torch.int32)
    full_indices = torch.tensor([[[[0, 0, 0], [2, 1, 0]]]], dtype=torch.int32)
    block_mask = BlockMask.from_kv_blocks(
        number,
        indices,
        full_number,
        full_indices,
        BLOCK_SIZE=2,
        mask_mod=lambda b, h, i, j: j > i + 1,
        seq_lengths=(4, 5),
    )
    expected = [
        [False, False, True, True, False],
        [False, False, False, True, False],
        [False, False, False, False, True],
        [False, False, False, False, True],
    ]
    assert mask.from_flex(block_mask).dense(4, 5)[0, 0].tolist() == expected


def test_equal_block_masks():
    block_mask = mask.causal().to_flex(4, 4, device="cpu")
    assert mask.from_flex(block_mask) == mask.from_flex(block_mask)
    assert mask.from_flex(block_mask) != mask.from_flex(mask.window(2).to_flex(4, 4, device="cpu"))
