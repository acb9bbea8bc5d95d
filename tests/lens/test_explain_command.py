"""`regard explain` for decoders and encoder-decoders, by the command line's own `main`."""

import json
import re

import pytest

from lens.explained import checkpoint

TEXT = "the man is in the bank"
TARGET = ["--target", "a river", "--token", "river"]


@pytest.fixture(scope="module", autouse=True)
def _checkpoints_before_output_is_captured():
    for family in ("gpt2", "bart"):
        checkpoint(family)


@pytest.mark.parametrize(
    ("family", "arguments", "kind", "attention", "word"),
    [
        ("gpt2", [], "decoder", "self", "bank"),
        ("bart", [], "encoder-decoder", "cross", None),
        ("bart", TARGET, "encoder-decoder", "cross", "river"),
        ("bart", [*TARGET, "--attention", "cross"], "encoder-decoder", "cross", "river"),
        ("bart", [*TARGET, "--attention", "decoder"], "encoder-decoder", "self", "river"),
        ("bart", ["--attention", "encoder"], "encoder-decoder", "self", "bank"),
    ],
)
def test_a_word_of_the_text_or_of_the_target(command, family, arguments, kind, attention, word):
    """Where no target is given, the model writes one."""
    code, out, err = command("explain", TEXT, "--model", checkpoint(family)[0], *arguments, "--json", "-")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["model"]["kind"], facts["attention"]) == (kind, attention)
    assert facts["word"]["text"] == word or (word is None and facts["word"]["text"] in facts["target"])
    reads_target = family == "bart" and "encoder" not in arguments
    assert (facts["target"] is not None) == reads_target
    assert facts["target"] == "a river" or TARGET[0] not in arguments


def test_the_explanation_of_a_decoder_says_what_a_token_sees(command):
    assert "A token of a decoder sees itself" in command("explain", TEXT, "--model", checkpoint("gpt2")[0])[1]


def test_the_real_decoder_says_what_comes_next(command):
    code, out, _ = command("explain", "The capital of France is", "--model", "smollm2")
    assert code == 0
    table = out.split("3. What comes next")[1].split("4. The arithmetic")[0]
    assert re.search(r"ĠParis +7042 +0\.77\d\d", table), table
    assert "2. Where 'is' looks" in out


def test_before_the_last_word_the_next_token_is_that_behind_the_word(command):
    out = command("explain", "The capital of France is", "--model", "smollm2", "--token", "of")[1]
    assert "expects as the next token after 'of', before it reads on" in " ".join(out.split())


def test_help_explains_both_options(command):
    out = command("explain", "--help")[1]
    assert all(part in out for part in ("--target", "--attention", "cross-attention"))


LONG = "the man in the bank said that " * 4 + "river"


@pytest.mark.parametrize("arguments", [[], ["--all"]])
def test_of_a_long_text_the_strongest_keys_are_shown_and_the_sum_of_the_others(command, arguments):
    code, out, _ = command("explain", LONG, "--token", "river", *arguments)
    assert code == 0
    table = out.split("2. Where")[1].split("\n\n")[0]
    weights = [float(weight) for weight in re.findall(r" (0\.\d{4}) ", table)]
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    facts = json.loads(command("explain", LONG, "--token", "river", "--json", "-")[1])
    exact = facts["row"]["weights"]
    assert len(exact) == 31
    if arguments:
        assert weights == pytest.approx(exact, abs=1e-4)
        assert "the other" not in out
    else:
        assert weights[:20] == pytest.approx(sorted(exact, reverse=True)[:20], abs=1e-4)
        assert re.search(r"^the other 11 +0\.\d{4} *$", table, re.MULTILINE)
        assert "For all of them: --all, or --json PATH." in table
        assert out.count("the other 11 ") == 2  # in the row, and in its arithmetic


def test_of_a_long_source_and_target_those_around_the_word_are_shown(command):
    options = ["--model", checkpoint("bart")[0], "--target", "the man in the bank, the river by the bank and the man"]
    code, out, _ = command("explain", "the river bank " * 6, *options, "--token", "river")
    assert code == 0
    assert "other tokens of the source are not shown" in out
    assert "<- explained" in out
