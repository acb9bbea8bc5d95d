"""Masks against their definition, written out as loops over queries and keys."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.attention.flex_attention import create_mask

from masks import KINDS_WITH_FULL_REPR, Case, build, cases
from regard import mask
from regard.attention.mask.geometry import Tile, TileGrid

SIZES = [(4, 4), (3, 5), (5, 3), (1, 4), (4, 1), (0, 3), (3, 0), (0, 0)]

sizes = pytest.mark.parametrize(("queries", "keys"), SIZES)


# Who may attend.


@sizes
@pytest.mark.parametrize("offset", [0, 1, -2, 7])
def test_causal_from_an_offset(queries, keys, offset):
    expected = [[j <= i + offset for j in range(keys)] for i in range(queries)]
    assert mask.causal(offset=offset).dense(queries, keys).tolist() == expected


@sizes
def test_causal_aligns_the_last_positions(queries, keys):
    from_the_end = [[keys - j >= queries - i for j in range(keys)] for i in range(queries)]
    assert mask.causal().dense(queries, keys).tolist() == from_the_end


def test_causal_includes_the_position_itself__E_02():
    assert mask.causal().dense(3, 3).diagonal().all()


def test_one_cached_query_sees_every_key__pytorch_103082():
    assert mask.causal().dense(1, 6).tolist() == [[True] * 6]


@pytest.mark.parametrize("lengths", [[2, 0, 3], [3], []])
@pytest.mark.parametrize("queries", [0, 1, 3])
@pytest.mark.parametrize("made", [list, tuple, torch.tensor, lambda n: torch.tensor(n, dtype=torch.uint8)])
def test_padding(lengths, queries, made):
    lengths = made(lengths) if lengths or made in (list, tuple) else torch.tensor(lengths, dtype=torch.long)
    expected = [[[[j < n for j in range(3)] for _ in range(queries)]] for n in lengths]
    assert mask.padding(lengths).dense(queries, 3).tolist() == expected


@sizes
@pytest.mark.parametrize(("before", "after"), [(1, 0), (2, 0), (1, 2), (3, 1), (9, 9)])
@pytest.mark.parametrize("offset", [None, 0, 2, -2])
def test_window(queries, keys, before, after, offset):
    first = keys - queries if offset is None else offset
    expected = [[i + first - before < j <= i + first + after for j in range(keys)] for i in range(queries)]
    assert mask.window(before, after, offset=offset).dense(queries, keys).tolist() == expected


def test_window_counts_the_token_itself__transformers_39408__xformers_923__vllm_3385():
    row = mask.window(256).dense(1000, 1000)[700]
    assert row.nonzero()[:, 0].tolist() == list(range(700 - 255, 701))
    row = mask.window(65, 64).dense(1000, 1000)[700]
    assert row.nonzero()[:, 0].tolist() == list(range(700 - 64, 700 + 65))


@pytest.mark.parametrize(
    "ids",
    [
        [0, 0, 1, 1, 1, 2],
        [5, 5, 5, 0, 0, 3],  # unsorted
        [1, 0, 1, 1, 0, -7],  # in several pieces; negative
        [[0, 0, 0, 1, 1, 1], [2, 0, 2, 0, 2, 0]],
    ],
    ids=str,
)
@pytest.mark.parametrize("queries", [6, 2, 0, 9])
@pytest.mark.parametrize("made", [list, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)])
def test_documents(ids, queries, made):
    def one(row):
        # The queries are the last tokens; one before the first token belongs to no document.
        return [[i >= 0 and row[i] == row[j] for j in range(6)] for i in range(6 - queries, 6)]

    expected = [[one(row)] for row in ids] if isinstance(ids[0], list) else one(ids)
    assert mask.documents(made(ids)).dense(queries, 6).tolist() == expected


@sizes
@pytest.mark.parametrize("n", [0, 2, [1, 0], [3, 2], []])
def test_prefix(queries, keys, n):
    if max([n] if isinstance(n, int) else n, default=0) > keys:
        with pytest.raises(ValueError, match=rf"prefix\(.*\) is for [123] keys, but there are {keys}"):
            mask.prefix(n).dense(queries, keys)
        return

    def one(length):
        return [[j < length or j <= i + keys - queries for j in range(keys)] for i in range(queries)]

    expected = one(n) if isinstance(n, int) else [[one(length)] for length in n]
    assert mask.prefix(n).dense(queries, keys).tolist() == expected


STEPS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda i, j: (i - j) % 3 == 0, lambda b, h, i, j: (i - j) % 3 == 0),
        (lambda i, j: i > 3, lambda b, h, i, j: i > 3),
        (lambda i, j: j == 2, lambda b, h, i, j: j == 2),
        (lambda i, j: (j == 2)[0], lambda b, h, i, j: j == 2),
        (lambda i, j: torch.tensor(True), lambda b, h, i, j: True),
        (lambda i, j: (i - j) % STEPS[0, :, None, None] == 0, lambda b, h, i, j: (i - j) % [1, 2, 3][h] == 0),
        (lambda i, j: (i - j) % STEPS[:, :, None, None] == 0, lambda b, h, i, j: (i - j) % (1 + h + 3 * b) == 0),
        (lambda i, j: j < STEPS[:, :1, None, None], lambda b, h, i, j: j < 1 + 3 * b),
    ],
    ids=["pair", "query", "key", "a row of keys", "one number", "heads", "batch and heads", "batch"],
)
@pytest.mark.parametrize("offset", [None, 0, 2])
def test_where(fn, says, offset):
    first = 1 if offset is None else offset
    expected = [[[[says(b, h, i + first, j) for j in range(6)] for i in range(5)] for h in range(3)] for b in range(2)]
    m = mask.where(fn, offset=offset)
    assert m.dense(5, 6).expand(2, 3, 5, 6).tolist() == expected
    # FlexAttention asks one pair at a time.
    assert create_mask(m.predicate(5, 6), 2, 3, 5, 6, "cpu").tolist() == expected


SHAPES = [(3, 4), (1, 4), (3, 1), (1, 1), (2, 3, 4), (5, 1, 3, 4), (5, 2, 1, 4), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_allowed_and_blocked(shape):
    t = torch.rand(shape) < 0.5
    *lead, rows, columns = shape
    expected = torch.empty(*lead, 3, 4, dtype=torch.bool)
    for *where, i, j in itertools.product(*map(range, expected.shape)):
        expected[(*where, i, j)] = t[(*where, i % rows, j % columns)]
    assert torch.equal(mask.allowed(t).dense(3, 4), expected)
    assert torch.equal(mask.blocked(t).dense(3, 4), ~expected)


def test_and_is_both():
    members = [
        mask.causal(),
        mask.padding([3, 1]),
        mask.allowed(torch.rand(2, 1, 4, 4) < 0.7),
        mask.blocked(torch.rand(4, 4) < 0.3),
    ]
    for a, b in itertools.product(members, members):
        both = (a & b).dense(4, 4)
        assert torch.equal(both, a.dense(4, 4) & b.dense(4, 4))
        assert torch.equal(both, (b & a).dense(4, 4))
    a, b, c, d = members
    assert torch.equal((a & b & c & d).dense(4, 4), (a & (b & (c & d))).dense(4, 4))


# Every kind and every way to combine them, against loops over queries and keys.


@settings(max_examples=300, deadline=None)
@given(cases())
def test_any_mask_is_its_definition(case: Case):
    assert torch.equal(case.expand(build(case.spec).dense(case.queries, case.keys)), case.definition())


@settings(max_examples=200, deadline=None)
@given(cases())
def test_any_part_of_any_mask(case: Case):
    m, expected = build(case.spec), case.definition()
    grid = TileGrid(case.queries, case.keys, 3, 2)
    bounds = m.bounds(grid)
    some, every = case.expand(bounds.any_allowed), case.expand(bounds.all_allowed)
    for x, top in enumerate(range(0, case.queries, 3)):
        for y, left in enumerate(range(0, case.keys, 2)):
            rows, columns = (top, min(top + 3, case.queries)), (left, min(left + 2, case.keys))
            part = m.evaluate(Tile(case.queries, case.keys, rows, columns))
            shape = rows[1] - rows[0], columns[1] - columns[0]
            tile = expected[..., slice(*rows), slice(*columns)]
            assert torch.equal(part.expand(case.batch, case.heads, *shape), tile)
            # What is known of a tile without looking inside is never wrong.
            assert not (tile.flatten(-2).any(-1) & ~_at(some, x, y)).any()
            assert not (_at(every, x, y) & ~tile.flatten(-2).all(-1)).any()


def _at(known, x, y):
    return known[..., x if known.shape[-2] > 1 else 0, y if known.shape[-1] > 1 else 0]


@settings(max_examples=200, deadline=None)
@given(cases(min_tokens=1))
def test_any_mask_as_a_predicate(case: Case):
    sizes = case.batch, case.heads, case.queries, case.keys
    says, expected = build(case.spec).predicate(case.queries, case.keys), case.definition()
    assert torch.equal(create_mask(says, *sizes, "cpu"), expected)
    # Also asked for many pairs at once: along four axes, and for pairs in no order.
    axes = [torch.arange(n).reshape(-1, *[1] * (3 - axis)) for axis, n in enumerate(sizes)]
    assert torch.equal(says(*axes).expand(sizes), expected)
    pairs = [torch.randint(n, (9,)) for n in sizes]
    assert torch.equal(says(*pairs).expand(9), expected[tuple(pairs)])


@pytest.mark.parametrize(
    ("m", "known"),
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
def test_what_bounds_know_is_worth_having(m, known):
    # For ids that rise, and for everything that is a matter of positions, all of it: a kernel skips what nobody sees.
    bounds = m.bounds(TileGrid(8, 8, 2, 2))
    tiles = m.dense(8, 8).unflatten(-1, (4, 2)).unflatten(-3, (4, 2)).movedim(-2, -3).flatten(-2)
    exact = torch.equal(bounds.any_allowed.expand(tiles.shape[:-1]), tiles.any(-1)) and torch.equal(
        bounds.all_allowed.expand(tiles.shape[:-1]), tiles.all(-1)
    )
    assert exact is known


@pytest.mark.parametrize("ids", [[0] * 4, [[0] * 4, [1, 1, 2, 2]]])
def test_bounds_of_queries_before_the_first_key(ids):
    bounds = mask.documents(ids).bounds(TileGrid(8, 4, 2, 2))
    first_half = bounds.all_allowed[..., :2, :]
    assert first_half.shape[-2:] == (2, 2)
    assert not first_half.any()
    assert bounds.all_allowed[..., 2:, :].any()


@pytest.mark.parametrize(
    "m",
    [
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
    ],
    ids=repr,
)
def test_dense_goes_to_the_device_asked_for(m):
    assert m.dense(2, 2).device.type == "cpu"
    assert m.dense(2, 2, device="meta").device.type == "meta"


def test_dense_stays_where_the_tensors_are():
    there = mask.allowed(torch.ones(2, 2, device="meta").bool())
    for m in (there, there & mask.causal(), mask.causal() | there, ~(mask.causal() & there)):
        assert m.dense(2, 2).device.type == "meta"


# Masks as values.


@pytest.mark.parametrize(
    ("m", "text"),
    [
        (mask.causal(), "causal()"),
        (mask.causal(offset=0), "causal(offset=0)"),
        (mask.padding([3, 5]), "padding([3, 5])"),
        (mask.padding(torch.tensor([3, 5])), "padding([3, 5])"),
        (mask.allowed(torch.ones(2, 3).bool()), "allowed(<bool (2, 3)>)"),
        (mask.blocked(torch.ones(4, 1, 1, 3).bool()), "blocked(<bool (4, 1, 1, 3)>)"),
        (mask.window(256), "window(256)"),
        (mask.window(65, 64), "window(65, 64)"),
        (mask.window(2, offset=1), "window(2, offset=1)"),
        (mask.documents([0, 0, 1]), "documents([0, 0, 1])"),
        (mask.documents(torch.zeros(3, 4096).long()), "documents(<torch.int64 (3, 4096)>)"),
        (mask.documents([0, 1], [[1, 0, 0]]), "documents([0, 1], keys=[[1, 0, 0]])"),
        (mask.prefix(3), "prefix(3)"),
        (mask.prefix([3, 4]), "prefix([3, 4])"),
        (mask.where(max), "where(max)"),
        (mask.where(lambda i, j: i == j, offset=0), "where(<lambda>, offset=0)"),
        (mask.causal() & mask.padding([3]) & mask.causal(offset=2), "causal() & padding([3]) & causal(offset=2)"),
        (mask.causal() & (mask.window(3) & mask.prefix(2)), "causal() & (window(3) & prefix(2))"),
        ((mask.causal() | mask.window(3)) & mask.prefix(2), "(causal() | window(3)) & prefix(2)"),
        (mask.causal() | mask.window(3) & mask.prefix(2), "causal() | (window(3) & prefix(2))"),
        (~mask.causal() & mask.padding([3]), "~causal() & padding([3])"),
        (~(mask.causal() & mask.padding([3])), "~(causal() & padding([3]))"),
    ],
)
def test_repr_is_how_it_was_made(m, text):
    assert repr(m) == text


@settings(max_examples=200, deadline=None)
@given(cases(kinds=KINDS_WITH_FULL_REPR, max_tokens=4))
def test_repr_reads_back_as_an_equal_mask(case: Case):
    m = build(case.spec)
    again = eval(repr(m), vars(mask))
    assert again == m
    assert torch.equal(again.dense(case.queries, case.keys), m.dense(case.queries, case.keys))


def test_not_twice_is_the_mask_itself():
    m = mask.causal() & mask.padding([3])
    assert ~~m is m
    assert (~m).dense(2, 3).tolist() == (~m.dense(2, 3)).tolist()


def distinct():
    """Masks no two of which are equal, made anew at every call."""
    eye = torch.eye(3).bool()
    return [
        mask.causal(),
        mask.causal(offset=0),
        mask.causal(offset=1),
        mask.padding([1, 2]),
        mask.padding([2, 1]),
        mask.padding([1]),
        mask.allowed(eye),
        mask.allowed(~eye),
        mask.allowed(eye[None]),
        mask.blocked(eye),
        mask.causal() & mask.padding([1, 2]),
        mask.causal() & mask.padding([2, 1]),
        mask.causal() | mask.padding([1, 2]),
        mask.padding([1, 2]) & mask.causal(),
        ~mask.causal(),
        ~mask.padding([1, 2]),
        mask.window(1),
        mask.window(1, 1),
        mask.window(1, offset=0),
        mask.documents([0, 1]),
        mask.documents([[0, 1]]),
        mask.documents([0, 1, 1]),
        mask.documents([0, 1], [0, 1]),
        mask.documents([0, 1], [1, 0]),
        mask.documents([0, 1], [[0, 1]]),
        mask.prefix(1),
        mask.prefix([1]),
        mask.prefix([1, 1]),
        mask.where(max),
        mask.where(min),
        mask.where(max, offset=0),
        "causal()",
        None,
    ]


def test_equal_by_value():
    for (i, a), (j, b) in itertools.product(enumerate(distinct()), enumerate(distinct())):
        assert (a == b) is (i == j), (a, b)
        assert (a != b) is (i != j), (a, b)


def test_equal_by_value_is_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask.causal())


# What is refused.


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("offset", [1.5, 1.0, True, "1", torch.tensor(1)])
def test_causal_offset_is_a_whole_number(offset):
    with pytest.raises(TypeError, match="offset"):
        mask.causal(offset=offset)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([2, -1], ValueError, r"padding\(\[2, -1\]\): a length cannot be negative"),
        (torch.tensor([[1, 1, 0]]), ValueError, r"one length per batch row.*\(1, 3\).*mask\.allowed"),
        (torch.tensor(3), ValueError, r"one length per batch row.*\(\)"),
        (torch.tensor([2.0]), TypeError, r"float32.*mask\.allowed"),
        (torch.tensor([True, True, False]), TypeError, r"bool.*mask\.allowed"),
    ],
)
def test_padding_wants_lengths(lengths, error, message):
    with pytest.raises(error, match=message):
        mask.padding(lengths)


FAR = 2**70


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mask.window(0), ValueError, r"window\(0, 0\): before counts the token itself"),
        (lambda: mask.window(-1), ValueError, r"window\(-1, 0\): before counts the token itself"),
        (lambda: mask.window(3, -1), ValueError, r"window\(3, -1\): after cannot be negative"),
        (lambda: mask.window(True), TypeError, r"window\(before=True\) wants a whole number"),
        (lambda: mask.window(2.0), TypeError, r"window\(before=2\.0\) wants a whole number"),
        (lambda: mask.window(3, None), TypeError, r"window\(after=None\) wants a whole number"),
        (lambda: mask.window(FAR), ValueError, rf"window\(before={FAR}\) is beyond any position"),
        (lambda: mask.window(3, offset=-FAR), ValueError, rf"window\(offset=-{FAR}\) is beyond any position"),
        (lambda: mask.causal(FAR), ValueError, rf"causal\(offset={FAR}\) is beyond any position"),
        (lambda: mask.causal(np.True_), TypeError, r"causal\(offset=.*True.*\) wants a whole number"),
        (lambda: mask.padding(3), ValueError, r"one length per batch row.*got shape \(\)"),
        (lambda: mask.padding(None), TypeError, r"padding\(lengths\) wants a list or a tensor.*got None"),
        (lambda: mask.padding("ab"), TypeError, r"padding\(lengths\) wants a list or a tensor.*got 'ab'"),
        (lambda: mask.padding([FAR]), TypeError, rf"padding\(lengths\) wants a list or a tensor.*\[{FAR}\]"),
        (lambda: mask.padding([[1], [1, 2]]), TypeError, r"rows equally long; got \[\[1\], \[1, 2\]\]"),
        (lambda: mask.padding(np.array([1.0])), TypeError, r"float64.*mask\.allowed"),
        (
            lambda: mask.documents([0.5]),
            TypeError,
            r"documents\(ids\) wants whole numbers; got a torch\.float32 tensor",
        ),
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
    ],
)
def test_an_argument_that_makes_no_mask_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_numpy_speaks_of_whole_numbers_too():
    assert mask.causal(np.int32(2)) == mask.causal(2)
    assert mask.window(np.int64(3), np.uint8(1)) == mask.window(3, 1)
    assert mask.prefix(np.int64(2)) == mask.prefix(2)
    assert mask.padding(np.array([1, 2], dtype=np.uint16)) == mask.padding([1, 2])
    assert mask.padding([np.int64(1), 2]) == mask.padding([1, 2])
    assert mask.documents(np.array([[0, 1], [1, 1]])) == mask.documents([[0, 1], [1, 1]])


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


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("lengths", [[2.7], [True, True, False]])
def test_padding_wants_lengths_in_a_list_too(lengths):
    with pytest.raises(TypeError):
        mask.padding(lengths)


def test_padding_longer_than_the_keys():
    with pytest.raises(ValueError, match=r"padding\(\[2, 5\]\) is for 5 keys, but there are 4"):
        mask.padding([2, 5]).dense(4, 4)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("say", [mask.allowed, mask.blocked])
@pytest.mark.parametrize(
    "t",
    [torch.ones(3, 3), torch.ones(3, 3, dtype=torch.int64), torch.zeros(3, 3).half(), [[True]], None],
    ids=["float", "int", "half", "list", "none"],
)
def test_only_boolean_tensors_are_masks__pytorch_21518(say, t):
    with pytest.raises(TypeError, match=rf"mask\.{say.__name__}\(t\) wants a boolean tensor"):
        say(t)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("say", [mask.allowed, mask.blocked])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_mask_has_queries_and_keys(say, shape):
    with pytest.raises(ValueError, match=r"wants the shape \(\.\.\., queries, keys\)"):
        say(torch.ones(shape).bool())


@pytest.mark.parametrize("say", [mask.allowed, mask.blocked])
@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (4, 4), (5, 3)])
def test_a_mask_for_other_tokens(say, queries, keys):
    with pytest.raises(ValueError, match=rf"<bool \(3, 4\)>.* does not fit {queries} queries and {keys} keys"):
        say(torch.ones(3, 4).bool()).dense(queries, keys)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_and_with_something_else():
    t = torch.ones(3, 3).bool()
    with pytest.raises(TypeError, match=r"mask\.allowed.*mask\.blocked"):
        mask.causal() & t
    with pytest.raises(TypeError, match=r"mask\.allowed.*mask\.blocked"):
        t & mask.causal()
    with pytest.raises(TypeError, match=r"causal\(\) \| Tensor: both sides must be masks.*mask\.allowed"):
        mask.causal() | t
    with pytest.raises(TypeError, match=r"Tensor \| causal\(\): both sides must be masks.*mask\.allowed"):
        t | mask.causal()
    with pytest.raises(TypeError, match=r"int & causal\(\): both sides must be masks"):
        1 & mask.causal()


def test_and_of_masks_for_different_batches():
    with pytest.raises(ValueError, match=r"padding\(\[1, 2\]\) & padding\(\[1, 2, 3\]\)"):
        (mask.padding([1, 2]) & mask.padding([1, 2, 3])).dense(3, 3)


def test_padding_takes_no_memory_that_grows_with_the_queries():
    assert mask.padding([3, 5]).broadcastable(10**6, 5).shape == (2, 1, 1, 5)
    assert mask.allowed(torch.ones(1, 5).bool()).broadcastable(10**6, 5).shape == (1, 5)


def test_two_numbers_of_batch_rows_do_not_combine():
    with pytest.raises(
        ValueError, match=r"padding\(\[2, 4\]\) & padding\(\[3\]\): the left is for 2 batch rows, the right for 1"
    ):
        mask.padding([2, 4]) & mask.padding([3])


def test_two_numbers_of_tokens_do_not_combine():
    square = mask.allowed(torch.ones(3, 4).bool())
    with pytest.raises(ValueError, match=r"documents\(\[0, 1\]\) \| allowed.*the left is for 2 keys, the right for 4"):
        mask.documents([0, 1]) | square
    with pytest.raises(ValueError, match=r"the left is for 3 queries, the right for 5"):
        square & mask.blocked(torch.ones(5, 1).bool())
    with pytest.raises(ValueError, match=r"the left is for 3 queries, the right for 2"):
        square & mask.documents([0, 1], [0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"the left is for 4 keys, the right for 2"):
        (square & mask.causal()) | ~mask.documents([0, 1])


def test_two_numbers_of_heads_do_not_combine():
    two, three = (mask.allowed(torch.ones(heads, 4, 4).bool()) for heads in (2, 3))
    with pytest.raises(ValueError, match=r"<bool \(2, 4, 4\)>.* \(2, 4, 4\) and \(3, 4, 4\) do not combine"):
        (two & three).dense(4, 4)


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (mask.documents([0, 0, 1]), r"documents\(\[0, 0, 1\]\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 0, 1, 1], [0, 1, 1]), r"documents\(.*\) is for 3 tokens, but there are 4 keys"),
        (mask.documents([0, 1, 1], [0, 0, 1, 1]), r"documents\(.*\) is for 3 queries, but there are 4"),
        (mask.prefix(5), r"prefix\(5\) is for 5 keys, but there are 4"),
        (mask.prefix([1, 5]), r"prefix\(\[1, 5\]\) is for 5 keys, but there are 4"),
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


def test_a_mask_is_neither_true_nor_false():
    for ask in (bool, lambda m: m and m, lambda m: m or m, lambda m: not m):
        with pytest.raises(TypeError, match=r"causal\(\) is neither true nor false: combine masks with & \| ~"):
            ask(mask.causal())


def test_how_many_batch_rows_and_heads_a_mask_speaks_of():
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
