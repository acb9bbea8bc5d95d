"""`regard explain` for decoders and encoder-decoders, by the command line's own `main`."""

import json

import pytest

from lens.explained import checkpoint

TEXT = "the man is in the bank"


@pytest.fixture
def explain(command):
    def call(family, *arguments):
        return command("explain", TEXT, "--model", checkpoint(family)[0], *arguments)

    return call


@pytest.fixture
def explain_json(explain):
    def call(family, *arguments):
        code, out, err = explain(family, *arguments, "--json", "-")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_a_decoder(explain, explain_json):
    facts = explain_json("gpt2")
    assert (facts["model"]["kind"], facts["attention"], facts["word"]["text"]) == ("decoder", "self", "bank")
    assert sum(facts["row"]["weights"]) == pytest.approx(1.0)
    assert "A token of a decoder sees itself" in explain("gpt2")[1]


def test_a_target_and_its_attentions(explain_json):
    arguments = ("bart", "--target", "a river", "--token", "river")
    cross = explain_json(*arguments)
    assert (cross["model"]["kind"], cross["attention"], cross["target"]) == ("encoder-decoder", "cross", "a river")
    assert explain_json(*arguments, "--attention", "cross") == cross
    assert explain_json(*arguments, "--attention", "decoder")["attention"] == "self"
    source = explain_json("bart", "--attention", "encoder")
    assert (source["attention"], source["target"], source["word"]["text"]) == ("self", None, "bank")


def test_without_a_target_it_is_written(explain_json):
    facts = explain_json("bart")
    assert facts["word"]["text"] in facts["target"]


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("gpt2", ["--attention", "cross"], "there is no attention 'cross' in "),
        ("gpt2", ["--target", "x"], "is a decoder and reads one text: leave the target out"),
        ("bart", ["--attention", "both"], "there is no attention 'both' in "),
        ("bart", ["--target", "a man", "--token", "bank"], "It is a word of the source"),
        ("bart", ["--target", "a man", "--compare", "a man"], "for an encoder-decoder's source: attention='encoder'"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(explain, family, arguments, message):
    code, out, err = explain(family, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_help_explains_both_options(command):
    code, out, _ = command("explain", "--help")
    assert code == 0
    assert all(part in out for part in ("--target", "--attention", "cross-attention"))
