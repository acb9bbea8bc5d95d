"""`regard generate` and `regard translate`: small random checkpoints, the real command."""

import os
import signal
import subprocess
import sys

import pytest

import regard
from weights import random_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder for each kind of model."""
    folders = {}
    for family in ("bert", "gpt2", "t5"):
        folders[family] = tmp_path_factory.mktemp(family)
        random_checkpoint(folders[family], family)
    return folders


def test_generate_streams_what_the_library_generates(models, command):
    pretrained = regard.load(models["gpt2"])
    expected = regard.generate(pretrained, "the river", max_new_tokens=20)
    assert command("generate", "the river", "--model", models["gpt2"], "-n", 20) == (0, f"{expected}\n", "")


def test_sampling_is_repeatable_from_its_seed(models, command):
    arguments = ["generate", "the river", "--model", models["gpt2"], "-n", 20, "--temperature", 1.5, "--top-k", 30]
    pretrained = regard.load(models["gpt2"])
    texts = []
    for seed in (1, 1, 2):
        code, out, _ = command(*arguments, "--seed", seed)
        strategy = regard.Sample(temperature=1.5, top_k=30, seed=seed)
        assert (code, out) == (0, regard.generate(pretrained, "the river", max_new_tokens=20, strategy=strategy) + "\n")
        texts.append(out)
    assert texts[0] == texts[1] != texts[2]


def test_a_beam_prints_its_best_texts(models, command):
    strategy = regard.Beam(num_beams=4, num_return_sequences=2, force_words=["bank"], bad_words=["the"])
    expected = regard.generate(regard.load(models["gpt2"]), "the river", max_new_tokens=12, strategy=strategy)
    options = ["--num-beams", 4, "--num-return-sequences", 2, "--force-word", "bank", "--bad-word", "the", "-n", 12]
    code, out, _ = command("generate", "the river", "--model", models["gpt2"], *options)
    assert (code, out.splitlines()) == (0, expected)
    assert len(expected) == 2
    assert all("bank" in text for text in expected)


def test_a_prompt_comes_from_standard_input_and_control_characters_stay_harmless(models):
    ended = subprocess.run(
        [sys.executable, "-m", "regard", "generate", "-", "--model", models["gpt2"], "-n", "5"],
        input=b"the river",
        capture_output=True,
    )
    expected = regard.generate(regard.load(models["gpt2"]), "the river", max_new_tokens=5)
    assert (ended.returncode, ended.stdout.decode()) == (0, f"{expected}\n")
    from regard.cli.generate import _escape

    assert _escape("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"


def test_translate_writes_a_line_for_each_text_in_order(models):
    texts = ["the river bank", "a man", "", "in the loan on a river", "the"] * 3
    pretrained = regard.load(models["t5"])
    single = [
        regard.generate(pretrained, text, max_new_tokens=8, strategy=regard.Beam(num_beams=3)) if text else ""
        for text in texts
    ]
    arguments = ["--num-beams", "3", "-n", "8", "--batch-size", "2"]
    ended = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "-", "--model", models["t5"], *arguments],
        input="\n".join(texts).encode(),
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.decode().splitlines() == [" ".join(text.split("\n")) for text in single]
    assert list(regard.translate(pretrained, texts, strategy=regard.Beam(num_beams=3), max_new_tokens=8)) == single


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("gpt2", ["generate", ""], "prompt is empty: a model continues at least one token"),
        ("gpt2", ["generate", "x", "-n", 1000], "max_new_tokens=64 at the most"),
        ("gpt2", ["generate", "x", "--num-beams", 0], "num_beams=0 must be at least 1"),
        (
            "gpt2",
            ["generate", "x", "--num-beams", 2, "--seed", 1],
            "--num-beams searches and --seed samples: give one of them",
        ),
        ("gpt2", ["generate", "x", "--top-k", 0], "top_k=0 must be at least 1"),
        ("gpt2", ["generate", "x", "--force-word", "a"], "--force-word needs a beam search: give --num-beams N too"),
        ("gpt2", ["generate", "x", "--num-beams", 2, "--force-word", "a", "--bad-word", "a"], "contradict each other"),
        (
            "gpt2",
            ["generate", "x", "--num-beams", 2, "--num-return-sequences", 3],
            "num_return_sequences=3 must be 1 to num_beams=2",
        ),
        ("gpt2", ["generate", "x", "--length", 2], "No such option: --length"),
        ("bert", ["generate", "x"], "is an encoder; an encoder reads text and writes none"),
        ("gpt2", ["translate", "x"], "translating needs an encoder-decoder (Marian, BART, T5)"),
        ("t5", ["translate", "x", "-n", 0], "Invalid value for '--max-new-tokens'"),
    ],
)
def test_invalid_options_end_with_exit_code_2(models, command, model, arguments, message):
    code, out, err = command(*arguments, "--model", models[model])
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_hint_names_the_command(command):
    assert command("translate", "x")[2] == "regard: Missing option '--model'. See regard translate --help\n"


@pytest.mark.parametrize("name", ["generate", "translate"])
def test_help_teaches_and_gives_an_example(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"Example: regard {name}" in " ".join(out.split())


def test_ctrl_c_in_the_middle_leaves_quietly(models):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "regard", "translate", "-", "--model", models["t5"], "--batch-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        process.stdin.write(b"the river bank\n" * 3000)
        process.stdin.close()
        process.stdout.readline()  # it is at work
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        error = process.stderr.read()
        assert (process.wait(30), b"Traceback" in error) == (130, False)
