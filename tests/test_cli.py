"""The command line: in a process of its own where that matters, else by its own `main`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import regard
from terminals import on_a_terminal
from weights import LOAN, PIZZA, RIVER


def run(*arguments, **environment):
    """A process of its own, as a newcomer starts it."""
    return subprocess.run(
        [sys.executable, "-m", "regard", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


def text(stream):
    return stream.decode("utf-8")


def test_the_demo():
    ended = run("explain", RIVER, "--token", "bank", "--compare", LOAN)
    assert ended.returncode == 0, text(ended.stderr)
    shown = text(ended.stdout)
    assert "\x1b" not in shown
    assert "Where 'bank' looks: layer 0, head 2" in shown
    assert "0.9988" in shown
    assert "after layer 5" in shown
    assert "The proof holds: the largest difference of all 32 numbers is" in shown
    assert ended.stderr == b""


def test_json_to_a_file_carries_the_facts(tmp_path, command):
    path = tmp_path / "facts.json"
    arguments = ["explain", PIZZA, "--token", "it", "--layer", 3, "--head", 1]
    code, out, err = command(*arguments, "--json", path)
    assert (code, err) == (0, "")
    assert "1. The tokens" in out
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert (facts["layer"], facts["head"], facts["word"]["token_index"]) == (3, 1, 9)
    assert facts["row"]["weights"][facts["queries"]["tokens"].index("pizza")] == pytest.approx(0.701, abs=5e-4)
    assert facts["comparisons"] == []

    _, out, _ = command(*arguments, "--json", "-")
    assert json.loads(out) == facts


def test_help_teaches(command):
    assert "explain" in command("--help")[1]
    code, out, _ = command("explain", "--help")
    assert code == 0
    for option in ("--token", "--layer", "--head", "--compare", "--model", "--json"):
        assert option in out
    assert "Example: regard explain" in out


def test_without_a_command_it_shows_the_help(command):
    assert "Usage" in "".join(command()[1:])


def test_the_version(command):
    assert command("--version") == (0, f"regard {regard.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "regard: the text is empty; write a sentence\n"),
        ([RIVER, "--token", "loan"], "regard: the word 'loan' is not in the text"),
        ([RIVER, "--layer", 6], "regard: there is no layer 6: this model has layers 0 to 5\n"),
        ([RIVER, "--head", -1], "regard: there is no head -1: this model has heads 0 to 11\n"),
        (["word " * 600], "regard: the text has 602 tokens"),
        ([RIVER, "--model", "no/such-model"], "'no/such-model' is not a folder here"),
        ([RIVER, "--json", "/no/such/folder/x.json"], "cannot write '/no/such/folder/x.json': No such file"),
        (["\udce9 half a character"], "is not valid text"),
        (["\x01\x02"], "'\\x01\\x02' has no tokens"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(command, arguments, message):
    code, out, err = command("explain", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_bad_input_to_a_process_is_no_traceback():
    ended = run("explain", RIVER, "--token", "loan")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert text(ended.stderr).startswith("regard: the word 'loan' is not in the text")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "Missing argument"),
        (["explain", RIVER, "--layer", "two"], "Invalid value for '--layer'"),
        (["explain", RIVER, "--later", 2], "No such option: --later"),
        (["explane"], "No such command 'explane'"),
        (["explain", "a", "b"], "unexpected extra argument"),
    ],
)
def test_bad_usage_is_named_with_exit_code_2(command, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.endswith(f". See regard{' explain' if arguments[0] == 'explain' else ''} --help\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("redirect", "code", "message"),
    [
        (">/dev/full", 2, "regard: cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
        (">/dev/null 2>&-", 0, ""),
        ("--token loan 2>/dev/full", 2, ""),
        ("--json /dev/full >/dev/null", 2, "regard: cannot write '/dev/full': No space left on device\n"),
        ("| head -n 1; exit ${PIPESTATUS[0]}", 0, ""),
        ("--json - | true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_streams_that_break_are_no_traceback(redirect, code, message):
    shell = f"'{sys.executable}' -m regard explain '{RIVER}' {redirect}"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True)
    assert ended.returncode == code
    assert text(ended.stderr) == message


@pytest.mark.parametrize(
    "sentence",
    ["a bank 🙂", "🙂🙂", "שלום עולם", "العربية", "bank \x1b[31m \u202e x", "数学 e\u0301", "<b>[bold]</b> &amp;", "."],
)
def test_any_text_gets_a_right_answer(command, sentence):
    code, out, _ = command("explain", sentence, "--json", "-")
    assert code == 0
    facts = json.loads(out)
    weights = facts["row"]["weights"]
    assert sum(weights if isinstance(weights[0], float) else weights[0]) == pytest.approx(1)
    assert facts["proof"]["max_error"] < 1e-5


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_a_pipe_without_unicode_is_no_error(environment):
    ended = run("explain", "café 🙂 bank", "--token", "bank", **environment)
    assert ended.returncode == 0, text(ended.stderr)
    assert b"bank" in ended.stdout


def test_on_a_terminal_it_is_styled_and_the_spinner_leaves_nothing():
    code, shown = on_a_terminal("explain", "the river bank")
    assert code == 0
    assert b"reading the model" in shown
    assert b"\x1b[1;36m1. The tokens" in shown


def test_ctrl_c_ends_without_a_traceback_and_without_a_file(tmp_path):
    for moment in ("libc10", "libtorch_python", "_safetensors_rust"):  # which of these libraries is there already
        process = subprocess.Popen(
            [sys.executable, "-m", "regard", "explain", RIVER, "--json", str(tmp_path / "facts.json")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )
        while moment not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None, f"{moment} was not seen"
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, moment
        assert b"Traceback" not in stderr
        assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_command_itself_is_imported():
    code = """
import sys
import regard.__main__

class Interrupted:
    def __getattr__(self, name):
        raise KeyboardInterrupt

sys.modules["regard.cli"] = Interrupted()
regard.__main__.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_while_a_string_is_executed_ends_with_the_exit_code(tmp_path):
    """As when a dataclass is made: `python -m` then ended by SIGINT, though the exception was handled."""
    (tmp_path / "interrupted.py").write_text(
        """
import sys
import regard.__main__

class Interrupted:
    def __getattr__(self, name):
        exec("raise KeyboardInterrupt")

sys.modules["regard.cli"] = Interrupted()
regard.__main__.main()
"""
    )
    ended = subprocess.run([sys.executable, "-m", "interrupted"], capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "")
