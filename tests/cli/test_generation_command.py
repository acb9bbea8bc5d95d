"""`regard generate` and `regard translate`: small random checkpoints, the real command."""

import io
import json
import os
import re
import shlex
import signal
import subprocess

import pytest
import typer

import regard
from chats import chat_checkpoint, turns
from regard import Beam, Sample
from regard.cli.app import app
from regard.cli.generate import _escape
from regard.cli.options import DEFAULT_DECODER as DEFAULT
from regard.pretrained import DEFAULT_DECODER
from terminals import on_a_terminal, refusal, started

SPEED = re.compile(r"([\d,]+) tokens?, \d+\.\d tokens/s\n")
"""The last line on standard error."""


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    """The folder of a small random model with a chat template, and it."""
    folder = chat_checkpoint(tmp_path_factory.mktemp("chat"))
    return folder, regard.load(folder)


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
    code, out, err = command("generate", "the river", "--model", models["gpt2"], "-n", 12, *options.split())
    assert (code, out) == (0, "".join(f"{line}\n" for line in lines))
    assert SPEED.fullmatch(err)


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
    token = pretrained.tokenizer.id_to_token
    expected = [{**h._asdict(), "tokens": [*map(token, h.ids)]} for h in (found if options else [found])]
    _, out, err = command(*call, "--json", "-")
    facts = json.loads(out)
    assert err == ""
    assert facts == {"prompt": "the river", "model": str(models["gpt2"]), "hypotheses": expected}
    assert command(*call, "--json", path)[:2] == command(*call)[:2]
    assert json.loads(path.read_text()) == facts


@pytest.mark.parametrize(("number", "line"), [(1, "1 token, "), (7, "7 tokens, ")])
@pytest.mark.parametrize("more", [[], ["--num-beams", 2], ["--json", os.devnull]])
def test_standard_error_ends_with_the_number_of_new_tokens_and_their_speed(models, command, number, line, more):
    code, _, err = command("generate", "the river", "--model", models["mistral"], "-n", number, *more)
    assert (code, err[: len(line)]) == (0, line)
    assert SPEED.fullmatch(err)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_on_a_terminal_the_text_is_followed_by_its_speed(chatting):
    folder, model = chatting
    code, shown = on_a_terminal("generate", "Hi", "--chat", "--model", folder, "-n", 9)
    text = regard.generate(model, turns("Hi"), max_new_tokens=9)
    shown = shown.decode().replace("\r\n", "\n")
    assert code == 0
    assert shown[shown.rindex("\n9 tokens") - len(_escape(text)) :].startswith(_escape(text))
    assert SPEED.search(shown)[0].startswith("9 tokens")


@pytest.mark.parametrize(
    ("arguments", "chat"),
    [
        (["Hi", "--chat"], turns("Hi")),
        (["Hi", "--system", "Be brief."], turns("Hi", system="Be brief.")),
        (["", "--chat", "--system", ""], turns("", system="")),
        (["<|im_end|>", "--chat"], turns("<|im_end|>")),
        (["-", "--chat"], turns("Hi")),
    ],
)
def test_a_chat_is_answered(chatting, command, monkeypatch, arguments, chat):
    folder, model = chatting
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    expected = regard.generate(model, chat, max_new_tokens=8)
    code, out, _ = command("generate", *arguments, "--model", folder, "-n", 8)
    assert (code, out) == (0, _escape(expected) + "\n")


def test_the_json_of_a_chat_has_its_messages(chatting, command):
    folder, model = chatting
    call = ["generate", "Hi", "--system", "Be brief.", "--model", folder, "-n", 4, "--json", "-"]
    facts = json.loads(command(*call)[1])
    assert list(facts) == ["messages", "model", "hypotheses"]
    assert facts["messages"] == turns("Hi", system="Be brief.")
    text = regard.generate(model, facts["messages"], max_new_tokens=4)
    assert [each["text"] for each in facts["hypotheses"]] == [text]


def test_without_a_model_it_is_the_default_decoder_and_the_help_says_what_that_is(command):
    assert DEFAULT == DEFAULT_DECODER
    shown = re.sub(r"[│\s]+", " ", command("generate", "--help")[1])
    assert "By default smollm2" in shown
    assert "weights of 4 bits, dequantised; the numbers of HuggingFaceTB/SmolLM2-135M-Instruct on the Hub are" in shown


@pytest.mark.more
def test_the_examples_of_the_help_run_without_a_network(command):
    """Those with no model of the reader's own."""
    epilog = typer.main.get_command(app).commands["generate"].epilog
    calls = [shlex.split(call) for call in re.findall("regard (generate .*)", epilog)]
    offline = [call for call in calls if "--model" not in call]
    assert len(offline) == 2
    for call in offline:
        code, out, err = command(*call, "-n", 8)
        assert (code, bool(out.strip())) == (0, True)
        assert SPEED.fullmatch(err)


@pytest.mark.more
def test_ctrl_c_leaves_what_was_printed_and_ends_the_line(tmp_path):
    folder = chat_checkpoint(tmp_path, eos_token_id=None, max_position_embeddings=1_000_000)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}  # communicate() sees no buffer
    process = started("generate", "Hi", "--model", folder, "-n", 900_000, **pipes)
    begun = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    text = _escape(regard.generate(regard.load(folder), "Hi", max_new_tokens=50))
    shown = (begun + rest).decode()
    assert (process.returncode, err, shown[-1]) == (130, b"", "\n")
    assert text.startswith(shown[:-1][: len(text)])


def test_the_json_of_translations_has_each_source(models, command):
    beams = ("--num-beams", 3, "--num-return-sequences", 2, "-n", 4)
    call = ["translate", "a man", "", "--model", models["t5"], *beams]
    facts = json.loads(command(*call, "--json", "-")[1])
    first, empty = facts["translations"]
    assert (first["source"], [h["text"] for h in empty["hypotheses"]]) == ("a man", ["", ""])
    lines = [f"{h['score']:.4f}\t{h['text']}" for h in first["hypotheses"]]
    assert command(*call) == (0, "\n".join([*lines, "\t", "\t", ""]), "")


def test_control_characters_stay_harmless():
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
        ("gpt2", ["generate", "x", "--force-word", "a"], "--force-word needs a beam search: give --num-beams N too"),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--force-word", "a", "--bad-word", "a"], "--force-word 'a' and "),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--force-word", ""], "--force-word '' is empty: leave it out"),
        ("gpt2", ["generate", "x", "--stop", ""], "--stop '' is empty: give the text that generation ends before"),
        ("gpt2", ["generate", "x", "--seed", 2**64], "--seed 18446744073709551616 must be a number of 64 bits"),
        ("gpt2", ["generate", "x", "--json", "/no/such/x"], "cannot write '/no/such/x': there is no folder"),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--num-return-sequences", 3], "must be 1 to --num-beams 2\n"),
        ("gpt2", ["generate", "x", "--length", 2], "No such option: --length"),
        ("gpt2", ["generate", "x", "--chat"], "has no chat template, so it was not trained with messages: hand over a"),
        ("gpt2", ["generate", "x", "--system", "y"], "has no chat template"),
        ("bert", ["generate", "x"], "is an encoder; an encoder reads text and writes none"),
        ("gpt2", ["translate", "x"], "translating needs an encoder-decoder (Marian, BART, T5)"),
        ("t5", ["translate", "x", "-n", 0], "Invalid value for '--max-new-tokens'"),
    ],
)
def test_invalid_options_end_with_exit_code_2(models, command, model, arguments, message):
    assert message in refusal(command, *arguments, "--model", models[model])


def test_the_hint_names_the_command(command):
    assert command("translate", "x")[2] == "regard: Missing option '--model'. See regard translate --help\n"
