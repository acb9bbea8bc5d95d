"""Masks against their definition, written out as loops over queries and keys."""

import itertools

import pytest
import torch

from regard import mask

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


@pytest.mark.parametrize(
    "m",
    [
        mask.causal(),
        mask.padding([1]),
        mask.allowed(torch.ones(2, 2).bool()),
        mask.blocked(torch.ones(2, 2).bool()),
        mask.causal() & mask.padding([1]),
    ],
    ids=repr,
)
def test_dense_goes_to_the_device_asked_for(m):
    assert m.dense(2, 2).device.type == "cpu"
    assert m.dense(2, 2, device="meta").device.type == "meta"


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
        (mask.causal() & mask.padding([3]) & mask.causal(offset=2), "causal() & padding([3]) & causal(offset=2)"),
    ],
)
def test_repr_is_how_it_was_made(m, text):
    assert repr(m) == text


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


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("lengths", [[2.7], [True, True, False]])
def test_padding_wants_lengths_in_a_list_too(lengths):
    with pytest.raises(TypeError):
        mask.padding(lengths)


def test_padding_longer_than_the_keys():
    with pytest.raises(ValueError, match=r"padding\(\[2, 5\]\) speaks of 5 keys, but there are 4"):
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


def test_and_of_masks_for_different_batches():
    with pytest.raises(ValueError, match=r"padding\(\[1, 2\]\) & padding\(\[1, 2, 3\]\)"):
        (mask.padding([1, 2]) & mask.padding([1, 2, 3])).dense(3, 3)


# What comes later says so.


@pytest.mark.parametrize("name", ["window", "documents", "prefix", "where"])
def test_a_mask_that_is_not_there_yet_is_named(name):
    with pytest.raises(AttributeError, match=f"regard.mask has no '{name}', so far; it has causal, padding"):
        getattr(mask, name)


def test_or_and_not_name_the_way_out():
    with pytest.raises(NotImplementedError, match=r"causal\(\) \| padding\(\[3\]\): masks combine with & only"):
        mask.causal() | mask.padding([3])
    with pytest.raises(NotImplementedError, match=r"~causal\(\): masks combine with & only.*mask\.allowed"):
        ~mask.causal()


def test_padding_takes_no_memory_that_grows_with_the_queries():
    assert mask.padding([3, 5]).broadcastable(10**6, 5).shape == (2, 1, 1, 5)
    assert mask.allowed(torch.ones(1, 5).bool()).broadcastable(10**6, 5).shape == (1, 5)


def test_two_numbers_of_batch_rows_do_not_combine():
    with pytest.raises(
        ValueError, match=r"padding\(\[2, 4\]\) & padding\(\[3\]\): the left speaks of 2 batch rows, the right of 1"
    ):
        mask.padding([2, 4]) & mask.padding([3])
