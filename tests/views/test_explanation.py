import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

import regard
import terminals
from regard.transformer import Config, Decoder
from regard.views.terminal.explanation import draw
from weights import LOAN, RIVER, minilm, random_checkpoint

drawn = partial(terminals.drawn, draw)


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
    for token in river.queries.tokens:
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
    failing = replace(river, proof=replace(river.proof, max_error=0.5, verified=False))
    assert "THE PROOF FAILS, do not trust these numbers: the largest difference of all 32 numbers is 5.0e-01" in drawn(
        failing, monkeypatch
    )


@pytest.mark.parametrize("columns", ["0", "-1", "x", ""])
def test_a_width_that_is_none_is_not_taken(river, monkeypatch, columns):
    assert drawn(river, monkeypatch, columns=columns) == drawn(river, monkeypatch)


TEXT = "the man is in the bank, and the river ran by."


@cache
def small(family):
    folder = Path(mkdtemp())
    random_checkpoint(folder, family)
    return regard.load(folder)


@cache
def explained(family, word="bank", **options):
    return regard.explain(TEXT, word, small(family), **options)


def flat(text):
    """A text on one line: where it was wrapped does not matter."""
    return " ".join(text.split())


def test_a_decoder_says_what_a_token_sees(monkeypatch):
    e = explained("gpt2", compare="a bank")
    text = drawn(e, monkeypatch)
    assert "A token of a decoder sees itself and those before it; those after it are masked." in text
    (place,) = e.word.token_index
    hidden = len(e.queries.tokens) - place - 1
    assert len(re.findall(r"^\S+ +masked +after it *$", text, re.MULTILINE)) == hidden > 0
    assert len(re.findall(r"^\S+ +-?\d+\.\d{4} +-?\d+\.\d{4} +masked ", text, re.MULTILINE)) == hidden
    assert "over all keys that are not masked." in flat(text)
    assert "For each token two vectors are added. The first" in flat(text)
    assert re.search(r"^\+ position ", text, re.MULTILINE)
    assert not re.search(r"segment|normed +-?\d", text)
    assert "Ġ stands for a space." in text
    assert "each layer mixes in those before it." in flat(text)
    assert "gives to each other token of the text that it can see, over all" in flat(text)


def test_the_first_word_of_a_decoder_sees_no_other(monkeypatch):
    text = drawn(regard.explain("bank of the river", "bank", small("gpt2")), monkeypatch)
    assert "'bank'" in text
    assert "The text has no other token of its own that it could see." in text


def test_a_window_says_how_far_a_token_sees(monkeypatch):
    e = explained("mistral", "by", layer=1)
    text = drawn(e, monkeypatch)
    assert "This layer has a window: a token sees itself and the 3 before it." in text
    assert len(re.findall(r"masked +out of the window *$", text, re.MULTILINE)) == e.word.token_index[0] - 3
    assert "q and k are then turned by their positions" in flat(text)
    assert "Positions come in later: in each layer they turn queries and keys." in flat(text)
    assert "For each token there is one vector." in flat(text)
    assert f"Several heads share their k and v: head {e.head} has number {e.head // 3}." in flat(text)


def test_every_step_of_the_arithmetic_has_its_column(monkeypatch):
    e = explained("gemma2")
    text = drawn(e, monkeypatch)
    assert "3. The arithmetic of that row: softmax(50 * tanh(q . k * 0.378 / 50)) @ v" in text
    assert re.search(r"^key +q \. k +scaled +capped +weight", text, re.MULTILINE)
    assert "Scaled is q . k times 0.3780; capped is 50 * tanh(scaled / 50); a weight is e^capped" in flat(text)
    assert "in its own forward pass, some rows at a time" in flat(text)

    e = explained("t5", attention="encoder")
    text = drawn(e, monkeypatch)
    assert "3. The arithmetic of that row: softmax(q . k + bias) @ v" in text
    assert re.search(r"^key +q \. k +scaled +biased +weight", text, re.MULTILINE)
    assert "Scaled is q . k times 1.0000; biased is scaled + T5's number for the distance of the two tokens" in flat(
        text
    )
    assert f"go into layer {e.layer}, normed, times the weights of head {e.head}." in flat(text)

    assert "q and k are then normed. q and k are then turned" in flat(drawn(explained("qwen3"), monkeypatch))


def test_a_sink_is_shown_with_the_share_it_takes(monkeypatch):
    config = Config(vocab_size=61, d_model=24, num_layers=2, num_heads=4, d_ff=30, sinks=True)
    model = Decoder(config).eval()
    with torch.no_grad():
        model.blocks[1].attention.sinks.fill_(1.25)
    e = regard.explain(TEXT, "bank", replace(small("gpt2"), model=model, config=config), layer=1)
    text = drawn(e, monkeypatch)
    total = e.row.weights.sum().item()
    assert f"The weights sum to {total:.4f}: the head's sink takes the rest, and carries no value." in text
    assert re.search(rf"^sink +1\.2500 +{1 - total:.4f} *$", text, re.MULTILINE)
    assert "over all keys that are not masked and the head's sink, e^1.2500." in flat(text)


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_cross_attention_shows_both_texts_and_says_which_row_it_is(family, monkeypatch):
    e = explained(family, target="the river is a bank")
    text = drawn(e, monkeypatch)
    assert text.splitlines()[1:3] == [TEXT, "-> the river is a bank"]
    assert "The source, which the encoder reads:" in text
    (place,) = e.word.token_index
    assert re.search(rf"^ +{place} +Ġa +Ġbank +\d+ +<- explained *$", text, re.MULTILINE)
    assert f"2. Where 'bank' came from: layer {e.layer}, head {e.head}" in text
    assert "the row of the position that writes 'bank'." in flat(text)
    first = e.top_keys[0]
    assert re.search(
        rf"^word +position +mean +largest +layer +head *$\n.*\n{re.escape(first.token)} +{first.index} ",
        text,
        re.MULTILINE,
    )
    assert f"q of position {place}, which reads 'Ġa' and writes 'Ġbank'" in text
    assert "k and v are the encoder's result times theirs." in flat(text)
    assert f"{e.decoder_inputs[0]} is what the decoder reads first." in text
    assert f"The decoder has {e.model.num_layers} layers of {e.model.num_heads} heads" in text
    assert "masked" not in text
    assert text.count("The proof holds") == 1


def test_the_decoders_own_attention_begins_with_its_start_token(monkeypatch):
    e = explained("bart", target="the river is a bank", attention="decoder")
    text = drawn(e, monkeypatch)
    assert f"{e.queries.tokens[0]} is what the decoder reads first." in text
    assert f"{e.queries.tokens[1]} is put around the text by the tokenizer." in text
    assert "The decoder has 2 layers" in text
    assert "The encoder has 3 layers" in drawn(explained("bart", attention="encoder"), monkeypatch)


@pytest.mark.parametrize("columns", [40, 60, 80, 110])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gemma2", ()),
        ("t5", (("target", "the river"), ("attention", "decoder"), ("word", "river"))),
        ("bart", (("target", "a bank"),)),
    ],
)
def test_no_line_of_any_family_is_wider_than_the_terminal(family, options, columns, monkeypatch):
    text = drawn(explained(family, **dict(options)), monkeypatch, columns=columns)
    assert max(len(line) for line in text.splitlines()) <= columns


def test_at_80_columns_each_key_has_one_line(monkeypatch):
    for e in (explained("gemma2"), explained("t5", attention="encoder"), regard.explain(RIVER, "bank", minilm())):
        table = drawn(e, monkeypatch, columns=80).split("\nkey ")[1].split("\n4. ")[0].splitlines()
        assert len([line for line in table if line.strip()]) == len(e.keys.tokens) * len(e.word.token_index) + 3
