"""The table of heads, and the report of what was looked at most, drawn from facts made by hand."""

from dataclasses import replace

import pytest

import terminals
from regard.lens.text.overview import (
    AttendedKey,
    HeadOverview,
    LayerOverview,
    MostAttended,
    Overview,
    ReceivedWord,
    TokenPair,
    WordAttention,
)
from regard.views.terminal.heads_table import draw

LONG = ["[CLS]"] + ["river"] * 63
BAD = "\x1b[31mred\u202e"


PAIR = TokenPair("bank", 2, "river", 1, 0.8468)
HEAD = HeadOverview(0, "mixed", {"attention sink": 0.25}, 2.031, 0.42, 4.04, PAIR)
LAYER = LayerOverview("blocks.0.attention", "self", 0, 3, 3, "none", "fused", 2e-7, True, [HEAD])
WORDS = [
    ReceivedWord("[CLS]", [0], False, 0.5, 0, 0, 0.9),
    ReceivedWord("river", [1], True, 0.3, 0, 1, 0.4),
    ReceivedWord("bank", [2], True, 0.2, 0, 2, 0.3),
]
MOST = [MostAttended("blocks", "self", WORDS)]
OVERVIEW = Overview("a/model", "river bank", None, ["[CLS]", "river", "bank"], None, [LAYER], MOST)


def drawn(*layers, terminal=False, columns=None, encoding="utf-8", **changes):
    """Layers, and what else is not as in OVERVIEW."""
    overview = replace(OVERVIEW, layers=list(layers) or [LAYER], **changes)
    return terminals.drawn(draw, overview, terminal=terminal, columns=columns, encoding=encoding)


def a_layer(layer, **changes):
    return replace(LAYER, **{"path": f"blocks.{layer}.attention", "layer": layer, **changes})


def row(text, cells):
    """The line that begins with these cells."""
    return next(line for line in text.splitlines() if f"{' '.join(line.split())} ".startswith(f"{cells} "))


def test_a_row_for_each_head():
    previous = replace(HEAD, head=1, head_type="previous token", distance=1.0, spread=0.0)
    uniform = replace(HEAD, head=2, head_type="uniform", distance=-61.9)
    text = drawn(replace(LAYER, heads=[HEAD, previous, uniform]), a_layer(1), columns=80)
    assert "\x1b" not in text
    assert row(text, "0 0 mixed 2.03 0.25 +0.4 ± 4.0 0.85 bank -> river")
    assert "+1.0 ± 0.0" in row(text, "1 previous")
    assert "-62 ±   4" in row(text, "2 uniform")
    assert row(text, "1 0 mixed")
    assert row(text, "blocks.1.attention self 3 x 3 none 2.0e-07")
    for kind, meaning in (("previous", "the token before"), ("uniform", "evenly"), ("mixed", "nothing of that")):
        assert meaning in row(text, f"{kind}:")
    assert "induction:" not in text


def test_what_is_not_to_be_trusted_is_red_and_said():
    layers = [LAYER, a_layer(1, error=0.3, verified=False), a_layer(2, error=float("nan"), verified=False)]
    text = drawn(*layers)
    assert row(text, "blocks.1.attention").endswith(" 3.0e-01")
    assert row(text, "blocks.2.attention").endswith(" unknown")
    assert "DO NOT TRUST layers in red" in text
    assert "\x1b[1;31m3.0e-01" in drawn(*layers, terminal=True)
    assert "DO NOT TRUST" not in drawn()


def test_what_cannot_be_known_is_left_out():
    blank = replace(HEAD, scores={"attention sink": None}, distance=None, spread=None)
    missing = replace(HEAD, head=1, scores={"attention sink": float("nan")})
    text = drawn(replace(LAYER, heads=[blank, missing]))
    assert row(text, "0 0 mixed").split()[3:] == ["2.03", "0.85", "bank", "->", "river"]
    assert row(text, "1 mixed").split()[2:5] == ["2.03", "+0.4", "±"]


def test_stacks_of_an_encoder_decoder_stand_together():
    layers = [a_layer(0, path="encoder.blocks.0.attention")]
    for n in (0, 1):
        layers.append(a_layer(n, path=f"decoder.blocks.{n}.attention"))
        layers.append(a_layer(n, path=f"decoder.blocks.{n}.cross_attention", kind="cross"))
    text = drawn(*layers, target="ein Haus", target_tokens=["</s>", "ein"])
    heads = text.split("The heads")[1]
    places = [heads.index(f" {name} ") for name in ("encoder", "decoder", "cross")]
    assert places == sorted(places)
    assert heads.count(" cross ") == 1
    assert "-> ein Haus" in text
    assert "3 tokens; 2 of what the decoder reads" in text


def test_what_a_word_looks_at_has_bars_of_30_columns_and_fewer_where_the_console_is_narrow():
    keys = [AttendedKey("river", 1, 1.0), AttendedKey("[CLS]", 0, 0.5)]
    word = WordAttention("bank", [2], "blocks.0.attention", "self", 0, 1, None, keys, 0.25)
    for columns, width in ((36, 8), (38, 8), (50, 20), (60, 30), (200, 30)):
        text = drawn(word=word, columns=columns)
        bars = {cells[1]: len(cells[-1]) for line in text.splitlines() if "█" in line for cells in [line.split()]}
        assert bars == {"river": width, "[CLS]": width // 2}
    assert "What 'bank' looks at: layer 0, head 1" in text
    assert row(text, "all others 0.2500")
    assert "The mean over" not in text
    habit = replace(word, token_index=[1, 2], kind="cross", positional_pattern="all tokens look back", rest=0.0)
    text = drawn(word=habit, columns=200)
    assert "What 'bank' looks at: cross-attention, layer 0, head 1" in text
    assert "The mean over the 2 tokens of the word." in text
    assert "A habit: in this head all tokens look back, whatever they mean." in text
    assert "all others" not in text


def test_a_short_text_has_no_report_and_a_long_one_has():
    assert "looked at most" not in drawn()
    text = drawn(tokens=LONG)
    assert "it gave 50.0 % to words, 50.0 % to [CLS]." in text
    assert row(text, "river 1 30.0 % layer 0 head 1: 40.0 %")
    assert text.index("river   ") < text.index("bank   ")
    assert "Evenly spread, each token would have 33.3 %." in text


def test_hostile_tokens_and_names_are_escapes():
    layer = a_layer(0, path=BAD, mask=BAD, heads=[replace(HEAD, pair=TokenPair(BAD, 0, BAD, 1, 0.5))])
    most = [MostAttended("blocks", "self", [ReceivedWord(BAD, [0], True, 1.0, 0, 0, 1.0)])]
    text = drawn(layer, tokens=[BAD] * 70, text=f"{BAD} [bold] x", model=BAD, most_attended=most, columns=200)
    assert not {"\x1b", "\u202e"} & set(text)
    assert "\\x1b[31mred\\u202e [bold] x" in text


def test_signs_inside_tokens_are_explained_and_a_long_text_is_cut():
    text = drawn(tokens=["Ġthe", "▁a", "##s"])
    for meaning in ("## marks a piece that continues a word.", "Ġ stands for a space.", "▁ stands for a space."):
        assert meaning in text
    text = drawn(text="word " * 500)
    assert text.count("word") == 40
    assert "word ..." in text


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns):
    pair = TokenPair("internationalization", 100, "incomprehensibilities", 1000, 0.5)
    layer = replace(LAYER, heads=[replace(HEAD, pair=pair, distance=-1234.5)] * 3)
    assert max(map(len, drawn(layer, tokens=["x"] * 70, columns=columns).splitlines())) <= columns


def test_without_unicode_the_bars_are_plain():
    assert "#" * 12 in drawn(tokens=LONG, encoding="ascii")
