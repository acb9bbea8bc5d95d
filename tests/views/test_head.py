"""One head in the terminal: each token's strongest keys, and the heatmap, on any console and with any token."""

import math
import re

import pytest
import torch
from rich.cells import cell_len

import terminals
from regard import mask
from regard.errors import InputError
from regard.lens import AttentionSummary
from regard.views.figures.cells import head_cells
from regard.views.source import find_query
from regard.views.terminal.head import draw
from regard.views.terminal.heatmap import percent
from views.recordings import random_map, recorded, river

LAYER = "blocks.5.attention"
SHADES = " ░▒▓█"
HOSTILE = ["\x1b[31mred", "\u202eabc", "a\nb", "[bold]", "😀", "中文字", "e\u0301", "👩\u200d👩\u200d👧", "x" * 99, ""]


def drawn(source, head=0, path="layers.0", **options):
    """A head of a recording; of a map, the first layer's."""
    recording = source if hasattr(source, "entry") else recorded(source)
    return terminals.drawn(draw, recording, path=path, head=head, **options)


def heatmap(text):
    """The lines of the heatmap, without heading, legend and axis."""
    lines = text.split("from left to right\n")[1].splitlines()
    shaded = [line for line in lines if re.match(r"[> ] +\d+ |[> ] {3,}[ ░▒▓█·]+$", line)]
    return [line for line in shaded if not re.fullmatch(r"[\d ]+", line)]


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        *((1.0, "100 %"), (0.995, "100 %"), (0.9949, "99.5 %"), (0.25, "25.0 %"), (0.001, "0.1 %"), (0.0, "0.0 %")),
        *((0.00099, "0.10 %"), (0.0001, "0.01 %"), (0.00009, "0.009 %"), (math.nan, "?")),
    ],
)
def test_a_small_weight_has_more_digits(weight, text):
    assert percent(weight) == text


def test_what_it_is_and_each_token_with_its_strongest_keys():
    text = drawn(river(), 6, LAYER)
    lines, m = text.splitlines(), river()[LAYER]
    assert lines[0] == "regard see  layer 5, head 6: mixed"
    assert re.fullmatch(rf"{LAYER}: self-attention, 14 queries x 14 keys, mask none, error \d\.\de-0\d", lines[1])
    assert [line.split()[1] for line in lines[4:18]] == m.tokens[0]
    weights, keys = m[0, 6, 11].topk(3)
    shown = re.findall(r"([\d.]+) %  \S+ +(\S+)", next(line for line in lines if line.startswith("11  bank")))
    assert [token for _, token in shown] == [m.tokens[1][key] for key in keys]
    assert [float(weight) for weight, _ in shown] == pytest.approx((100 * weights).tolist(), abs=0.051)


@pytest.mark.parametrize("columns", [65, 90])
def test_on_a_narrow_console_there_are_fewer_keys_with_their_whole_tokens(columns):
    m, tokens = random_map(4, 4), [f"river_bank_{n}" for n in range(4)]
    m.label([tokens])
    assert set(re.findall(r"river\w*", drawn(m, columns=columns))) == {*tokens}


def test_the_heatmap_shades_each_weight():
    text = drawn(river(), 6, LAYER)
    weights, rows = river()[LAYER][0, 6], heatmap(text)
    high = float(weights.max())
    for row, line in zip(weights.tolist(), rows, strict=True):
        assert line[-28::2] == line[-27::2]
        levels = [SHADES.index(cell) for cell in line[-28::2]]
        assert levels == [sum(w / high >= share for share in (0.02, 0.1, 0.3, 0.6)) for w in row]
    assert f"█ from {percent(0.6 * high)}." in text
    assert f"The largest: {percent(high)}." in text
    # The keys are written from top to bottom above their columns.
    above = text.split("from left to right\n")[1].splitlines()
    above = [line.ljust(len(rows[0])) for line in above[: above.index(rows[0])]]
    assert "".join(line[-28 + 2 * 7] for line in above).strip() == "fishing"


def test_a_query_that_was_asked_for():
    text = drawn(river(), 6, LAYER, query=11)
    assert "What query 11 'bank' looks at" in text
    row = river()[LAYER][0, 6, 11]
    assert f"The other 2 keys: {percent(float(row.sum() - row.topk(12).values.sum()))} together." in text
    assert [line for line in heatmap(text) if line.startswith(">")] == [heatmap(text)[11]]
    assert text.count("fishing") == 2  # among its keys, and at its own row


def test_masked_is_a_dot_and_said():
    text = drawn(random_map(6, 6, mask=mask.causal()), 1)
    assert [line.count("·") for line in heatmap(text)] == [10, 8, 6, 4, 2, 0]
    assert "· no weight, masked" in text
    assert "mask causal()" in text


def test_what_is_no_number_is_a_question_mark_and_what_nothing_proves_is_not_to_be_trusted():
    m = random_map(4, 4)
    m.q[0, 0, 2] = torch.nan
    text = drawn(m)
    assert [line.count("?") for line in heatmap(text)] == [0, 0, 8, 0]
    says = ("? not a number", "error unknown", "DO NOT TRUST this map: nothing proves it.")
    assert [line for line in says if line not in text] == []


def test_at_length_the_heatmap_is_pooled_to_the_width():
    m = random_map(200, 200, mask=mask.causal())
    text = drawn(m, 1, query=150, columns=80)
    rows, cells = heatmap(text), head_cells(m, 0, 1, 37, 74)
    assert (len(rows), {len(line) for line in rows}) == (37, {80})
    strengths = (cells.weights / cells.vmax).clamp(max=1).sqrt()
    for row, strength, line in zip(cells.weights, strengths, rows, strict=True):
        expected = sum((strength >= share).long() for share in (0.02, 0.1, 0.3, 0.6))
        assert [SHADES.find(cell) for cell in line[-74:]] == expected.masked_fill(row == 0, -1).tolist()
    assert "Pooled to 37 x 74 cells" in text
    marked = next(n for n, line in enumerate(rows) if line.startswith("> 150 "))
    assert cells.queries[marked] <= 150 < cells.queries[marked + 1]


def test_in_colours_a_letter_is_two_cells(monkeypatch):
    m = random_map(150, 150)
    monkeypatch.setenv("COLORTERM", "truecolor")
    text = drawn(m, terminal=True, columns=80)
    lines = [line for line in text.splitlines() if "▀" in line]
    assert [line.count("▀") for line in lines] == [74] * 37
    # The largest cell is white, and the two colours of a letter are those of its cells.
    row, column = divmod(int(head_cells(m, 0, 0, 74, 74).weights.argmax()), 74)
    ansi = re.compile(r"\x1b\[38;2;([\d;]+);48;2;([\d;]+)m(▀+)")
    colours = [pair for *pair, run in ansi.findall(lines[row // 2]) for _ in run]
    assert colours[column][row % 2] == "255;255;255"
    assert "halfway" in text
    assert "\x1b[36m█" in text  # the bars


def test_in_colours_what_is_no_number_is_red(monkeypatch):
    m = random_map(30, 30)
    m.q[0, 0, 4] = torch.nan
    monkeypatch.setenv("COLORTERM", "truecolor")
    lines = [line for line in drawn(m, terminal=True, columns=50).splitlines() if "▀" in line]
    red = re.compile(r"\x1b\[38;2;214;39;40;48;2;[\d;]+m(▀+)")
    assert [sum(map(len, red.findall(line))) for line in lines] == [0, 0, 30, *[0] * 12]


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_tokens_are_escapes_and_fill_their_columns(terminal):
    m = random_map(len(HOSTILE), len(HOSTILE))
    m.label(HOSTILE)
    plain = re.sub(r"\x1b\[[\d;]*m", "", drawn(m, terminal=terminal, columns=100))
    assert not {"\x1b", "\u202e"} & set(plain)
    assert [token for token in ("[bold]", r"\x1b[31mred") if token not in plain] == []
    rows = [line for line in plain.splitlines() if re.match(r"  \d ", line)]
    assert len(rows) == len(HOSTILE)
    assert all(cell_len(line.rstrip(SHADES + "▀")) <= 20 for line in rows)


def test_without_unicode_everything_is_plain():
    text = drawn(random_map(5, 5, mask=mask.causal()), encoding="ascii")
    assert "\\" not in text
    assert text.count("----") >= 3
    assert "# from" in text


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 90), (200, 7)])
@pytest.mark.parametrize("columns", [40, 60, 200])
def test_no_line_is_wider_than_the_terminal(queries, keys, columns):
    m = random_map(queries, keys)
    m.label(["internationalization"] * queries, ["incomprehensibilities"] * keys)
    assert max(map(len, drawn(m, columns=columns).splitlines())) <= columns


def test_summaries_show_what_they_kept():
    m = random_map(100, 100, mask=mask.causal())
    text = drawn(AttentionSummary.from_map(m), 1, query=50, columns=80)
    shown = re.findall(r"^ *(\d+) +([\d.]+) %", text, re.MULTILINE)
    exact = zip(*(t.tolist() for t in m[0, 1, 50].topk(8)), strict=True)
    found = {int(key): float(weight) for key, weight in shown}
    assert list(found.items()) == [(key, pytest.approx(100 * weight, abs=0.051)) for weight, key in exact]
    assert "Pooled to 32 x 64 cells" in text
    assert "Pooled" not in drawn(AttentionSummary.from_map(random_map(9, 9)), 1)


def test_a_longer_text_shows_its_beginning():
    assert "The first 40 of 60 queries. For another one: --token WORD." in drawn(random_map(60, 60))


def test_heads_have_the_model_s_own_numbers():
    recording = recorded(random_map(5, 5), layer=2, heads=[3, 6])
    assert drawn(recording, 1).startswith("regard see  layer 2, head 6")


@pytest.mark.parametrize(
    ("place", "error", "says"),
    [
        ({"head": 2}, IndexError, "no head 2: there are 2"),
        ({"query": 5}, IndexError, "no query 5: there are 5"),
        ({"batch": 1}, IndexError, "no batch row 1"),
        ({"path": "b"}, KeyError, "no attention was recorded at 'b'"),
    ],
)
def test_what_is_not_there_is_refused(place, error, says):
    with pytest.raises(error, match=says):
        drawn(random_map(5, 5), **place)


def test_a_query_is_found_by_its_token_or_its_position():
    m = river()[LAYER]
    assert find_query(m, "bank") == find_query(m, " BANK ") == find_query(m, "11") == 11
    assert find_query(m, "a") == 2  # the first of several
    for missing in ("sea", "14", "-1", "", "99999999999999999999", "²"):
        with pytest.raises(InputError, match=r"there is no query .* a position from 0 to 13"):
            find_query(m, missing)
    m = random_map(4, 4)
    assert find_query(m, "3") == 3
    m.label(["a", "b", "c", "1"])
    assert [find_query(m, name) for name in "12"] == [3, 2]  # a token that is a number comes before a position
