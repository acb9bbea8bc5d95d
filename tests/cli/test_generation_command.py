"""`regard generate` and `regard translate`: small random checkpoints, the real command."""

import io
import json

import pytest

import regard
from regard import Beam, Sample
from terminals import refusal


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ("", None),
        ("--temperature 0 --top-k 3", None),
        ("--temperature 1.5 --top-k 30 --top-p 0.9 --seed 2", Sample(temperature=1.5, top_k=30, top_p=0.9, seed=2)),
        ("--min-p 0.01 --repetition-penalty 1.4 --seed 1", Sample(min_p=0.01, repetition_penalty=1.4, seed=1)),
        ("--num-beams 3 --length-penalty -1", Beam(num_beams=3, length_penalty=-1.0)),
        (
            "--num-beams 4 --num-return-sequences 2 --force-word bank --bad-word the",
            Beam(num_beams=4, num_return_sequences=2, force_words=["bank"], bad_words=["the"]),
        ),
    ],
)
def test_generate_prints_what_the_library_generates(models, command, options, strategy):
    chosen = {} if strategy is None else {"strategy": strategy}
    if getattr(strategy, "num_return_sequences", 1) > 1:
        chosen["return_hypotheses"] = True
    expected = regard.generate(regard.load(models["gpt2"]), "the river", max_new_tokens=12, **chosen)
    lines = [expected] if isinstance(expected, str) else [f"{h.score:.4f}\t{h.text}" for h in expected]
    printed = command("generate", "the river", "--model", models["gpt2"], "-n", 12, *options.split())
    assert printed == (0, "".join(f"{line}\n" for line in lines), "")


def test_a_prompt_comes_from_standard_input_and_ends_before_a_stop_string(models, command, monkeypatch):
    full = regard.generate(regard.load(models["gpt2"]), "the river", max_new_tokens=64 - 5)
    for options, expected in (([], full), (["--stop", full[9:12]], full[: full.find(full[9:12])])):
        monkeypatch.setattr("sys.stdin", io.StringIO("the river"))
        code, out, _ = command("generate", "-", "--model", models["gpt2"], *options)
        assert (code, out) == (0, f"{expected}\n")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ("", {}),
        ("--num-beams 3 --num-return-sequences 2", {"strategy": Beam(num_beams=3, num_return_sequences=2)}),
    ],
)
def test_the_json_has_each_text_with_its_tokens_and_its_score(models, command, tmp_path, options, arguments):
    pretrained, path = regard.load(models["gpt2"]), tmp_path / "facts.json"
    call = ["generate", "the river", "--model", models["gpt2"], "-n", 6, *options.split()]
    found = regard.generate(pretrained, "the river", max_new_tokens=6, return_hypotheses=True, **arguments)
    expected = [
        {**h._asdict(), "tokens": [pretrained.tokenizer.id_to_token(token) for token in h.ids]}
        for h in (found if options else [found])
    ]
    facts = json.loads(command(*call, "--json", "-")[1])
    assert facts == {"prompt": "the river", "model": str(models["gpt2"]), "hypotheses": expected}
    assert command(*call, "--json", path) == command(*call)
    assert json.loads(path.read_text()) == facts


def test_the_json_of_translations_has_each_source(models, command):
    beams = ("--num-beams", 3, "--num-return-sequences", 2, "-n", 4)
    call = ["translate", "a man", "", "--model", models["t5"], *beams]
    facts = json.loads(command(*call, "--json", "-")[1])
    first, empty = facts["translations"]
    assert (first["source"], [h["text"] for h in empty["hypotheses"]]) == ("a man", ["", ""])
    lines = [f"{h['score']:.4f}\t{h['text']}" for h in first["hypotheses"]]
    assert command(*call) == (0, "\n".join([*lines, "\t", "\t", ""]), "")


def test_control_characters_stay_harmless():
    from regard.cli.generate import _escape

    assert _escape("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"


def test_translate_writes_a_line_for_each_text_in_order(models, command, monkeypatch):
    texts = ["the river bank", "a man", "", "in the loan on a river", "the"] * 4  # more than are sorted together
    pretrained, beam = regard.load(models["t5"]), Beam(num_beams=3)
    single = {text: regard.generate(pretrained, text, max_new_tokens=8, strategy=beam) for text in set(texts) - {""}}
    expected = [single.get(text, "") for text in texts]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts)))
    code, out, _ = command("translate", "-", "--model", models["t5"], "--num-beams", 3, "-n", 8, "--batch-size", 2)
    assert (code, out.splitlines()) == (0, [" ".join(text.split("\n")) for text in expected])
    assert list(regard.translate(pretrained, texts, strategy=beam, max_new_tokens=8)) == expected


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("gpt2", ["generate", ""], "prompt is empty: a model continues at least one token"),
        ("gpt2", ["generate", "x", "-n", 1000], "--max-new-tokens 64 at the most"),
        ("gpt2", ["generate", "x", "--num-beams", 0], "regard: --num-beams 0 must be at least 1"),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--seed", 1], "--num-beams searches and --seed samples: give one"),
        ("gpt2", ["generate", "x", "--top-k", 0], "regard: --top-k 0 must be at least 1\n"),
        ("gpt2", ["generate", "x", "--force-word", "a"], "--force-word needs a beam search: give --num-beams N too"),
        (
            "gpt2",
            ["generate", "x", "--num-beams", 2, "--force-word", "a", "--bad-word", "a"],
            "--force-word 'a' and --bad-",
        ),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--force-word", ""], "--force-word '' is empty: leave it out"),
        ("gpt2", ["generate", "x", "--stop", ""], "--stop '' is empty: give the text that generation ends before"),
        ("gpt2", ["generate", "x", "--seed", 2**64], "--seed 18446744073709551616 must be a number of 64 bits"),
        ("gpt2", ["generate", "x", "--json", "/no/such/x"], "cannot write '/no/such/x': there is no folder"),
        (
            "gpt2",
            ["generate", "x", "--num-beams", 2, "--num-return-sequences", 3],
            "-sequences 3 must be 1 to --num-beams 2\n",
        ),
        ("gpt2", ["generate", "x", "--length", 2], "No such option: --length"),
        ("bert", ["generate", "x"], "is an encoder; an encoder reads text and writes none"),
        ("gpt2", ["translate", "x"], "translating needs an encoder-decoder (Marian, BART, T5)"),
        ("t5", ["translate", "x", "-n", 0], "Invalid value for '--max-new-tokens'"),
    ],
)
def test_invalid_options_end_with_exit_code_2(models, command, model, arguments, message):
    assert message in refusal(command, *arguments, "--model", models[model])


def test_the_hint_names_the_command(command):
    assert command("translate", "x")[2] == "regard: Missing option '--model'. See regard translate --help\n"
