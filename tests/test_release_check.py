"""`make release-check`: what fails it, what it says of things that it cannot check, and what it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from release.__main__ import FAILED, NOT_CHECKED, PARTIAL, PASSED, ReleaseCheck, Result, conclusion, table
from release.environments import clean_variables, find_interpreter
from release.processes import CommandFailed, run

TESTS = Path(__file__).parent
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def on_the_path(tmp_path, monkeypatch):
    """A function that puts a program on a PATH that has nothing else; pyenv's folder is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def put(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
        return tmp_path / path

    return put


def test_a_failed_step_shows_why_and_fails_the_check(tmp_path, capsys):
    check = ReleaseCheck(tmp_path)
    assert not check.step("a step", lambda: check.run("-c", "print('the reason'); raise SystemExit(3)"))
    shown = capsys.readouterr().out
    assert ("ended with 3, expected 0" in shown, "the reason" in shown) == (True, True)
    assert conclusion(check.results) == (1, "failed: a step")


@pytest.mark.parametrize(
    ("outcome", "note", "code", "last"),
    [
        (PASSED, "", 0, "all passed"),
        (PARTIAL, "no torch", 0, "nothing failed, but not all was checked: Python 3.12 (no torch)"),
        (NOT_CHECKED, "no Python 3.12", 0, "nothing failed, but not all was checked: Python 3.12 (no Python 3.12)"),
        (FAILED, "see above", 1, "failed: Python 3.12"),
    ],
)
def test_the_last_line_says_what_was_not_checked(outcome, note, code, last):
    results = [Result("the build", PASSED, 2), Result("Python 3.12", outcome, 31.4, note)]
    assert conclusion(results) == (code, last)
    assert table(results).splitlines()[1].split() == ["Python", "3.12", *outcome.split(), "31", "s", *note.split()]


def test_a_version_that_is_not_there_is_said(tmp_path, on_the_path, capsys):
    check = ReleaseCheck(tmp_path)
    check.install("3.12")
    note = "no Python 3.12 with ensurepip on the PATH or in pyenv"
    assert [(result.outcome, result.note) for result in check.results] == [(NOT_CHECKED, note)]
    assert note in capsys.readouterr().out


def test_an_interpreter_of_pyenv_is_found_behind_a_shim_that_runs_no_python(on_the_path):
    on_the_path(f"python{HERE}", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    there = on_the_path(f"pyenv/versions/{HERE}.99/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert find_interpreter(HERE) == there


def test_what_leads_python_here_does_not_reach_the_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("VIRTUAL_ENV", ".venv")
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    variables = clean_variables(tmp_path)
    assert [name in variables for name in ("PYTHONPATH", "VIRTUAL_ENV", "PIP_FIND_LINKS")] == [False, False, True]
    assert variables["TMPDIR"] == str(tmp_path / "tmp")


def test_another_exit_code_than_the_expected_one_is_a_failure(tmp_path):
    assert run(sys.executable, "-c", "exit(1)", cwd=tmp_path, environment=os.environ, exit_code=1) == ""
    with pytest.raises(CommandFailed, match=r"ended with 0, expected 1"):
        run(sys.executable, "-c", "", cwd=tmp_path, environment=os.environ, exit_code=1)


@pytest.fixture
def start(tmp_path):
    """A function that starts Python, with its temporary files in `tmp_path` and the package `release` at hand."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    processes = []

    def start(*command):
        processes.append(subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_an_interrupted_command_is_ended_with_what_it_started_and_does_not_heed_interrupts(tmp_path, start):
    """What a shell starts in the background heeds none. The pipe ends when nobody is left who could write to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    background = f"(echo started; sleep 60; echo survived) > '{pipe}' & wait"
    call = f"run('sh', '-c', {background!r}, cwd='.', environment=os.environ)"
    process = start("-c", f"import os; from release.processes import run; {call}")
    with pipe.open() as written:
        assert written.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert written.read() == ""
    assert process.wait() != 0


@pytest.mark.more
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_its_build_it_leaves_nothing(tmp_path, start, number):
    process = start("-m", "release")
    while not any(tmp_path.glob("regard-release-*/tmp/*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait() == 130
    assert list(tmp_path.iterdir()) == []
