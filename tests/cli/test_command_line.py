"""The command line: in a process of its own where that matters, else by its own `main`."""

import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

import regard
from regard.cli.app import app
from regard.cli.options import import_torch
from regard.training.defaults import TASK_DEFAULTS
from terminals import on_a_terminal, printed, refusal, started
from weights import PIZZA, RIVER

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


def test_json_to_a_file_carries_the_facts(tmp_path, command):
    path = tmp_path / "facts.json"
    arguments = ["explain", PIZZA, "--token", "it", "--layer", 3, "--head", 1, "--compare", "it is good"]
    out = printed(command, *arguments, "--json", path)
    assert "1. The tokens" in out
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert (facts["layer"], facts["head"], facts["word"]["token_index"]) == (3, 1, 9)
    assert facts["row"]["weights"][facts["queries"]["tokens"].index("pizza")] == pytest.approx(0.701, abs=5e-4)
    assert len(facts["comparisons"]) == 1
    assert json.loads(command(*arguments, "--json", "-")[1]) == facts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "Usage explain see watch effect check train embed --install-completion"),
        ("--help", "Usage explain see watch effect check train embed"),
        ("explain -h", "--token --layer --head Example:"),
        ("effect --help", "Ctrl-C"),
        ("check --help", "attention.py: undetermined"),
        ("live --help", "127.0.0.1 secret Ctrl-C encrypted"),
        ("--version", f"regard {regard.__version__}\n"),
    ],
)
def test_help_teaches(command, arguments, words):
    code, out, err = command(*arguments.split())
    assert code == (0 if arguments else 2)
    assert [word for word in words.split() if word not in out + err] == []


@pytest.mark.parametrize("name", list(typer.main.get_command(app).commands))
def test_no_help_loses_a_part(command, name):
    """What rich takes for the name of a style, such as "[n]", it leaves out."""

    def letters(text):
        return re.sub(r"[^\w\[\]]+", "", text)

    shown, known = letters(command(name, "--help")[1]), typer.main.get_command(app).commands[name]
    parts = [known.help, known.epilog, *(param.help or "" for param in known.params)]
    parts += [option for param in known.params for option in param.opts if option.startswith("-")]
    assert [part for part in parts if letters(part) not in shown] == []
    assert known.epilog.startswith("Example")


WITHOUT_TORCH = """
import sys
from regard.cli import main

codes = set()
for call in sys.argv[1:]:
    sys.argv = ["regard", *call.split()]
    try:
        main()
    except SystemExit as ended:
        codes.add(ended.code)
assert "torch" not in sys.modules
(code,) = codes
sys.exit(code)
"""


def without_torch(*calls, **environment):
    """The exit code, output and messages of commands, one after the other in a process that may not import PyTorch."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *calls]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("words", "values"),
    [
        pytest.param("regard tra", ["train", "translate"], marks=pytest.mark.more),
        pytest.param("regard train ", ["translate", "lm", "mlm", "caption"], marks=pytest.mark.more),
        ("regard train lm --strategy ", ["auto", "ddp", "fsdp"]),
        pytest.param("regard train lm --precision bf", ["bf16-mixed", "bf16-true"], marks=pytest.mark.more),
        pytest.param("regard embed x.txt --pooling ", ["mean", "cls", "none"], marks=pytest.mark.more),
        pytest.param("regard generate --num-b", ["--num-beams"], marks=pytest.mark.more),
    ],
)
def test_the_shell_completes_commands_options_and_values(words, values):
    place = str(words.count(" "))
    ended = without_torch("", _REGARD_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert ended == (0, "\n".join(values) + "\n", "")


REFUSED = {
    "train nonsense --out x": "'nonsense' is not one of 'translate', 'lm', 'mlm', 'caption'",
    "train lm --out x --strategy y": "'y' is not one of 'auto', 'ddp'",
    "train lm --out x --max-steps 0": "--max-steps 0: it must be at",
    "embed missing.txt --out v.npy": "missing.txt cannot be read: No such",
    "embed - --out v.npy --shard 5/2": "regard: --shard 5/2: it is I/N, share I of N",
    "embed - --out v.npy --pooling x": "'x' is not one of 'mean', 'cls'",
    "embed - --out v.pt": "v.pt: vectors are written to .parquet, .npy",
    "generate x --model y --top-k 0": "regard: --top-k 0 must be at least 1",
    "check a.py:f --timeout 0": "--timeout 0: give a number of seconds",
    "explain x --head 3.x": "--head 3.x: LAYER.HEAD, such as 3.1,4.0",
    "explain x --layer a": "--layer a: numbers from 0",
    "explain x --layer 0,1": "--layer 0,1: one head is shown",
    "explain x --attention other": "--attention other: it is cross, decoder or encoder",
    "explain x --attention encoder --target y": "--target",
    "watch x --head 1.5.2": "--head 1.5.2: LAYER.HEAD",
    "watch x --layer 1-": "--layer 1-: numbers from 0",
    "watch x --save /no/such/folder/y": "cannot write '/no/such/folder/y'",
    "watch x --file y": "give a TEXT or --file PATH, one of them",
    "see x --head 3.x": "--head 3.x: LAYER.HEAD",
    "see x --layer -1": "--layer -1: numbers from 0",
    "see x --max-size 0.1": "--max-size",
    "see x --out /no/such/folder/y": "cannot write '/no/such/folder/y'",
    "see x --out y --json y": "--out and --json both name y",
    "see --recording x --model y": "--recording shows a file: --model",
}


def test_what_no_model_is_needed_to_refuse_does_not_wait_for_pytorch():
    code, out, err = without_torch(*REFUSED)
    assert (code, out) == (2, "")
    for call, line in zip(REFUSED, err.splitlines(), strict=True):
        assert REFUSED[call] in line, call


@pytest.mark.parametrize("task", TASK_DEFAULTS)
def test_the_help_of_train_shows_the_default_of_every_option(command, task):
    shown = re.sub(r"[│╭╰─╮╯\s]+", " ", command("train", "--help")[1])
    for name, default in TASK_DEFAULTS[task].items():
        assert re.search(rf"--{name.replace('_', '-')} .*?default: [^]]*({task} )?{default:g}\b", shown), name


@pytest.mark.parametrize("command_name", ["explain", "see", "watch"])
def test_a_text_from_standard_input(command, monkeypatch, here, command_name):
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + RIVER + "\n"))
    out = printed(command, command_name, "-")
    assert RIVER in (Path("regard.html").read_text(encoding="utf-8") if command_name == "see" else out)


@pytest.mark.parametrize(
    ("arguments", "way"),
    [
        (["explain", "in.txt"], "regard explain - < in.txt"),
        (["see", "in.txt"], "--file in.txt"),
        (["effect", "in.txt"], "regard effect - < in.txt"),
        (["watch", "in.txt"], "--file in.txt"),
        (["translate", "in.txt", "--model", "none"], "regard translate - < in.txt"),
    ],
)
def test_the_name_of_a_file_is_no_text(command, here, arguments, way):
    Path("in.txt").write_text("the river")
    assert refusal(command, *arguments) == f"regard: in.txt is a file here, and was given as a text: {way}\n"


def test_a_closed_standard_input_is_empty(command, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert refusal(command, "explain", "-") == "regard: the text is empty; write a sentence\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", ""], "regard: the text is empty; write a sentence\n"),
        (["explain", RIVER, "--token", "loan"], "regard: --token loan: the word 'loan' is not in the text"),
        (["explain", RIVER, "--layer", 6], "regard: --layer 6: there is no layer 6: this model has layers 0 to 5\n"),
        (["explain", RIVER, "--head", "9.1"], "regard: --head 9.1: there is no layer 9: this model has layers 0 to 5"),
        (["explain", RIVER, "--head", "3.12"], "--head 3.12: there is no head 12: this model has heads 0 to 11\n"),
        (["explain", RIVER, "--compare", "loan"], "--compare: the texts share no word; the first one's are: Write, a"),
        (["explain", RIVER, "--compare", ""], "--compare: the text is empty"),
        (["explain", RIVER, "--attention", "cross"], "--attention cross: there is no attention 'cross'"),
        (["explain", RIVER, "--target", "x"], "--target x: sentence-transformers/all-MiniLM-L6-v2 is an encoder"),
        (["explain", "word " * 600], "regard: the text has 602 tokens"),
        (["explain", RIVER, "--model", "no/such-model"], "'no/such-model' is not a folder here"),
        (["explain", RIVER, "--json", "/no/such/folder/x"], "cannot write '/no/such/folder/x': there is no folder"),
        (["explain", RIVER, "--json", "/dev/full"], "regard: cannot write '/dev/full': No space left on device\n"),
        (["explain", "\udce9 half a character"], "is not valid text"),
        (["explain", "\x01\x02"], "'\\x01\\x02' has no tokens"),
        (["explain"], "Missing argument"),
        (["explain", RIVER, "--later", 2], "No such option: --later"),
        (["explain", "a", "b"], "(b): a text of several words stands in quotes. See regard explain --help\n"),
        (["zzz"], "No such command 'zzz'. See regard --help\n"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, arguments, message):
    assert message in refusal(command, *arguments)


FULL = "regard: cannot write the output: No space left on device"


@pytest.mark.parametrize("buffering", [1, -1], ids=["while-it-runs", "when-it-ends"])
def test_an_output_that_cannot_be_written_is_told(command, monkeypatch, buffering):
    with open("/dev/full", "w", buffering=buffering) as full:
        monkeypatch.setattr("sys.stdout", full)
        assert command("--version") == (2, "", f"{FULL}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--help | :", 0, ""),
        ("zzz 2>&-", 2, ""),
        pytest.param("--version > /dev/full", 2, f"{FULL}\n", marks=pytest.mark.more),
        pytest.param("check --list | :", 0, "", marks=pytest.mark.more),
        pytest.param("--version >&-", 0, "", marks=pytest.mark.more),
        pytest.param("zzz 2> /dev/full", 2, "", marks=pytest.mark.more),
        pytest.param("zzz 2>&1 | :", 2, "", marks=pytest.mark.more),
    ],
)
def test_streams_that_break_are_no_traceback(arguments, code, message):
    script = f'"$0" -m regard {arguments}; exit "${{PIPESTATUS[0]}}"'
    ended = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, message)


@pytest.mark.parametrize("sentence", ["🙂🙂", "العربية", "bank \x1b[31m \u202e x", ".", "<b>[bold]</b> &amp;"])
def test_any_text_gets_a_right_answer(command, sentence):
    code, out, _ = command("explain", sentence, "--json", "-")
    assert (code, json.loads(out)["proof"]["verified"]) == (0, True)


def test_a_pipe_without_unicode_is_no_error(command, monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, encoding="ascii"))
    assert command("explain", "café 🙂 bank", "--token", "bank")[0] == 0
    assert b"caf\\xe9" in pipe.getvalue() or b"\\u" in pipe.getvalue()


def test_on_a_terminal_it_is_styled_and_the_spinner_leaves_nothing():
    code, shown = on_a_terminal("explain", "the river bank")
    assert code == 0
    assert b"reading the model" in shown
    assert b"\x1b[1;36m1. The tokens" in shown


@pytest.mark.parametrize(
    ("arguments", "moment"),
    [
        (["explain", RIVER, "--json"], "libtorch_python"),
        pytest.param(["see", RIVER * 40, "--out"], "_safetensors_rust", marks=pytest.mark.more),
        pytest.param(["watch", RIVER * 35, "--save"], "_safetensors_rust", marks=pytest.mark.more),
    ],
)
def test_ctrl_c_ends_without_a_traceback_and_without_a_file(tmp_path, arguments, moment):
    """The moment: this library has been loaded."""
    process = started(*arguments, tmp_path / "file", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while moment not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, f"{moment} was not loaded"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert b"Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interrupt", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_ctrl_c_while_the_command_itself_is_imported_ends_with_the_exit_code(tmp_path, interrupt):
    """Also while a string is executed, as when a dataclass is made: `python -m` then ended by SIGINT."""
    (tmp_path / "interrupted.py").write_text(f"""
import sys
import regard.__main__

class Interrupted:
    def __getattr__(self, name):
        {interrupt}

sys.modules["regard.cli"] = Interrupted()
regard.__main__.main()
""")
    ended = subprocess.run([sys.executable, "-m", "interrupted"], capture_output=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_what_is_imported_already_is_not_frozen_again():
    """The collector leaves out for good what is frozen: garbage that was made since the first import among it."""
    import torch  # noqa: F401

    frozen = gc.get_freeze_count()
    import_torch()
    assert gc.get_freeze_count() == frozen
