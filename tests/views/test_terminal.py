import io
import re
from dataclasses import replace

import pytest

import regard
from regard.views.terminal import console_for, draw
from weights import LOAN, RIVER, minilm


class Stream(io.TextIOWrapper):
    name, mode = "<test>", "w"

    def __init__(self, *, terminal, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def drawn(explanation, monkeypatch, *, terminal=False, encoding="utf-8", columns=None):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = Stream(terminal=terminal, encoding=encoding)
    draw(explanation, console_for(stream))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.fixture(scope="module")
def river():
    return regard.explain(RIVER, "bank", minilm(), LOAN)


def test_piped_it_is_plain_text_with_all_five_parts(river, monkeypatch):
    text = drawn(river, monkeypatch)
    assert "\x1b" not in text
    for number in range(1, 6):
        assert re.search(rf"^{number}\. ", text, re.MULTILINE)
    assert re.search(r"^ +11 +bank +2924 +<- explained", text, re.MULTILINE)
    assert "14 tokens x 384 numbers" in text
    assert re.search(r"^river +0\.9988 +█{30}", text, re.MULTILINE)
    assert re.search(r"^river +10 +0\.9988 +0 +2", text, re.MULTILINE)
    assert re.search(r"^river +138\.8510 +24\.5456 +0\.9988", text, re.MULTILINE)
    assert "A habit: in this head 11 of the text's 12 tokens give most to the token just before them" in text
    assert "Among heads without one, 'bank' gives most to 'river', 0.8468: --layer 0 --head 4" in text
    assert re.search(r"^after layer 5 +0\.8346", text, re.MULTILINE)
    assert re.search(r"^The proof holds: the largest difference of all 32 numbers is \d\.\de-0\d;", text, re.MULTILINE)


def test_on_a_terminal_it_is_styled(river, monkeypatch):
    assert "\x1b[" in drawn(river, monkeypatch, terminal=True)


def test_every_token_has_a_bar_row_and_an_arithmetic_row(river, monkeypatch):
    lines = drawn(river, monkeypatch).splitlines()
    for token in river.tokens:
        rows = [line for line in lines if line.startswith(token + " ")]
        assert len(rows) >= 2


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(river, monkeypatch, columns):
    assert max(len(line) for line in drawn(river, monkeypatch, columns=columns).splitlines()) <= columns


def test_without_unicode_the_bars_are_plain(river, monkeypatch):
    text = drawn(river, monkeypatch, encoding="ascii")
    assert re.search(r"^river[ |]+0\.9988[ |]+#{30}", text, re.MULTILINE)


def test_signs_that_could_change_the_terminal_are_shown_not_obeyed(monkeypatch):
    e = regard.explain("bank \x1b[31mred [bold]x[/bold] :smile: \u202eevil\u2066 \x07bell", "bank", minilm())
    text = drawn(e, monkeypatch)
    assert not set("\x1b\x07\u202e\u2066") & set(text)
    assert "\\x1b[31mred [bold]x[/bold] :smile: \\u202eevil\\u2066" in text


def test_what_a_token_stands_for_is_shown(monkeypatch):
    text = drawn(regard.explain("café 🙂 bank", "bank", minilm()), monkeypatch)
    assert re.search(r"\[UNK\] +100 +for '🙂'", text)
    assert re.search(r"cafe +7668 +for 'café'", text)


def test_a_word_of_several_pieces_has_one_table_for_each(monkeypatch):
    text = drawn(regard.explain("The embeddings rule", "embeddings", minilm()), monkeypatch)
    assert re.findall(r"^q of '(.*?)'", text, re.MULTILINE) == ["em", "##bed", "##ding", "##s"]
    assert "The mean over the 4 tokens of the word" in text


def test_a_repeated_word_says_how_to_choose(monkeypatch):
    text = drawn(regard.explain("bank and bank", "bank", minilm()), monkeypatch)
    assert "'bank' stands at 1, 3; this is the first. For another: --token POSITION." in text


def test_a_text_of_one_word_says_so(monkeypatch):
    assert "The text has no other token of its own." in drawn(regard.explain("bank", model=minilm()), monkeypatch)


def test_parts_are_numbered_without_a_gap(monkeypatch):
    text = drawn(regard.explain(RIVER, "bank", minilm()), monkeypatch)
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == ["1", "2", "3", "4"]


def test_a_proof_that_fails_says_so(river, monkeypatch):
    failing = replace(river, proof=replace(river.proof, largest_difference=0.5, holds=False))
    assert "THE PROOF FAILS, do not trust these numbers: the largest difference of all 32 numbers is 5.0e-01" in drawn(
        failing, monkeypatch
    )


@pytest.mark.parametrize("columns", ["0", "-1", "x", ""])
def test_a_width_that_is_none_is_not_taken(river, monkeypatch, columns):
    assert drawn(river, monkeypatch, columns=columns) == drawn(river, monkeypatch)
