"""`regard watch`: the real command on the default model and on small random checkpoints."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import regard
from regard.lens.text import run
from terminals import on_a_terminal
from weights import RIVER, minilm, random_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder for each kind of model."""
    folders = {}
    for family in ("bert", "gpt2", "mistral", "bart", "t5"):
        folders[family] = tmp_path_factory.mktemp(family)
        random_checkpoint(folders[family], family)
    return folders


def run_json(command, *arguments):
    code, out, err = command("watch", *arguments, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_every_number_is_the_definition_s(command):
    """All heads of two layers of the default model, every matrix written out in float64."""
    overview = run_json(command, RIVER, "--layers", "0,1")
    assert overview["tokens"][6:8] == ["man", "fishing"]
    assert [layer["path"] for layer in overview["layers"]] == [f"blocks.{n}.attention" for n in range(2)]
    recording = run.run(RIVER, minilm(), [0, 1]).recording
    position = torch.arange(14.0, dtype=torch.float64)
    received = torch.zeros(14, dtype=torch.float64)
    for layer in overview["layers"]:
        m = recording[layer["path"]]
        weights = regard.steps(m.q.double(), m.k.double(), m.v.double()).weights[0]
        received += weights.sum((0, 1)) / 14 / 12 / 2
        assert layer["error"] < 1e-5
        assert layer["verified"] is True
        for head, w in zip(layer["heads"], weights, strict=True):
            mean = w @ position
            spread = (w @ position**2 - mean**2).sqrt()
            assert head["entropy"] == pytest.approx(float(-(w * w.log()).sum(-1).mean()), abs=1e-4)
            assert head["distance"] == pytest.approx(float((position - mean).mean()), abs=1e-4)
            assert head["spread"] == pytest.approx(float(spread.mean()), abs=1e-4)
            assert head["scores"]["attention sink"] == pytest.approx(float(w[1:, 0].mean()), abs=1e-4)
            words = w[1:13, 1:13].clone().fill_diagonal_(-1.0)
            pair = head["pair"]
            assert pair["weight"] == pytest.approx(float(words.max()), abs=1e-4)
            assert words[pair["query_index"] - 1, pair["key_index"] - 1] == pytest.approx(pair["weight"], abs=1e-4)
            assert (pair["query"], pair["key"]) == tuple(
                overview["tokens"][pair[side]] for side in ("query_index", "key_index")
            )
    assert overview["layers"][0]["heads"][2]["head_type"] == "previous token"
    (most_attended,) = overview["most_attended"]
    for word in most_attended["words"]:
        assert word["received_share"] == pytest.approx(float(received[word["token_index"]].sum()), abs=1e-5)
    assert sum(word["received_share"] for word in most_attended["words"]) == pytest.approx(1.0)
    assert [word["word"] for word in most_attended["words"] if not word["is_text"]] == ["[CLS]", "[SEP]"]


def test_the_table_shows_what_the_json_says(command):
    code, out, err = command("watch", RIVER, "--layers", "0")
    assert (code, err) == (0, "")
    assert "blocks.0.attention" in out
    assert "blocks.1.attention" not in out
    lines = [line.split() for line in out.splitlines()]
    assert ["4", "mixed", "2.03", "0.16", "+0.4", "±", "4.0", "0.85", "bank", "->", "river"] in lines
    assert "What it looked at most" not in out


def test_a_long_file_gets_a_report(command, tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(f"{RIVER} " * 8, encoding="utf-8")
    code, out, err = command("watch", "--file", path, "--layers", "0")
    assert (code, err) == (0, "")
    assert "What it looked at most" in out
    overview = run_json(command, "--file", path, "--layers", "0")
    shares = [word for word in overview["most_attended"][0]["words"] if word["is_text"] and word["word"] != "."]
    first = shares[0]
    assert f"{first['word']} " in out.split("What it looked at most")[1]
    assert f"{100 * first['received_share']:.1f} %" in out


def test_a_byte_order_mark_is_no_part_of_the_text(models, tmp_path, command):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfthe river")
    overview = run_json(command, "--file", path, "--model", models["gpt2"])
    assert overview["text"] == "the river"
    assert overview == run_json(command, "the river", "--model", models["gpt2"])


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral"])
def test_every_family_of_one_stack(models, command, family):
    overview = run_json(command, "the river bank, a bank", "--model", models[family])
    assert len(overview["layers"]) == 3
    assert all(layer["error"] < 1e-5 for layer in overview["layers"])
    assert {layer["kind"] for layer in overview["layers"]} == {"self"}
    assert overview["target"] is None
    code, out, _ = command("watch", "the river bank, a bank", "--model", models[family])
    assert code == 0
    assert ("causal()" in out, "window(4)" in out) == (family == "gpt2", family == "mistral")


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_encoder_decoder_has_three_attentions(models, command, family):
    overview = run_json(command, "the river bank", "--model", models[family])
    assert [(most_attended["stack"], most_attended["kind"]) for most_attended in overview["most_attended"]] == [
        ("encoder.blocks", "self"),
        ("decoder.blocks", "self"),
        ("decoder.blocks", "cross"),
    ]
    assert len(overview["layers"]) == 3 + 2 + 2
    assert all(layer["error"] < 1e-5 for layer in overview["layers"])
    cross = [layer for layer in overview["layers"] if layer["kind"] == "cross"]
    for layer in cross:
        assert (layer["num_queries"], layer["num_keys"]) == (len(overview["target_tokens"]), len(overview["tokens"]))
        for head in layer["heads"]:
            assert head["distance"] is None
            assert head["scores"]["previous token"] is None
            assert head["pair"]["key"] == overview["tokens"][head["pair"]["key_index"]]
    sums = [
        sum(word["received_share"] for word in most_attended["words"]) for most_attended in overview["most_attended"]
    ]
    assert sums == pytest.approx([1.0] * 3)
    code, out, _ = command("watch", "the river bank", "--model", models[family])
    assert code == 0
    assert all(f" {stack} " in out for stack in ("encoder", "decoder", "cross"))


def test_layers_choose(models, command):
    paths = [
        layer["path"]
        for layer in run_json(command, "the river", "--model", models["gpt2"], "--layers", "2,0-0")["layers"]
    ]
    assert paths == ["blocks.0.attention", "blocks.2.attention"]
    both = run_json(command, "the river", "--model", models["bart"], "--layers", "2")
    assert [layer["path"] for layer in both["layers"]] == ["encoder.blocks.2.attention"]


@pytest.mark.parametrize(("said", "numbers"), [("0", [0]), ("0,3-5", [0, 3, 4, 5]), (" 2 , 1-2", [1, 2]), ("007", [7])])
def test_lists_of_layers(said, numbers):
    assert run.parse_layers(said) == numbers


@pytest.mark.parametrize("said", ["", ",", "1-", "-1", "3-1", "a", "1.5", "0,,2", "1-2-3", "²", "0-99999"])
def test_what_is_no_list_of_layers(said):
    with pytest.raises(regard.InputError, match="numbers from 0 and ranges of them, such as 0,3-5"):
        run.parse_layers(said)


def test_a_recording_is_kept(command, tmp_path):
    path = tmp_path / "seen.safetensors"
    assert command("watch", RIVER, "--save", path, "--layers", "1,3")[0] == 0
    back = regard.Recording.load(path)
    assert list(back) == ["blocks.1.attention", "blocks.3.attention"]
    theirs = run.run(RIVER, minilm(), [1, 3]).recording
    for name in back:
        assert torch.equal(back[name].entropy(), theirs[name].entropy())
        assert back[name].tokens[0][6:8] == ["man", "fishing"]
        assert back[name].verified


def test_json_to_a_file_carries_the_facts(command, tmp_path):
    path = tmp_path / "facts.json"
    code, out, _ = command("watch", RIVER, "--layers", "3", "--json", path)
    assert code == 0
    assert "The heads" in out
    assert json.loads(path.read_text(encoding="utf-8")) == run_json(command, RIVER, "--layers", "3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a TEXT or --file PATH, one of them"),
        ([RIVER, "--file", "x"], "give a TEXT or --file PATH, one of them"),
        (["--file", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["--file", "/"], "/ cannot be read: Is a directory"),
        (["--file", "BYTES"], "is no UTF-8 text: byte 2 is 0xff"),
        (["--file", "EMPTY"], "the text is empty; write a sentence"),
        ([" "], "the text is empty; write a sentence"),
        (["\x01\x02"], "'\\x01\\x02' has no tokens"),
        (["word " * 600], "the text has 602 tokens, and sentence-transformers/all-MiniLM-L6-v2 has positions for 512"),
        ([RIVER, "--layers", "6"], "there is no layer 6: this model has layers 0 to 5"),
        ([RIVER, "--layers", "4-9"], "there is no layer 6: this model has layers 0 to 5"),
        ([RIVER, "--layers", "a"], "layers 'a': numbers from 0 and ranges of them, such as 0,3-5"),
        ([RIVER, "--save", "/no/such/folder/x"], "cannot write '/no/such/folder/x': there is no folder"),
        ([RIVER, "--save", "/dev/null"], "cannot write '/dev/null': it is no file"),
        ([RIVER, "--layers", "0", "--json", "/no/such/folder/x"], "cannot write '/no/such/folder/x': No such file"),
        ([RIVER, "--model", "no/such-model"], "'no/such-model' is not a folder here"),
        ([RIVER, "--head", "1"], "No such option: --head"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, tmp_path, arguments, message):
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    (tmp_path / "empty").write_text("")
    files = {"BYTES": tmp_path / "bytes", "EMPTY": tmp_path / "empty"}
    code, out, err = command("watch", *(files.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_what_cannot_be_written_is_said_before_the_model_is_read(command):
    assert "cannot write" in command("watch", RIVER, "--save", "/no/folder/x", "--model", "no/such-model")[2]
    assert "numbers from 0" in command("watch", RIVER, "--layers", "x", "--model", "no/such-model")[2]


def test_help_teaches(command):
    code, out, _ = command("watch", "--help")
    assert code == 0
    for option in ("TEXT", "--file", "--model", "--layers", "--save", "--json"):
        assert option in out
    assert "Example: regard watch" in out
    assert "watch" in command("--help")[1]


@pytest.mark.parametrize(
    "text",
    [
        "a bank 🙂",
        "bank \x1b[31m \u202e x",
        "<b>[bold]</b> &amp;",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("🙂", "שלום עולם", "数学 e\u0301", ".")),
    ],
)
def test_any_text_is_shown_without_steering_the_terminal(command, text):
    code, out, _ = command("watch", text, "--layers", "0")
    assert code == 0
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize("columns", [60, pytest.param(80, marks=pytest.mark.slow), 200])
def test_no_line_is_wider_than_the_terminal(command, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = command("watch", f"{RIVER} " * 6, "--layers", "0,5")
    assert max(map(len, out.splitlines())) <= columns


def test_on_a_terminal_a_long_file_shows_progress(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(f"{RIVER} " * 8, encoding="utf-8")
    code, shown = on_a_terminal("watch", "--file", path, "--layers", "0")
    assert code == 0
    assert b"running the model" in shown
    assert b"summarizing layers" in shown
    assert b"\x1b[1;36mThe heads" in shown


def test_ctrl_c_leaves_no_file_and_no_traceback(tmp_path):
    path = tmp_path / "seen.safetensors"
    with subprocess.Popen(
        [sys.executable, "-m", "regard", "watch", f"{RIVER} " * 35, "--save", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while "_safetensors_rust" not in maps.read_text():  # it is about to read the model
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
        assert (process.returncode, b"Traceback" in error) == (130, False)
    assert list(tmp_path.iterdir()) == []
