"""`regard explain` for decoders and encoder-decoders, by the command line's own `main`."""

import json

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


def test_help_explains_both_options(command):
    out = command("explain", "--help")[1]
    assert all(part in out for part in ("--target", "--attention", "cross-attention"))
