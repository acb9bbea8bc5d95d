"""Tables at any width: no number is broken, and every view keeps all of its numbers at 40 columns."""

import re
from collections import Counter

import pytest

import regard
import terminals
from regard import mask
from regard.lens.text.run import run
from regard.views.terminal import explanation, head, heads_table
from regard.views.terminal.table import FittingTable
from views.recordings import random_map, recorded, river
from weights import LOAN, RIVER, minilm


def shown(table, columns):
    return terminals.drawn(lambda table, console: console.print(table), table, columns=columns)


def a_table(kind="right", cells=(("river", "-324.3600", "57.3393", "0.9967"),)):
    table = FittingTable(("key", "left"), ("q . k", kind), ("scaled", kind), ("weight", kind))
    for row in cells:
        table.add_row(*row)
    return table


def test_where_all_fits_there_is_one_table():
    assert shown(a_table(), 80).count("key") == 1


def test_where_columns_do_not_fit_there_are_several_tables_with_the_same_labels():
    text = shown(a_table(), 22)
    assert text.count("key") == text.count("river") == 3
    assert all(number in text for number in ("-324.3600", "57.3393", "0.9967"))


@pytest.mark.parametrize("compact", [False, True])
def test_tables_use_all_of_the_room(compact):
    """A text is broken, and then a table parted, at one column less than they need, and not before."""
    gap = 2 if compact else 3

    def drawn(weight, room):
        table = FittingTable(("key", "left"), ("text", "left"), ("weight", "right"), compact=compact)
        table.add_row("river", "a bank of the river", weight)
        text = shown(table, room)
        return text.count("key"), "a bank of the river" in text

    weight, long_weight = "0.9967", "0.99671234567890"
    whole = len("river" + gap * " " + "a bank of the river")
    assert [drawn(long_weight, room) for room in (whole, whole - 1)] == [(2, True), (2, False)]
    narrow = len("river" + gap * " " + "river" + gap * " " + weight)
    assert [drawn(weight, room) for room in (narrow, narrow - 1)] == [(1, False), (2, False)]


def test_a_bar_is_left_out_before_a_number():
    table = FittingTable(("token", "left"), ("weight", "right"), ("", "bar"))
    table.add_row("river", "0.8468", "#" * 20)
    assert "#" not in shown(table, 30)
    assert "0.8468" in shown(table, 30)


def test_several_numbers_of_a_cell_are_parted_only_at_spaces():
    text = shown(a_table("numbers", [("a long name of a row", "-0.1234 12.5678", "", "")]), 20)
    assert "-0.1234" in text
    assert "12.5678" in text


def numbers(text):
    return Counter(re.findall(r"(?<![\w.])[-+]?\d[\d,.]*\d|\d", text))


def overview_of(text, **options):
    return run(text, minilm(), [0]).overview(**options)


def draw_head(recording, console):
    path = next(iter(recording))
    head.draw(recording, console, path=path, head=1)
    head.draw(recording, console, path=path, head=1, query=recording.entry(path).shape[2] - 1)


VIEWS = {
    "explain": (explanation.draw, lambda: regard.explain(RIVER, "bank", minilm(), [LOAN, "a bank"])),
    "explain pieces": (explanation.draw, lambda: regard.explain("The embeddings rule", "embeddings", minilm())),
    "watch": (heads_table.draw, lambda: overview_of(RIVER, token="bank")),
    "watch a long text": (heads_table.draw, lambda: overview_of(RIVER * 8)),
}


@pytest.mark.parametrize(
    "view", [pytest.param(view, marks=[] if view in ("explain", "watch") else pytest.mark.more) for view in VIEWS]
)
def test_at_40_columns_every_number_is_unbroken(view):
    draw, make = VIEWS[view]
    facts = make()
    wide, narrow = (terminals.drawn(draw, facts, columns=columns) for columns in (99, 40))
    assert max(map(len, narrow.splitlines())) <= 40
    # Labels may stand there several times, and a token or a path may be broken.
    missing = numbers(wide) - numbers(narrow)
    assert not [number for number in missing if "." in number.strip(".,")]


@pytest.mark.parametrize("make", [river, lambda: recorded(random_map(60, 60, mask=mask.causal()))])
def test_a_head_at_40_columns_keeps_each_weight(make):
    recording = make()
    text = terminals.drawn(draw_head, recording, columns=40)
    assert max(map(len, text.splitlines())) <= 40
    m = next(iter(recording.values()))
    strongest = m[0, 1].max(-1).values
    rows = re.findall(r"^ *\d+ .*?([\d.]+) %", text.split("The heatmap")[0], re.MULTILINE)
    assert [float(weight) for weight in rows] == pytest.approx((100 * strongest[: len(rows)]).tolist(), abs=0.6)
