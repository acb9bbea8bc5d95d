"""One head in the terminal: each token's strongest keys, and the heatmap, on any console and with any token."""

import re

import pytest
import torch
from rich.cells import cell_len

import regard
from regard import mask
from regard.errors import InputError
from regard.lens import AttentionMap, AttentionSummary, Recording
from regard.lens.text.run import run
from regard.views.figures.cells import head_cells
from regard.views.terminal.head import draw, find_query
from regard.views.terminal.heatmap import percent
from terminals import drawn
from weights import RIVER, minilm

LAYER = "blocks.5.attention"
HOSTILE = ["\x1b[31mred", "\u202eabc", "a\nb", "[bold]", "😀", "中文字", "e\u0301", "👩\u200d👩\u200d👧", "x" * 99, ""]


@pytest.fixture(scope="module")
def recording():
    return run(RIVER, minilm()).recording


def random_map(queries, keys, *, heads=2, batch=1, **options):
    q, k = torch.randn(batch, heads, queries, 16), torch.randn(batch, heads, keys, 16)
    return AttentionMap(2 * q, k, None, **options)


def recorded(m, kind="self", heads=None):
    recording = Recording()
    recording.add(
        "a", m, shape=tuple(m.shape), mask=getattr(m, "mask", None), kernel="", kind=kind, layer=3, heads=heads
    )
    return recording


def heatmap(text):
    """The lines of the heatmap, without heading, legend and axis."""
    lines = text.split("from left to right\n")[1].splitlines()
    shaded = [line for line in lines if re.match(r"[> ] +\d+ |[> ] {3,}[ ░▒▓█·]+$", line)]
    return [line for line in shaded if not re.fullmatch(r"[\d ]+", line)]


def test_what_it_is_is_said_in_one_line(recording, monkeypatch):
    first, second = drawn(draw, recording, monkeypatch, path=LAYER, head=6).splitlines()[:2]
    assert first == "regard see  layer 5, head 6: mixed"
    assert re.fullmatch(rf"{LAYER}: self-attention, 14 queries x 14 keys, mask none, error \d\.\de-0\d", second)


def test_each_token_with_its_strongest_keys(recording, monkeypatch):
    text = drawn(draw, recording, monkeypatch, path=LAYER, head=6)
    m = recording[LAYER]
    weights, keys = m[0, 6, 11].topk(3)
    row = next(line for line in text.splitlines() if line.startswith("11  bank"))
    shown = re.findall(r"([\d.]+) %  \S+ +(\S+)", row)
    assert [token for _, token in shown] == [m.tokens[1][key] for key in keys]
    assert [float(weight) for weight, _ in shown] == pytest.approx([100 * float(w) for w in weights], abs=0.051)
    assert [line.split()[1] for line in text.splitlines()[4:18]] == m.tokens[0]


def test_the_heatmap_shades_each_weight(recording, monkeypatch):
    text = drawn(draw, recording, monkeypatch, path=LAYER, head=6)
    weights = recording[LAYER][0, 6]
    high = float(weights.max())
    rows = heatmap(text)
    assert len(rows) == 14
    for row, line in zip(weights.tolist(), rows, strict=True):
        cells = line[-28:]
        levels = [" ░▒▓█".index(cells[2 * key]) for key in range(14)]
        assert levels == [sum(w / high >= share for share in (0.02, 0.1, 0.3, 0.6)) for w in row]
        assert cells[::2] == cells[1::2]
    assert f"█ from {percent(0.6 * high)}." in text
    assert f"The largest: {percent(high)}." in text
    # The keys are written from top to bottom above their columns.
    above = text.split("from left to right\n")[1].splitlines()
    above = [line.ljust(len(rows[0])) for line in above[: above.index(rows[0])]]
    column = len(rows[0]) - 28 + 2 * 7
    assert "".join(line[column] for line in above).strip() == "fishing"


def test_a_query_that_was_asked_for(recording, monkeypatch):
    text = drawn(draw, recording, monkeypatch, path=LAYER, head=6, query=11)
    assert "What query 11 'bank' looks at" in text
    row = recording[LAYER][0, 6, 11]
    weights = row.topk(12).values
    assert f"The other 2 keys: {percent(float(row.sum() - weights.sum()))} together." in text
    assert [line for line in heatmap(text) if line.startswith(">")] == [heatmap(text)[11]]
    assert text.count("fishing") == 2  # among its keys, and at its own row


def test_masked_is_a_dot_and_said(monkeypatch):
    text = drawn(draw, recorded(random_map(6, 6, mask=mask.causal())), monkeypatch, path="a", head=1)
    assert [line.count("·") for line in heatmap(text)] == [10, 8, 6, 4, 2, 0]
    assert "· no weight, masked" in text
    assert "mask causal()" in text


def test_a_map_that_nothing_proves_is_not_to_be_trusted(monkeypatch):
    text = drawn(draw, recorded(random_map(3, 3)), monkeypatch, path="a", head=0)
    assert "error unknown" in text
    assert "DO NOT TRUST this map: nothing proves it." in text


def test_what_is_no_number_is_a_question_mark(monkeypatch):
    m = random_map(4, 4)
    m.q[0, 0, 2] = torch.nan
    text = drawn(draw, recorded(m), monkeypatch, path="a", head=0)
    assert [line.count("?") for line in heatmap(text)] == [0, 0, 8, 0]
    assert "? not a number" in text


def test_at_length_the_heatmap_is_pooled_to_the_width(monkeypatch):
    m = random_map(700, 700, mask=mask.causal())
    text = drawn(draw, recorded(m), monkeypatch, path="a", head=1, query=350, columns=80)
    rows = heatmap(text)
    cells = head_cells(m, 0, 1, 37, 74)
    assert (len(rows), {len(line) for line in rows}) == (37, {80})
    for row, line in zip(cells.weights, rows, strict=True):
        levels = [" ░▒▓█".find(c) for c in line[-74:]]
        strength = (row / cells.vmax).clamp(max=1).sqrt()
        expected = sum((strength >= share).long() for share in (0.02, 0.1, 0.3, 0.6))
        assert levels == expected.masked_fill(row == 0, -1).tolist()
    assert "Pooled to 37 x 74 cells" in text
    marked = next(n for n, line in enumerate(rows) if line.startswith("> 350 "))
    assert cells.queries[marked] <= 350 < cells.queries[marked + 1]


def test_in_colours_a_letter_is_two_cells(monkeypatch):
    m = random_map(300, 300)
    monkeypatch.setenv("COLORTERM", "truecolor")
    text = drawn(draw, recorded(m), monkeypatch, path="a", head=0, terminal=True, columns=80)
    lines = [line for line in text.splitlines() if "▀" in line]
    cells = head_cells(m, 0, 0, 74, 74)
    assert len(lines) == 37
    assert {line.count("▀") for line in lines} == {74}
    # The largest cell is white, and the two colours of a letter are those of its cells.
    row, column = divmod(int(cells.weights.argmax()), 74)
    colours = []
    ansi = re.compile(r"\x1b\[38;2;([\d;]+);48;2;([\d;]+)m(▀+)")
    for upper, lower, run_ in ansi.findall(lines[row // 2]):
        colours += [(upper, lower)] * len(run_)
    assert colours[column][row % 2] == "255;255;255"
    assert "halfway" in text
    assert "\x1b[36m█" in text  # the bars


def test_hostile_tokens_are_escapes_and_fill_their_columns(monkeypatch):
    m = random_map(len(HOSTILE), len(HOSTILE))
    m.label(HOSTILE)
    for terminal in (False, True):
        text = drawn(draw, recorded(m), monkeypatch, path="a", head=0, terminal=terminal, columns=100)
        plain = re.sub(r"\x1b\[[\d;]*m", "", text)
        assert "\x1b" not in plain
        assert "\u202e" not in plain
        assert "[bold]" in plain
        assert r"\x1b[31mred" in plain
        assert max(map(cell_len, plain.splitlines())) <= 100
    rows = [line for line in plain.splitlines() if re.match(r"  \d ", line)]
    assert len(rows) == len(HOSTILE)
    starts = {cell_len(line.rstrip(" ░▒▓█")) <= 20 for line in rows}
    assert starts == {True}


def test_without_unicode_everything_is_plain(monkeypatch):
    m = random_map(5, 5, mask=mask.causal())
    text = drawn(draw, recorded(m), monkeypatch, path="a", head=0, encoding="ascii")
    assert "\\" not in text
    assert text.count("----") >= 3
    assert "# from" in text


@pytest.mark.parametrize("columns", [40, 60, 200])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 90), (90, 3), (300, 7), (7, 300)])
def test_no_line_is_wider_than_the_terminal(columns, queries, keys, monkeypatch):
    m = random_map(queries, keys)
    m.label(["internationalization"] * queries, ["incomprehensibilities"] * keys)
    text = drawn(draw, recorded(m), monkeypatch, path="a", head=0, columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "The heatmap" in text


def test_summaries_show_what_they_kept(monkeypatch):
    m = random_map(100, 100, mask=mask.causal())
    short = drawn(draw, recorded(AttentionSummary.from_map(m)), monkeypatch, path="a", head=1, query=50, columns=80)
    shown = re.findall(r"^ *(\d+) +([\d.]+) %", short, re.MULTILINE)
    weights, keys = m[0, 1, 50].topk(8)
    assert [int(key) for key, _ in shown] == keys.tolist()
    assert [float(w) for _, w in shown] == pytest.approx([100 * float(w) for w in weights], abs=0.051)
    assert "Pooled to 32 x 64 cells" in short
    few = random_map(9, 9)
    assert "Pooled" not in drawn(draw, recorded(AttentionSummary.from_map(few)), monkeypatch, path="a", head=1)


def test_a_longer_text_shows_its_beginning(monkeypatch):
    text = drawn(draw, recorded(random_map(60, 60)), monkeypatch, path="a", head=0)
    assert "The first 40 of 60 queries. For another one: --query TOKEN." in text


def test_heads_have_the_model_s_own_numbers(monkeypatch):
    with regard.watch(minilm().model, layers=[2], heads=[3, 6]) as seen:
        minilm().embed([RIVER])
    text = drawn(draw, seen, monkeypatch, path=next(iter(seen)), head=1)
    assert text.startswith("regard see  layer 2, head 6")


@pytest.mark.parametrize(
    ("place", "error", "says"),
    [
        ({"head": 2}, IndexError, "no head 2: there are 2"),
        ({"head": 0, "query": 5}, IndexError, "no query 5: there are 5"),
        ({"head": 0, "batch": 1}, IndexError, "no batch row 1"),
        ({"head": 0, "path": "b"}, KeyError, "no attention was recorded at 'b'"),
    ],
)
def test_what_is_not_there_is_refused(place, error, says, monkeypatch):
    with pytest.raises(error, match=says):
        drawn(draw, recorded(random_map(5, 5)), monkeypatch, **{"path": "a", **place})


def test_a_query_is_found_by_its_token_or_its_position(recording):
    m = recording[LAYER]
    assert find_query(m, "bank") == find_query(m, " BANK ") == find_query(m, "11") == 11
    assert find_query(m, "a") == 2  # the first of several
    assert find_query(random_map(5, 5), "4") == 4
    for missing in ("sea", "14", "-1", "", "99999999999999999999", "²"):
        with pytest.raises(InputError, match=r"there is no query .* a position from 0 to 13"):
            find_query(m, missing)


def test_a_token_that_is_a_number_comes_before_a_position():
    m = random_map(4, 4)
    m.label(["a", "b", "c", "1"])
    assert find_query(m, "1") == 3
    assert find_query(m, "2") == 2
