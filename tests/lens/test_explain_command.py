"""`regard explain` for decoders and encoder-decoders, by the command line's own `main`."""

import json

import pytest

from regard.cli import main
from weights import random_checkpoint

TEXT = "the man is in the bank"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    explanation = {family: tmp_path_factory.mktemp(family) for family in ("gpt2", "bart")}
    for family, folder in explanation.items():
        random_checkpoint(folder, family)
    return explanation


@pytest.fixture
def command(monkeypatch, capsys, as_a_user_runs_it):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["regard", "explain", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return call


def run_json(command, *arguments):
    code, out, err = command(*arguments, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_decoder(folders, command):
    explanation = run_json(command, TEXT, "--model", folders["gpt2"])
    assert (explanation["model"]["kind"], explanation["attention"], explanation["word"]["text"]) == (
        "decoder",
        "self",
        "bank",
    )
    assert sum(explanation["row"]["weights"]) == pytest.approx(1.0)
    assert "A token of a decoder sees itself" in command(TEXT, "--model", folders["gpt2"])[1]


def test_a_target_and_its_attentions(folders, command):
    arguments = (TEXT, "--model", folders["bart"], "--target", "a river", "--token", "river")
    cross = run_json(command, *arguments)
    assert (cross["model"]["kind"], cross["attention"], cross["target"]) == ("encoder-decoder", "cross", "a river")
    assert run_json(command, *arguments, "--attention", "cross") == cross
    assert run_json(command, *arguments, "--attention", "decoder")["attention"] == "self"
    source = run_json(command, TEXT, "--model", folders["bart"], "--attention", "encoder")
    assert (source["attention"], source["target"], source["word"]["text"]) == ("self", None, "bank")


def test_without_a_target_it_is_written(folders, command):
    explanation = run_json(command, TEXT, "--model", folders["bart"])
    assert explanation["word"]["text"] in explanation["target"]


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
def test_bad_input_is_named_with_exit_code_2(folders, command, family, arguments, message):
    code, out, err = command(TEXT, "--model", folders[family], *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_help_teaches_them(command):
    code, out, _ = command("--help")
    assert code == 0
    assert "--target" in out
    assert "--attention" in out
    assert "cross-attention" in out
