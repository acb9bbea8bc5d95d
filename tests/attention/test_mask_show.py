"""Masks as pictures: every cell against the dense mask, and what is never computed."""

import pytest
import torch
from hypothesis import given

from cases import OperatorTrace
from masks import MaskCase, build, cases
from regard import mask


def test_a_picture():
    assert mask.causal().show(3, 5, batch=7, head=3).splitlines() == [
        "causal()   3 queries (down) x 5 keys (across)",
        "",
        "   0 1 2 3 4",
        "0  ██████· ·",
        "1  ████████·",
        "2  ██████████",
        "",
        "██ may attend   · may not",
    ]


def test_a_picture_of_one_batch_row_and_head():
    m = mask.padding([1, 2]) & mask.allowed(torch.tensor([[[True, True]], [[True, False]]]))
    title, _, _, row, *_ = m.show(1, 2, batch=1, head=0).splitlines()
    assert title == "padding([1, 2]) & allowed(<bool (2, 1, 2)>)   1 query (down) x 2 keys (across), batch 1, head 0"
    assert row == "0  ████"
    assert [m.show(1, 2, **which).splitlines()[3] for which in ({"batch": 1, "head": 1}, {})] == ["0  ██·"] * 2


def test_a_picture_in_shades():
    picture = mask.causal().show(128, 128).splitlines()
    assert picture[0] == "causal()   128 queries (down) x 128 keys (across)"
    assert picture[2] == "     " + "".join(f"{key:<16}" for key in range(0, 128, 16)).rstrip()
    assert picture[3] == "  0  ▒▒" + "· " * 62 + "·"
    assert picture[4] == "  2  ██▒▒" + "· " * 61 + "·"
    assert picture[66] == "126  " + "██" * 63 + "▒▒"
    assert picture[-1] == "██ all may attend   ▒▒ some may   · none may   one cell: 2 queries x 2 keys"


@pytest.mark.parametrize(("queries", "keys"), [(0, 4), (3, 0), (0, 0)])
def test_nobody_and_nothing(queries, keys):
    for m in (mask.causal(), mask.padding([0, 0]), mask.where(lambda i, j: i == j), mask.documents([0] * keys)):
        title, _, *rows, _, legend = m.show(queries, keys).splitlines()
        assert title.startswith(f"{m!r}   {queries} queries (down) x {keys} keys (across)")
        assert "█" not in "".join(rows)
        assert legend == "██ may attend   · may not"


def cells(picture):
    """The cells of a picture as strings of two characters."""
    rows = picture.splitlines()[3:-2]
    margin = len(rows[0]) - len(rows[0].lstrip().lstrip("0123456789")) + 2 if rows else 0
    widest = max((len(row) for row in rows), default=0)
    return [[row.ljust(widest + 1)[at : at + 2] for at in range(margin, widest, 2)] for row in rows]


@given(cases(min_tokens=1))
def test_every_cell_of_any_mask(case: MaskCase):
    b, h = case.batch - 1, case.heads - 1
    m = build(case.spec)
    rows, heads = m.batch_heads(case.queries, case.keys)
    picture = m.show(case.queries, case.keys, batch=0 if rows is None else b, head=0 if heads is None else h)
    drawn = [[cell == "██" for cell in row] for row in cells(picture)]
    assert drawn == case.definition()[b, h].tolist()


IDS = torch.arange(298) // 70
RANDOM = torch.rand(200, 298, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "m",
    [
        mask.causal(),
        mask.window(30, 7),
        mask.padding([3, 170]),
        mask.documents(IDS) & mask.causal(),
        mask.documents(IDS.flip(0) * (torch.arange(298) % 2)),
        mask.where(lambda i, j: i > 100, offset=0),
        mask.allowed(RANDOM[:2, None, None] < 0.9) | ~mask.window(100),
        mask.blocked(RANDOM < 0.05),
    ],
    ids=repr,
)
def test_shades_are_nobody_some_and_all(m):
    queries, keys, height, width = 200, 298, 4, 5  # the last column of cells is narrower
    rows, _ = m.batch_heads(queries, keys)
    last = 0 if rows is None else rows - 1
    dense = m.dense(queries, keys).expand(last + 1, 1, queries, keys)[last, 0]
    expected = [
        ["██" if tile.all() else "▒▒" if tile.any() else "· " for tile in dense[top : top + height].split(width, dim=1)]
        for top in range(0, queries, height)
    ]
    drawn = cells(m.show(queries, keys, batch=last))
    assert [row + ["· "] * (len(expected[0]) - len(row)) for row in drawn] == expected


def test_a_long_mask_is_evaluated_in_parts():
    evaluated = []

    def every_other(i, j):
        evaluated.append(i.numel() * j.numel())
        return (i - j) % 2 == 0

    picture = mask.where(every_other).show(4096, 4096)
    assert {cell for row in cells(picture) for cell in row} == {"▒▒"}
    assert max(evaluated) <= 4096 * 4096 // 16
    evaluated.clear()
    (mask.where(every_other) & mask.causal(offset=-5000)).show(4096, 4096)
    assert sum(evaluated) <= 1, "the bounds know the picture"


def test_a_million_tokens_need_no_tensor_of_all_pairs():
    with OperatorTrace() as trace:
        picture = (mask.window(100_000) & mask.documents(torch.arange(10**6) // 250_000)).show(10**6, 10**6)
    assert trace.max_bytes <= 16 * 2**20  # all pairs would need a terabyte
    rows = cells(picture)
    assert len(rows) == 64
    assert rows[15][7:16] == ["· ", "▒▒", "▒▒", "██", "██", "██", "██", "██", "▒▒"]
    assert rows[16][8:17] == ["· "] * 8 + ["▒▒"]


@pytest.mark.parametrize(
    ("m", "which", "message"),
    [
        (mask.padding([1, 2]), {"batch": 2}, r"\(batch=2\): padding\(\[1, 2\]\) is for 2 batch rows, counted from 0"),
        (mask.padding([]), {}, r"show\(batch=0\): padding\(\[\]\) is for 0 batch rows"),
        (mask.allowed(torch.ones(2, 1, 1).bool()), {"head": 2}, r"show\(head=2\): .* is for 2 heads"),
        (mask.causal(), {"head": -1}, r"show\(head=-1\): heads count from 0"),
        (mask.causal(), {"batch": -1}, r"show\(batch=-1\): batch rows count from 0"),
    ],
)
def test_a_row_or_head_that_is_not_there(m, which, message):
    with pytest.raises(IndexError, match=message):
        m.show(3, 3, **which)
