"""Masks against their definition, written out as loops over queries and keys."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from grids import some_examples
from masks import KINDS, KINDS_WITH_FULL_REPR, MaskCase, build, cases
from regard import mask
from regard.attention.mask.geometry import Tile, TileGrid

# Who may attend.


@pytest.mark.parametrize("kinds", [KINDS, *((kind,) for kind in KINDS)], ids=["any", *KINDS])
@some_examples(0.5)
@given(st.data())
def test_any_mask_is_its_definition(kinds, data):
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


def test_no_batch_rows():
    for m in (mask.padding([]), mask.padding(torch.zeros(0, dtype=torch.long)), mask.prefix([])):
        assert m.dense(2, 3).shape == (0, 1, 2, 3)


def test_causal_includes_the_position_itself__E_02():
    assert mask.causal().dense(3, 3).diagonal().all()


def test_one_cached_query_sees_every_key__pytorch_103082():
    assert mask.causal().dense(1, 6).tolist() == [[True] * 6]


@pytest.mark.parametrize(("widths", "attended"), [((256,), range(445, 701)), ((65, 64), range(636, 765))])
def test_window_counts_the_token_itself__transformers_39408__xformers_923__vllm_3385(widths, attended):
    assert mask.window(*widths).dense(1000, 1000)[700].nonzero()[:, 0].tolist() == list(attended)


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 1, 3, 4), (5, 2, 1, 4), (2, 5, 2, 3, 1)])
def test_a_tensor_may_have_any_axes_before_queries_and_keys(shape):
    t = torch.rand(shape) < 0.5
    assert torch.equal(mask.allowed(t).dense(3, 4), t.expand(*shape[:-2], 3, 4))
    assert torch.equal(mask.blocked(t).dense(3, 4), ~t.expand(*shape[:-2], 3, 4))


@pytest.mark.parametrize(
    ("m", "exact"),
    [
        (mask.causal(), True),
        (mask.window(2, 2), True),
        (mask.padding([1, 8]), True),
        (mask.documents([0, 0, 0, 0, 1, 1, 1, 1]), True),
        (mask.documents([[0, 0, 0, 0, 1, 1, 1, 1], [3, 3, 3, 3, 3, 3, 3, 3]]), True),
        (mask.documents([0, 0, 1, 1, 1, 1, 2, 2], [[1, 1, 1, 1, 4, 4, 4, 4], [2, 2, 0, 0, 0, 0, 1, 1]]), True),
        (mask.prefix(2), True),
        (mask.causal() & mask.padding([1, 8]), True),
        (~(mask.causal() | mask.prefix([2, 4])), True),
        (mask.where(lambda i, j: i < j), False),
    ],
    ids=repr,
)
def test_bounds_are_exact_where_positions_and_rising_ids_decide(m, exact):
    """A kernel skips the tiles that nobody sees."""
    bounds = m.bounds(TileGrid(8, 8, 2, 2))
    tiles = m.dense(8, 8).unflatten(-1, (4, 2)).unflatten(-3, (4, 2)).movedim(-2, -3).flatten(-2)
    same = [
        torch.equal(bound.expand(tiles.shape[:-1]), expected)
        for bound, expected in ((bounds.any_allowed, tiles.any(-1)), (bounds.all_allowed, tiles.all(-1)))
    ]
    assert all(same) is exact


@pytest.mark.parametrize("ids", [[0] * 4, [[0] * 4, [1, 1, 2, 2]]])
def test_bounds_of_queries_before_the_first_key(ids):
    bounds = mask.documents(ids).bounds(TileGrid(8, 4, 2, 2))
    assert not bounds.all_allowed[..., :2, :].any()
    assert bounds.all_allowed[..., 2:, :].any()


ONE_OF_EACH_KIND = [
    mask.causal(),
    mask.window(1),
    mask.padding([1]),
    mask.documents([0, 1]),
    mask.documents([0, 1], [1, 0]),
    mask.prefix(1),
    mask.allowed(torch.ones(2, 2).bool()),
    mask.blocked(torch.ones(2, 2).bool()),
    mask.causal() & mask.padding([1]),
    mask.causal() | ~mask.documents([0, 1]),
]


@pytest.mark.parametrize("m", ONE_OF_EACH_KIND, ids=repr)
def test_dense_goes_to_the_device_asked_for(m):
    assert m.dense(2, 2).device.type == "cpu"
    assert m.dense(2, 2, device="meta").device.type == "meta"


def test_dense_stays_where_the_tensors_are():
    on_meta = mask.allowed(torch.ones(2, 2, device="meta").bool())
    for m in (on_meta, on_meta & mask.causal(), mask.causal() | on_meta, ~(mask.causal() & on_meta)):
        assert m.dense(2, 2).device.type == "meta"


def test_padding_takes_no_memory_that_grows_with_the_queries():
    assert mask.padding([3, 5]).broadcastable(10**6, 5).shape == (2, 1, 1, 5)
    assert mask.allowed(torch.ones(1, 5).bool()).broadcastable(10**6, 5).shape == (1, 5)


# Masks as values.

REPRS = """
    causal()
    causal(offset=0)
    causal(offset=1)
    padding([3, 5])
    padding([5, 3])
    padding([3])
    window(2)
    window(65, 64)
    window(2, offset=1)
    documents([0, 1])
    documents([[0, 1]])
    documents([0, 1, 1])
    documents([0, 1], keys=[0, 1])
    documents([0, 1], keys=[1, 0])
    documents([0, 1], keys=[[0, 1]])
    prefix(3)
    prefix([3])
    prefix([3, 4])
    where(max)
    where(min)
    where(max, offset=0)
    causal() & padding([3]) & causal(offset=2)
    causal() & (window(3) & prefix(2))
    (causal() | window(3)) & prefix(2)
    causal() | (window(3) & prefix(2))
    padding([3]) & causal()
    causal() & padding([3])
    causal() | padding([3])
    ~causal() & padding([3])
    ~(causal() & padding([3]))
    ~causal()
"""
REPRS = [line.strip() for line in REPRS.strip().splitlines()]


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
    assert repr(mask.allowed(torch.ones(2, 3).bool())) == "allowed(<bool (2, 3)>)"
    assert repr(mask.blocked(torch.ones(4, 1, 1, 3).bool())) == "blocked(<bool (4, 1, 1, 3)>)"
    assert repr(mask.documents(torch.zeros(3, 4096).long())) == "documents(<torch.int64 (3, 4096)>)"
    assert repr(mask.where(lambda i, j: i == j, offset=0)) == "where(<lambda>, offset=0)"


@given(cases(kinds=KINDS_WITH_FULL_REPR, max_tokens=4))
def test_repr_reads_back_as_an_equal_mask(case: MaskCase):
    m = build(case.spec)
    assert eval(repr(m), vars(mask)) == m


def test_not_twice_is_the_mask_itself():
    m = mask.causal() & mask.padding([3])
    assert ~~m is m


# What is refused.

FAR = 2**70


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *((lambda n=n: mask.causal(offset=n), TypeError, r"causal\(offset=.*\) wants a whole number")
          for n in (1.5, 1.0, True, "1", torch.tensor(1), np.True_)),
        (lambda: mask.causal(FAR), ValueError, rf"causal\(offset={FAR}\) is beyond any position"),
        (lambda: mask.window(0), ValueError, r"window\(0, 0\): before counts the token itself"),
        (lambda: mask.window(-1), ValueError, r"window\(-1, 0\): before counts the token itself"),
        (lambda: mask.window(3, -1), ValueError, r"window\(3, -1\): after cannot be negative"),
        (lambda: mask.window(True), TypeError, r"window\(before=True\) wants a whole number"),
        (lambda: mask.window(2.0), TypeError, r"window\(before=2\.0\) wants a whole number"),
        (lambda: mask.window(3, None), TypeError, r"window\(after=None\) wants a whole number"),
        (lambda: mask.window(FAR), ValueError, rf"window\(before={FAR}\) is beyond any position"),
        (lambda: mask.window(3, offset=-FAR), ValueError, rf"window\(offset=-{FAR}\) is beyond any position"),
        (lambda: mask.padding([2, -1]), ValueError, r"padding\(\[2, -1\]\): a length cannot be negative"),
        (lambda: mask.padding(torch.tensor([[1, 1, 0]])), ValueError, r"one length per batch row.*\(1, 3\).*mask\.al"),
        (lambda: mask.padding(torch.tensor(3)), ValueError, r"one length per batch row.*\(\)"),
        (lambda: mask.padding(torch.tensor([2.0])), TypeError, r"float32.*mask\.allowed"),
        (lambda: mask.padding([2.7]), TypeError, r"float32.*mask\.allowed"),
        (lambda: mask.padding(torch.tensor([True, False])), TypeError, r"bool.*mask\.allowed"),
        (lambda: mask.padding([True, False]), TypeError, r"bool.*mask\.allowed"),
        (lambda: mask.padding(3), ValueError, r"one length per batch row.*got shape \(\)"),
        (lambda: mask.padding(None), TypeError, r"padding\(lengths\) wants a list or a tensor.*got None"),
        (lambda: mask.padding("ab"), TypeError, r"padding\(lengths\) wants a list or a tensor.*got 'ab'"),
        (lambda: mask.padding([FAR]), TypeError, rf"padding\(lengths\) wants a list or a tensor.*\[{FAR}\]"),
        (lambda: mask.padding([[1], [1, 2]]), TypeError, r"rows equally long; got \[\[1\], \[1, 2\]\]"),
        (lambda: mask.padding(np.array([1.0])), TypeError, r"float64.*mask\.allowed"),
        (lambda: mask.documents([0.5]), TypeError, r"documents\(ids\) wants whole numbers; got a torch\.float32"),
        (lambda: mask.documents(1), ValueError, r"one id per token.*got shape \(\)"),
        (lambda: mask.documents([[[1]]]), ValueError, r"one id per token.*got shape \(1, 1, 1\)"),
        (lambda: mask.documents([[0, 1], [0]]), TypeError, r"rows equally long; got \[\[0, 1\], \[0\]\]"),
        (lambda: mask.documents([0], [0.5]), TypeError, r"documents\(keys\) wants whole numbers; got a torch\.float32"),
        (lambda: mask.documents([0], 1), ValueError, r"documents\(keys\) wants one id per key.*got shape \(\)"),
        (lambda: mask.documents([[0]], [[0], [1]]), ValueError, r"the ids have 1 batch rows, the keys have 2"),
        (lambda: mask.prefix(-1), ValueError, r"prefix\(-1\): a length cannot be negative"),
        (lambda: mask.prefix([2, -1]), ValueError, r"prefix\(\[2, -1\]\): a length cannot be negative"),
        (lambda: mask.prefix(True), TypeError, r"prefix\(n\) wants whole numbers; got a torch\.bool"),
        (lambda: mask.prefix(2.0), TypeError, r"prefix\(n\) wants whole numbers; got a torch\.float32"),
        (lambda: mask.prefix([[1]]), ValueError, r"one per batch row; got shape \(1, 1\)"),
        (lambda: mask.prefix(torch.tensor(3)), ValueError, r"one per batch row; got shape \(\)"),
        (lambda: mask.where(3), TypeError, r"where\(fn\) wants a function of query and key positions; got int"),
        (lambda: mask.where(max, offset=1.5), TypeError, r"where\(offset=1\.5\) wants a whole number"),
        (lambda: mask.causal() & torch.ones(3, 3), TypeError, r"mask\.allowed.*mask\.blocked"),
        (lambda: torch.ones(3, 3).bool() & mask.causal(), TypeError, r"mask\.allowed.*mask\.blocked"),
        (lambda: mask.causal() | torch.ones(3), TypeError, r"causal\(\) \| Tensor: both sides must be masks.*mask\.al"),
        (lambda: torch.ones(3) | mask.causal(), TypeError, r"Tensor \| causal\(\): both sides must be masks.*mask\.al"),
        (lambda: 1 & mask.causal(), TypeError, r"int & causal\(\): both sides must be masks"),
        (lambda: hash(mask.causal()), TypeError, "unhashable"),
        *((lambda f=f: f(mask.causal()), TypeError, r"causal\(\) is neither true nor false: combine masks with & \| ~")
          for f in (bool, lambda m: m and m, lambda m: m or m, lambda m: not m)),
    ],
)  # fmt: skip
def test_an_argument_that_makes_no_mask_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("kind", [mask.allowed, mask.blocked])
def test_only_boolean_tensors_of_queries_and_keys_are_masks__pytorch_21518(kind):
    for t in (torch.ones(3, 3), torch.ones(3, 3, dtype=torch.int64), torch.zeros(3, 3).half(), [[True]], None):
        with pytest.raises(TypeError, match=rf"mask\.{kind.__name__}\(t\) wants a boolean tensor"):
            kind(t)
    for shape in ((), (3,)):
        with pytest.raises(ValueError, match=r"wants the shape \(\.\.\., queries, keys\)"):
            kind(torch.ones(shape).bool())
    for sizes in ((3, 5), (4, 4), (5, 3)):
        with pytest.raises(ValueError, match=r"<bool \(3, 4\)>.* does not fit {} queries and {} keys".format(*sizes)):
            kind(torch.ones(3, 4).bool()).dense(*sizes)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_numpy_speaks_of_whole_numbers_too():
    assert mask.causal(np.int32(2)) == mask.causal(2)
    assert mask.window(np.int64(3), np.uint8(1)) == mask.window(3, 1)
    assert mask.prefix(np.int64(2)) == mask.prefix(2)
    assert mask.padding([np.int64(1), 2]) == mask.padding([1, 2])


def test_narrow_integers_do_not_wrap_around():
    lengths = torch.tensor([200, 255], dtype=torch.uint8)
    assert torch.equal(mask.padding(lengths).dense(1, 300), mask.padding([200, 255]).dense(1, 300))
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
    with pytest.raises(error, match=message):
        mask.where(fn).dense(4, 3)
    with pytest.raises(error, match=message):
        (~mask.where(fn)).predicate(4, 3)


SQUARE = mask.allowed(torch.ones(3, 4).bool())


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (
            lambda: mask.padding([2, 4]) & mask.padding([3]),
            r"padding\(\[2, 4\]\) & padding\(\[3\]\): the left is for 2 batch rows, the right for 1",
        ),
        (lambda: mask.documents([0, 1]) | SQUARE, r"documents\(\[0, 1\]\) \| allowed.*for 2 keys, the right for 4"),
        (lambda: SQUARE & mask.blocked(torch.ones(5, 1).bool()), r"the left is for 3 queries, the right for 5"),
        (lambda: SQUARE & mask.documents([0, 1], [0, 1, 1, 1]), r"the left is for 3 queries, the right for 2"),
        (lambda: (SQUARE & mask.causal()) | ~mask.documents([0, 1]), r"the left is for 4 keys, the right for 2"),
        (
            lambda: (mask.allowed(torch.ones(2, 4, 4) > 0) & mask.allowed(torch.ones(3, 4, 4) > 0)).dense(4, 4),
            r"<bool \(2, 4, 4\)>.* \(2, 4, 4\) and \(3, 4, 4\) do not combine",
        ),
    ],
)
def test_masks_for_different_sizes_do_not_combine(join, message):
    with pytest.raises(ValueError, match=message):
        join()


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (mask.documents([0, 0, 1]), r"documents\(\[0, 0, 1\]\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 0, 1, 1], [0, 1, 1]), r"documents\(.*\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 1, 1], [0, 0, 1, 1]), r"documents\(.*\) is for 3 queries, but there are 4"),
        (mask.prefix(5), r"prefix\(5\) is for 5 keys, but there are 4"),
        (mask.prefix([1, 5]), r"prefix\(\[1, 5\]\) is for 5 keys, but there are 4"),
        (mask.padding([2, 5]), r"padding\(\[2, 5\]\) is for 5 keys, but there are 4"),
        (mask.causal() & ~mask.padding([5]), r"padding\(\[5\]\) is for 5 keys, but there are 4"),
        (mask.allowed(torch.ones(3, 3).bool()) | mask.causal(), r"<bool \(3, 3\)>.* does not fit 4 queries and 4 keys"),
    ],
)
def test_a_mask_for_other_sizes_is_refused_at_the_call(m, message):
    for call in (m.dense, m.broadcastable, m.show, m.batch_heads, m.to_sdpa):
        with pytest.raises(ValueError, match=message):
            call(4, 4)


def test_a_negative_number_of_tokens():
    with pytest.raises(ValueError, match=r"causal\(\): there cannot be -1 queries and 3 keys"):
        mask.causal().dense(-1, 3)


def test_the_batch_rows_and_heads_of_a_mask():
    assert mask.causal().batch_heads(3, 3) == (None, None)
    assert mask.padding([1]).batch_heads(3, 3) == (1, None)
    assert mask.padding([]).batch_heads(3, 3) == (0, None)
    assert (mask.documents([[0, 1]] * 2) | mask.allowed(torch.ones(3, 1, 1).bool())).batch_heads(2, 2) == (2, 3)
    assert mask.where(lambda i, j: (i < j).expand(4, 2, -1, -1)).batch_heads(0, 5) == (4, 2)
    with pytest.raises(ValueError, match=r"has the axes \(2, 1, 1\) before its queries, not \(batch, heads\)"):
        mask.allowed(torch.ones(2, 1, 1, 3, 3).bool()).batch_heads(3, 3)


# Indexing.


def test_indexing_by_query_and_key():
    m = mask.causal()
    assert m[3, 3]
    assert not m[3, 4]
    assert m[np.int64(4), 0]
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
    tall = mask.allowed(torch.tensor([[True], [False], [True]]))
    assert tall[:, :].tolist() == [[True] * 3, [False] * 3, [True] * 3]
    with pytest.raises(IndexError, match=r"documents\(\[\]\) of 0 queries and 0 keys, at \(0, 0\)"):
        mask.documents([])[0, 0]


def test_indexing_is_by_query_and_key_whatever_else_a_mask_has():
    m = mask.padding([1, 3])
    assert m[0, 0, 2, 2].tolist() is False
    assert m[1, 0, 2, 2].tolist() is True
    assert m[2, 2].tolist() == [[False], [True]]
    assert (~(m & mask.causal()))[0, 1].tolist() == [[True], [True]]  # as many keys as the longest needs
    assert mask.prefix(3)[0, 1]
    for m in (mask.prefix(3) | mask.causal(), mask.causal() | mask.prefix(3), mask.prefix(2) | mask.prefix(3)):
        assert m[0, 1]


@pytest.mark.parametrize(
    "index", [(-1, 0), (0, slice(None)), (slice(-2, 3), 0), (True, 0), (0, None), (..., 0), (1.5, 0)]
)
def test_indexing_from_an_end_that_is_not_there(index):
    with pytest.raises(IndexError, match=r"causal\(\) is not made for a number of tokens: index it from the front"):
        mask.causal()[index]


@pytest.mark.parametrize("index", [0, slice(3), (1,), ...])
def test_indexing_by_one_number(index):
    with pytest.raises(IndexError, match=r"index a mask by query and key, m\[i, j\]"):
        mask.causal()[index]


def test_indexing_outside():
    with pytest.raises(IndexError, match=r"documents\(\[0, 1\]\) of 2 queries and 2 keys, at \(2, 0\)"):
        mask.documents([0, 1])[2, 0]
    with pytest.raises(IndexError, match=r"padding\(\[1\]\) of 1 queries and 1 keys, at \(1, 0, 0, 0\)"):
        mask.padding([1])[1, 0, 0, 0]
    with pytest.raises(IndexError, match=r"causal\(\) is indexed by whole numbers and slices, not by 'a'"):
        mask.causal()["a", 0]
