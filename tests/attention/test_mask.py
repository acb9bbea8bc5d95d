"""Masks against their definition, written out as loops over queries and keys."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from grids import some_examples
from masks import EVERY_KIND, KEYS, KINDS, KINDS_WITH_FULL_REPR, QUERIES, MaskCase, build, cases
from regard import mask
from regard.attention.mask.geometry import Tile, TileGrid

# Who may attend.


@pytest.mark.parametrize("kinds", [KINDS, *((kind,) for kind in KINDS)], ids=["any", *KINDS])
@some_examples(0.5)
@given(st.data())
def test_any_mask_is_its_definition__E_02__pytorch_103082__transformers_39408__vllm_3385(kinds, data):
    case = data.draw(cases(kinds=kinds, depth=4 if kinds == KINDS else 0))
    assert torch.equal(case.expand(build(case.spec).dense(case.queries, case.keys)), case.definition())


@given(cases())
def test_any_part_of_any_mask(case: MaskCase):
    m, expected = build(case.spec), case.definition()
    bounds = m.bounds(TileGrid(case.queries, case.keys, 3, 2))
    any_allowed, all_allowed = case.expand(bounds.any_allowed), case.expand(bounds.all_allowed)

    def of_tile(bound, row, column):
        return bound[..., row if bound.shape[-2] > 1 else 0, column if bound.shape[-1] > 1 else 0]

    for row, column in itertools.product(range(-(-case.queries // 3)), range(-(-case.keys // 2))):
        rows, columns = (3 * row, min(3 * row + 3, case.queries)), (2 * column, min(2 * column + 2, case.keys))
        tile = expected[..., slice(*rows), slice(*columns)]
        assert torch.equal(m.evaluate(Tile(case.queries, case.keys, rows, columns)).expand(tile.shape), tile)
        # What is known of a tile without looking inside is never wrong.
        assert not (tile.flatten(-2).any(-1) & ~of_tile(any_allowed, row, column)).any()
        assert not (of_tile(all_allowed, row, column) & ~tile.flatten(-2).all(-1)).any()


@given(cases(min_tokens=1))
def test_any_mask_as_a_predicate(case: MaskCase):
    sizes = case.batch, case.heads, case.queries, case.keys
    predicate, expected = build(case.spec).predicate(case.queries, case.keys), case.definition()
    assert torch.equal(create_mask(predicate, *sizes, "cpu"), expected)
    # Also called for many pairs at once: along four axes, and for pairs in no order.
    axes = [torch.arange(n).reshape(-1, *[1] * (3 - axis)) for axis, n in enumerate(sizes)]
    assert torch.equal(predicate(*axes).expand(sizes), expected)
    pairs = [torch.randint(n, (9,)) for n in sizes]
    assert torch.equal(predicate(*pairs).expand(9), expected[tuple(pairs)])


STEPS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("fn", "definition"),
    [
        (lambda i, j: i > 3, lambda b, h, i, j: i > 3),
        (lambda i, j: j == 2, lambda b, h, i, j: j == 2),
        (lambda i, j: (j == 2)[0], lambda b, h, i, j: j == 2),
        (lambda i, j: torch.tensor(True), lambda b, h, i, j: True),
        (lambda i, j: (i - j) % STEPS[0, :, None, None] == 0, lambda b, h, i, j: (i - j) % [1, 2, 3][h] == 0),
        (lambda i, j: j < STEPS[:, :1, None, None], lambda b, h, i, j: j < 1 + 3 * b),
    ],
    ids=["query", "key", "a row of keys", "one number", "heads", "batch"],
)
@pytest.mark.parametrize("offset", [None, 0, 2])
def test_a_function_may_answer_for_some_axes_only(fn, definition, offset):
    first = 1 if offset is None else offset
    answers = [definition(b, h, i + first, j) for b, h, i, j in itertools.product(*map(range, (2, 3, 5, 6)))]
    expected = torch.tensor(answers).reshape(2, 3, 5, 6)
    m = mask.where(fn, offset=offset)
    assert torch.equal(m.dense(5, 6).expand(2, 3, 5, 6), expected)
    # FlexAttention calls it for one pair at a time.
    assert torch.equal(create_mask(m.predicate(5, 6), 2, 3, 5, 6, "cpu"), expected)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("convert", [tuple, torch.tensor, lambda n: torch.tensor(n, dtype=torch.uint8), np.array])
def test_a_list_a_tuple_a_tensor_and_an_array_are_one(convert):
    for values in ([2, 0, 3], [3]):
        for kind in (mask.padding, mask.documents, mask.prefix):
            assert kind(convert(values)) == kind(values)
    assert mask.documents(convert([[0, 1], [1, 1]])) == mask.documents([[0, 1], [1, 1]])


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 1, 3, 4), (5, 2, 1, 4), (2, 5, 2, 3, 1)])
def test_a_tensor_may_have_any_axes_before_queries_and_keys(shape):
    t = torch.rand(shape) < 0.5
    assert torch.equal(mask.allowed(t).dense(3, 4), t.expand(*shape[:-2], 3, 4))
    assert torch.equal(mask.blocked(t).dense(3, 4), ~t.expand(*shape[:-2], 3, 4))


@pytest.mark.parametrize(
    "m",
    [
        mask.causal(),
        mask.window(2, 2),
        mask.documents([[0, 0, 0, 0, 1, 1, 1, 1], [3, 3, 3, 3, 3, 3, 3, 3]]),
        mask.documents([0, 0, 1, 1, 1, 1, 2, 2], [[1, 1, 1, 1, 4, 4, 4, 4], [2, 2, 0, 0, 0, 0, 1, 1]]),
        mask.prefix(2),
        mask.first(3),
        mask.causal() & mask.padding([1, 8]),
        ~(mask.causal() | mask.prefix([2, 4])),
    ],
    ids=repr,
)
def test_bounds_are_exact_where_positions_and_rising_ids_decide(m):
    """A kernel skips the tiles that nobody sees."""
    bounds = m.bounds(TileGrid(8, 8, 2, 2))
    tiles = m.dense(8, 8).unflatten(-1, (4, 2)).unflatten(-3, (4, 2)).movedim(-2, -3).flatten(-2)
    assert torch.equal(bounds.any_allowed.expand(tiles.shape[:-1]), tiles.any(-1))
    assert torch.equal(bounds.all_allowed.expand(tiles.shape[:-1]), tiles.all(-1))


def test_bounds_of_queries_before_the_first_key():
    bounds = mask.documents([[0] * 4, [1, 1, 2, 2]]).bounds(TileGrid(8, 4, 2, 2))
    assert not bounds.all_allowed[..., :2, :].any()
    assert bounds.all_allowed[..., 2:, :].any()


@pytest.mark.parametrize("m", [m for m in EVERY_KIND if "where" not in repr(m)], ids=repr)
def test_dense_goes_to_the_device_asked_for(m):
    assert [m.dense(QUERIES, KEYS, device=device).device.type for device in (None, "meta")] == ["cpu", "meta"]


def test_dense_stays_where_the_tensors_are():
    on_meta = mask.allowed(torch.ones(2, 2, device="meta").bool())
    blocks = mask.from_flex(mask.causal().to_flex(2, 2, device="cpu").to("meta"))
    for m in (on_meta, on_meta & mask.causal(), mask.causal() | on_meta, ~(mask.causal() & on_meta), blocks):
        assert m.dense(2, 2).device.type == "meta"


def test_padding_takes_no_memory_that_grows_with_the_queries():
    assert mask.padding([3, 5]).broadcastable(10**6, 5).shape == (2, 1, 1, 5)
    assert mask.allowed(torch.ones(1, 5).bool()).broadcastable(10**6, 5).shape == (1, 5)


REPRS = """
    causal(); causal(offset=0); causal(offset=1)
    padding([3, 5]); padding([5, 3]); padding([3])
    window(2); window(65, 64); window(2, offset=1)
    documents([0, 1]); documents([[0, 1]]); documents([0, 1, 1])
    documents([0, 1], keys=[0, 1]); documents([0, 1], keys=[1, 0]); documents([0, 1], keys=[[0, 1]])
    prefix(3); prefix([3]); prefix([3, 4]); first(3); first(0)
    where(max); where(min); where(max, offset=0)
    causal() & padding([3]) & causal(offset=2)
    causal() & (window(3) & prefix(2)); (causal() | window(3)) & prefix(2); causal() | (window(3) & prefix(2))
    padding([3]) & causal(); causal() & padding([3]); causal() | padding([3])
    ~causal(); ~causal() & padding([3]); ~(causal() & padding([3]))
"""
REPRS = [text.strip() for line in REPRS.strip().splitlines() for text in line.split(";")]


def distinct():
    """Masks and other things no two of which are equal, made anew at every call."""
    eye = torch.eye(3).bool()
    tensors = mask.allowed(eye), mask.allowed(~eye), mask.allowed(eye[None]), mask.blocked(eye)
    return [*(eval(text, vars(mask)) for text in REPRS), *tensors, "causal()", None]


def test_equal_by_value():
    for (i, a), (j, b) in itertools.product(enumerate(distinct()), enumerate(distinct())):
        assert (a == b) is (i == j), (a, b)
        assert (a != b) is (i != j), (a, b)


def test_repr_is_how_it_was_made():
    assert [repr(m) for m in distinct()[: len(REPRS)]] == REPRS


def test_the_inverse_of_an_inverse_is_the_mask_itself():
    assert ~~mask.causal() == mask.causal()
    assert repr(mask.blocked(torch.ones(4, 1, 1, 3).bool())) == "blocked(<bool (4, 1, 1, 3)>)"
    assert repr(mask.documents(torch.zeros(3, 4096).long())) == "documents(<torch.int64 (3, 4096)>)"
    # Short enough to read: eight numbers in rows, sixteen in one.
    assert repr(mask.documents([[1, 2, 3]] * 3)) == "documents(<torch.int64 (3, 3)>)"
    assert repr(mask.documents([[1, 2, 3, 4]] * 2)) == "documents([[1, 2, 3, 4], [1, 2, 3, 4]])"
    assert repr(mask.padding([1] * 17)) == "padding(<torch.int64 (17,)>)"
    assert repr(mask.where(lambda i, j: i == j, offset=0)) == "where(<lambda>, offset=0)"


@given(cases(kinds=KINDS_WITH_FULL_REPR, max_tokens=4))
def test_repr_reads_back_as_an_equal_mask(case: MaskCase):
    m = build(case.spec)
    assert eval(repr(m), vars(mask)) == m


FAR = 2**70
SQUARE = mask.allowed(torch.ones(3, 4).bool())


def tensor(*shape):
    return mask.allowed(torch.ones(shape).bool())


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *((lambda n=n: mask.causal(offset=n), TypeError, r"causal\(offset=.*\) wants a whole number")
          for n in (1.0, True, "1", torch.tensor(1), np.True_)),
        (lambda: mask.causal(FAR), ValueError, rf"causal\(offset={FAR}\) is beyond any position"),
        (lambda: mask.window(0), ValueError, r"window\(0, 0\): before counts the token itself"),
        (lambda: mask.window(3, -1), ValueError, r"window\(3, -1\): after cannot be negative"),
        (lambda: mask.window(True), TypeError, r"window\(before=True\) wants a whole number"),
        (lambda: mask.window(FAR), ValueError, rf"window\(before={FAR}\) is beyond any position"),
        (lambda: mask.window(3, offset=-FAR), ValueError, rf"window\(offset=-{FAR}\) is beyond any position"),
        (lambda: mask.padding([2, -1]), ValueError, r"padding\(\[2, -1\]\): a length cannot be negative"),
        (lambda: mask.padding(torch.tensor([[1, 1, 0]])), ValueError, r"one length per batch row.*\(1, 3\).*mask\.al"),
        (lambda: mask.padding(torch.tensor(3)), ValueError, r"one length per batch row.*\(\)"),
        (lambda: mask.padding([2.7]), TypeError, r"float32.*mask\.allowed"),
        (lambda: mask.padding([True, False]), TypeError, r"bool.*mask\.allowed"),
        (lambda: mask.padding("ab"), TypeError, r"padding\(lengths\) wants a list or a tensor.*got 'ab'"),
        (lambda: mask.padding([[1], [1, 2]]), TypeError, r"rows equally long; got \[\[1\], \[1, 2\]\]"),
        (lambda: mask.documents([0.5]), TypeError, r"documents\(ids\) wants whole numbers; got a torch\.float32"),
        (lambda: mask.documents(1), ValueError, r"one id per token.*got shape \(\)"),
        (lambda: mask.documents([0], [0.5]), TypeError, r"documents\(keys\) wants whole numbers; got a torch\.float32"),
        (lambda: mask.documents([[0]], [[0], [1]]), ValueError, r"the ids have 1 batch rows, the keys have 2"),
        (lambda: mask.prefix(-1), ValueError, r"prefix\(-1\): a length cannot be negative"),
        (lambda: mask.prefix([2, -1]), ValueError, r"prefix\(\[2, -1\]\): a length cannot be negative"),
        (lambda: mask.prefix(True), TypeError, r"prefix\(n\) wants whole numbers; got a torch\.bool"),
        (lambda: mask.prefix([[1]]), ValueError, r"one per batch row; got shape \(1, 1\)"),
        (lambda: mask.first(-1), ValueError, r"first\(-1\): a number of keys cannot be negative"),
        (lambda: mask.first([2]), TypeError, r"first\(n=\[2\]\) wants a whole number"),
        (lambda: mask.where(3), TypeError, r"where\(fn\) wants a function of query and key positions; got int"),
        (lambda: mask.where(max, offset=1.5), TypeError, r"where\(offset=1\.5\) wants a whole number"),
        (lambda: torch.ones(3, 3).bool() & mask.causal(), TypeError, r"mask\.allowed.*mask\.blocked"),
        (lambda: mask.causal() | torch.ones(3), TypeError, r"causal\(\) \| Tensor: both sides must be masks.*mask\.al"),
        (lambda: torch.ones(3) | mask.causal(), TypeError, r"Tensor \| causal\(\): both sides must be masks.*mask\.al"),
        (lambda: hash(mask.causal()), TypeError, "unhashable"),
        (lambda: bool(mask.causal()), TypeError, r"causal\(\) is neither true nor false: combine masks with & \| ~"),
        # pytorch#21518
        *((lambda kind=kind, t=t: kind(t), TypeError, rf"mask\.{kind.__name__}\(t\) wants a boolean tensor")
          for kind in (mask.allowed, mask.blocked) for t in (torch.ones(3, 3), torch.ones(3, 3).long(), [[True]])),
        (lambda: mask.blocked(torch.tensor([True])), ValueError, r"wants the shape \(\.\.\., queries, keys\)"),
        (lambda: mask.padding([2, 4]) & mask.padding([3]), ValueError, r"\]\) & .*: the left is for 2 batch rows, .*1"),
        (lambda: mask.documents([0, 1]) | SQUARE, ValueError, r"\) \| allowed.*for 2 keys, the right for 4"),
        (lambda: SQUARE & tensor(5, 1), ValueError, r"the left is for 3 queries, the right for 5"),
        (lambda: SQUARE & mask.documents([0, 1], [0] * 4), ValueError, r"left is for 3 queries, the right for 2"),
        (lambda: (SQUARE & mask.causal()) | ~mask.prefix(3) | ~mask.documents([0]), ValueError, "4 keys, .* for 1"),
        (lambda: (tensor(2, 4, 4) & tensor(3, 4, 4)).dense(4, 4), ValueError, r"\(2, 4, 4\) and \(3, 4, 4\) do not"),
        (lambda: mask.causal().dense(-1, 3), ValueError, r"causal\(\): there cannot be -1 queries and 3 keys"),
        (lambda: mask.causal().show(3, -1), ValueError, r"causal\(\): there cannot be 3 queries and -1 keys"),
    ],
)  # fmt: skip
def test_what_makes_no_mask_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_whole_numbers_of_any_kind_and_width():
    assert mask.window(np.int64(3), np.uint8(1), offset=np.int32(2)) == mask.window(3, 1, offset=2)
    assert mask.prefix(np.int64(2)) == mask.prefix(2)
    assert mask.padding([np.int64(1), 2]) == mask.padding([1, 2])
    assert mask.padding(torch.tensor([200, 255], dtype=torch.uint8)).dense(1, 300).sum() == 455
    assert mask.window(2**59, 2**59).dense(3, 3).all()


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda i, j: i - j, TypeError, r"where\(<lambda>\) must return a boolean tensor.*it returned torch\.int64"),
        (lambda i, j: True, TypeError, r"must return a boolean tensor.*it returned bool"),
        (lambda i, j: (i - j)[:2] == 0, ValueError, r"returned the shape \(2, 3\) for 4 queries and 3 keys"),
        (lambda i, j: (i == i).T, ValueError, r"returned the shape \(1, 4\) for 4 queries and 3 keys"),
    ],
)
def test_where_must_return_a_mask(fn, error, message):
    for call in (mask.where(fn).dense, (~mask.where(fn)).predicate):
        with pytest.raises(error, match=message):
            call(4, 3)


@pytest.mark.parametrize(
    ("m", "message"),
    [
        *((tensor(*sizes), r"<bool .*>.* does not fit 4 queries and 4 keys") for sizes in ((3, 4), (4, 3))),
        (mask.documents([0, 0, 1]), r"documents\(\[0, 0, 1\]\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 0, 1, 1], [0, 1, 1]), r"documents\(.*\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 1, 1], [0, 0, 1, 1]), r"documents\(.*\) is for 3 queries, but there are 4"),
        (mask.prefix(5), r"prefix\(5\) is for 5 keys, but there are 4"),
        (mask.padding([2, 5]), r"padding\(\[2, 5\]\) is for 5 keys, but there are 4"),
        (mask.causal() & ~mask.padding([5]), r"padding\(\[5\]\) is for 5 keys, but there are 4"),
    ],
)
def test_a_mask_for_other_sizes_is_refused_at_the_call(m, message):
    for call in (m.dense, m.broadcastable, m.show, m.batch_heads, m.to_sdpa):
        with pytest.raises(ValueError, match=message):
            call(4, 4)


def test_the_batch_rows_and_heads_of_a_mask():
    assert mask.causal().batch_heads(3, 3) == (None, None)
    assert mask.padding([1]).batch_heads(3, 3) == (1, None)
    assert mask.padding([]).batch_heads(3, 3) == mask.prefix([]).batch_heads(3, 3) == (0, None)
    assert (mask.documents([[0, 1]] * 2) | mask.allowed(torch.ones(3, 1, 1).bool())).batch_heads(2, 2) == (2, 3)
    assert mask.where(lambda i, j: (i < j).expand(4, 2, -1, -1)).batch_heads(0, 5) == (4, 2)
    with pytest.raises(ValueError, match=r"has the axes \(2, 1, 1\) before its queries, not \(batch, heads\)"):
        mask.allowed(torch.ones(2, 1, 1, 3, 3).bool()).batch_heads(3, 3)


def test_indexing_by_query_and_key():
    m = mask.causal()
    assert [bool(m[at]) for at in ((3, 3), (3, 4), (np.int64(4), 0))] == [True, False, True]
    assert m[:3, :2].tolist() == [[True, False], [True, True], [True, True]]
    assert m[1:3, 2].tolist() == [False, True]
    assert m[[0, 2], [1, 1]].tolist() == [False, True]
    assert m[torch.tensor([[0], [2]]), torch.tensor([0, 1])].tolist() == [[True, False], [True, True]]
    assert m[..., 0, 1].tolist() is False
    assert m[:0, :0].shape == (0, 0)


def test_indexing_at_the_size_a_mask_is_made_for():
    ids = mask.documents([0, 0, 1])
    assert ids[-1, -1]
    assert ids[:, 0].tolist() == [True, True, False]
    assert mask.allowed(torch.tensor([[True], [False]]))[:, :].tolist() == [[True] * 2, [False] * 2]


def test_indexing_is_by_query_and_key_whatever_else_a_mask_has():
    m = mask.padding([1, 3])
    assert [m[row, 0, 2, 2].tolist() for row in (0, 1)] == [False, True]
    assert m[2, 2].tolist() == [[False], [True]]
    assert (~(m & mask.causal()))[0, 1].tolist() == [[True], [True]]  # as many keys as the longest needs
    assert mask.prefix(3)[0, 1]
    for m in (mask.prefix(3) | mask.causal(), mask.causal() | mask.prefix(3), mask.prefix(2) | mask.prefix(3)):
        assert m[0, 1]


FROM_AN_END = r"causal\(\) is not made for a number of tokens: index it from the front"


@pytest.mark.parametrize(
    ("m", "index", "message"),
    [
        *((mask.causal(), at, FROM_AN_END) for at in ((-1, 0), (0, slice(None)), (slice(-2, 3), 0), (..., 0))),
        *((mask.causal(), at, FROM_AN_END) for at in ((0, None), (True, 0), (1.5, 0))),
        *((mask.causal(), at, r"index a mask by query and key, m\[i, j\]") for at in (0, slice(3), (1,), ...)),
        (mask.causal(), ("a", 0), r"causal\(\) is indexed by whole numbers and slices, not by 'a'"),
        (mask.documents([]), (0, 0), r"documents\(\[\]\) of 0 queries and 0 keys, at \(0, 0\)"),
        (mask.documents([0, 1]), (2, 0), r"documents\(\[0, 1\]\) of 2 queries and 2 keys, at \(2, 0\)"),
        (mask.padding([1]), (1, 0, 0, 0), r"padding\(\[1\]\) of 1 queries and 1 keys, at \(1, 0, 0, 0\)"),
    ],
)
def test_indexing_where_nothing_is(m, index, message):
    with pytest.raises(IndexError, match=message):
        m[index]
