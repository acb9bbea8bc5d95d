"""An explanation in the terminal: what each part says, of every family of models, on any console."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

import regard
import terminals
from lens.explained import TEXT, pretrained
from regard.transformer import Config, Decoder
from regard.views.terminal.explanation import draw
from weights import LOAN, RIVER, minilm


def drawn(explained, word="bank", **options):
    """An explanation, or one of a text by the default model."""
    if isinstance(explained, str):
        explained = regard.explain(explained, word, minilm())
    return terminals.drawn(draw, explained, **options)


@cache
def river():
    return regard.explain(RIVER, "bank", minilm(), LOAN)


@cache
def explained(family, word="bank", **options):
    return regard.explain(TEXT, word, pretrained(family), **options)


def test_piped_it_is_plain_text_with_all_five_parts():
    text = drawn(river())
    assert "\x1b" not in text
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == [*"12345"]
    for line in (
        r" +11 +bank +2924 +<- explained",
        r"river +0\.8468 +█{25} *$",
        r"river +10 +0\.9988 +0 +2",
        r"river +33\.7266 +5\.9621 +0\.8468",
        r"after layer 5 +0\.8346",
        r"The proof holds: the largest difference of all 32 numbers is \d\.\de-0\d;",
    ):
        assert re.search(f"^{line}", text, re.MULTILINE), line
    assert "14 tokens x 384 numbers" in text
    assert "Among heads without a habit, none gives another token more. A habit: nearly all tokens" in text
    beginnings = re.findall(r"^\S+", text, re.MULTILINE)
    assert all(beginnings.count(token) >= 2 for token in river().queries.tokens)  # a bar, and a line of the arithmetic


def test_a_habit_is_told_and_a_head_without_one():
    text = drawn(regard.explain(RIVER, "bank", minilm(), layer=0, head=2))
    assert "A habit: in this head 11 of the text's 12 tokens give most to the token just before them" in text
    assert "Among heads without one, 'bank' gives most to 'river', 0.8468: --layer 0 --head 4" in text


def test_without_unicode_the_bars_are_plain():
    assert re.search(r"^river[ |]+0\.8468[ |]+#{25}", drawn(river(), encoding="ascii"), re.MULTILINE)


@pytest.mark.parametrize("columns", ["0", "x"])
def test_a_width_that_is_none_is_not_taken(columns):
    assert drawn(river(), columns=columns) == drawn(river())


def test_signs_that_could_change_the_terminal_are_shown_not_obeyed():
    text = drawn("bank \x1b[31mred [bold]x[/bold] :smile: \u202eevil\u2066 \x07bell")
    assert not set("\x1b\x07\u202e\u2066") & set(text)
    assert "\\x1b[31mred [bold]x[/bold] :smile: \\u202eevil\\u2066" in text


def test_what_a_token_stands_for_is_shown():
    text = drawn("café 🙂 bank")
    assert re.search(r"\[UNK\] +100 +for '🙂'", text)
    assert re.search(r"cafe +7668 +for 'café'", text)


def test_a_word_of_several_pieces_has_one_table_for_each():
    text = drawn("The embeddings rule", "embeddings")
    assert re.findall(r"^q of '(.*?)'", text, re.MULTILINE) == ["em", "##bed", "##ding", "##s"]
    assert "The mean over the 4 tokens of the word" in text


def test_a_repeated_word_says_how_to_choose_and_parts_are_numbered_without_a_gap():
    text = drawn("bank and bank")
    assert "'bank' stands at 1, 3; this is the first. For another: --token POSITION." in text
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == ["1", "2", "3", "4"]


def test_a_text_of_one_word_says_so():
    assert "The text has no other token of its own." in drawn("bank")
    text = drawn(regard.explain("bank of the river", "bank", pretrained("gpt2")))
    assert "'bank'" in text
    assert "The text has no other token of its own that it could see." in text


def test_a_proof_that_fails_says_so():
    failing = replace(river(), proof=replace(river().proof, max_error=0.5, verified=False))
    says = "THE PROOF FAILS, do not trust these numbers: the largest difference of all 32 numbers is 5.0e-01"
    assert says in drawn(failing)


def assert_says(text, *sentences):
    """These sentences stand in a text, wherever it was wrapped."""
    assert [sentence for sentence in sentences if sentence not in " ".join(text.split())] == []


def test_a_decoder_says_what_a_token_sees():
    e = explained("gpt2", compare="a bank")
    text = drawn(e)
    hidden = len(e.queries.tokens) - e.word.token_index[0] - 1
    assert len(re.findall(r"^\S+ +masked +after it *$", text, re.MULTILINE)) == hidden > 0
    assert len(re.findall(r"^\S+ +-?\d+\.\d{4} +-?\d+\.\d{4} +masked ", text, re.MULTILINE)) == hidden
    assert re.search(r"^\+ position ", text, re.MULTILINE)
    assert not re.search(r"segment|normed +-?\d", text)
    assert_says(
        text,
        "A token of a decoder sees itself and those before it; those after it are masked.",
        "over all keys that are not masked.",
        "For each token two vectors are added. The first",
        "Ġ stands for a space.",
        "each layer mixes in those before it.",
        "gives to each other token of the text that it can see, over all",
    )


def test_a_window_says_how_far_a_token_sees():
    e = explained("mistral", "by", layer=1)
    text = drawn(e)
    assert len(re.findall(r"masked +out of the window *$", text, re.MULTILINE)) == e.word.token_index[0] - 3
    assert_says(
        text,
        "This layer has a window: a token sees itself and the 3 before it.",
        "q and k are then turned by their positions",
        "Positions come in later: in each layer they turn queries and keys.",
        "For each token there is one vector.",
        f"Several heads share their k and v: head {e.head} has number {e.head // 3}.",
    )


CAPPED = "Scaled is q . k times 0.3780; capped is 50 * tanh(scaled / 50); a weight is e^capped"
INTO = "go into layer {e.layer}, normed, times the weights of head {e.head}."
BIASED = "Scaled is q . k times 1.0000; biased is scaled + T5's number for the distance of the two tokens"


@pytest.mark.parametrize(
    ("family", "options", "formula", "column", "sentence"),
    [
        ("gemma2", {}, "softmax(50 * tanh(q . k * 0.378 / 50)) @ v", "capped", CAPPED),
        ("gemma2", {}, "softmax(50 * tanh(q . k * 0.378 / 50)) @ v", "capped", "in its own forward pass, some rows at"),
        ("t5", {"attention": "encoder"}, "softmax(q . k + bias) @ v", "biased", BIASED),
        ("t5", {"attention": "encoder"}, "softmax(q . k + bias) @ v", "biased", INTO),
        ("qwen3", {}, "softmax(q . k / sqrt(10)) @ v", "", "q and k are then normed. q and k are then turned"),
    ],
)
def test_every_step_of_the_arithmetic_has_its_column(family, options, formula, column, sentence):
    e = explained(family, **options)
    text = drawn(e)
    assert f". The arithmetic of that row: {formula}" in text
    assert re.search(rf"^key +q \. k +scaled +{column} *weight", text, re.MULTILINE)
    assert_says(text, sentence.format(e=e))


def test_a_sink_is_shown_with_the_share_it_takes():
    config = Config(vocab_size=61, d_model=24, num_layers=2, num_heads=4, d_ff=30, sinks=True)
    model = Decoder(config).eval()
    with torch.no_grad():
        model.blocks[1].attention.sinks.fill_(1.25)
    e = regard.explain(TEXT, "bank", replace(pretrained("gpt2"), model=model, config=config), layer=1)
    text, total = drawn(e), e.row.weights.sum().item()
    assert f"The weights sum to {total:.4f}: the head's sink takes the rest, and carries no value." in text
    assert re.search(rf"^sink +1\.2500 +{1 - total:.4f} *$", text, re.MULTILINE)
    assert_says(text, "over all keys that are not masked and the head's sink, e^1.2500.")


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_cross_attention_shows_both_texts_and_says_which_row_it_is(family):
    e = explained(family, target="the river is a bank")
    text, first = drawn(e), e.top_keys[0]
    (place,) = e.word.token_index
    assert text.splitlines()[1:3] == [TEXT, "-> the river is a bank"]
    assert re.search(rf"^ +{place} +Ġa +Ġbank +\d+ +<- explained *$", text, re.MULTILINE)
    table = rf"^word +position +mean +largest +layer +head *\n.*\n{re.escape(first.token)} +{first.index} "
    assert re.search(table, text, re.MULTILINE)
    assert_says(
        text,
        "The source, which the encoder reads:",
        f"2. Where 'bank' came from: layer {e.layer}, head {e.head}",
        "the row of the position that writes 'bank'.",
        f"q of position {place}, which reads 'Ġa' and writes 'Ġbank'",
        "k and v are the encoder's result times theirs.",
        f"{e.decoder_inputs[0]} is what the decoder reads first.",
        f"The decoder has {e.model.num_layers} layers of {e.model.num_heads} heads",
    )
    assert "masked" not in text
    assert text.count("The proof holds") == 1


def test_the_decoders_own_attention_begins_with_its_start_token():
    e = explained("bart", target="the river is a bank", attention="decoder")
    text = drawn(e)
    assert f"{e.queries.tokens[0]} is what the decoder reads first." in text
    assert f"{e.queries.tokens[1]} is put around the text by the tokenizer." in text
    assert "The decoder has 2 layers" in text
    assert "The encoder has 3 layers" in drawn(explained("bart", attention="encoder"))


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns):
    t5 = explained("t5", target="the river", attention="decoder", word="river")
    for explanation in (river(), explained("gemma2"), t5, explained("bart", target="a bank")):
        assert max(len(line) for line in drawn(explanation, columns=columns).splitlines()) <= columns


def test_at_80_columns_each_key_has_one_line():
    e = explained("t5", attention="encoder")
    table = drawn(e, columns=80).split("\nkey ")[1].split("\n4. ")[0].splitlines()
    assert len([line for line in table if line.strip()]) == len(e.keys.tokens) * len(e.word.token_index) + 3
