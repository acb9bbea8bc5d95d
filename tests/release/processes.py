"""Commands that are ended with all that they started when the check is stopped, and the folder that is removed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

GRACE_SECONDS = 10
REMOVALS = 50
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the message has the command and the end of its output."""


def run(*command: object, cwd: Path, environment: Mapping[str, str], exit_code: int = 0) -> str:
    """Run a command to its end.

    Args:
        command: its words.
        cwd: the folder it runs in.
        environment: all its environment variables.
        exit_code: the one that it should end with.

    Returns:
        Its standard output and error, as they came.

    Raises:
        CommandFailed: it ended with another exit code.
    """
    words = [str(word) for word in command]
    process = None
    try:
        with interrupts_deferred():  # an interrupt in the midst of a start would leave a process that nobody knows
            process = _start(words, cwd, environment)
        output = _output(process)
    except BaseException:
        if process is not None:
            with interrupts_deferred():
                _end(process)
        raise
    if process.returncode != exit_code:
        tail = "\n".join(output.splitlines()[-40:])
        raise CommandFailed(f"{' '.join(words)}\nended with {process.returncode}, expected {exit_code}:\n{tail}")
    return output


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise `KeyboardInterrupt` not within the block but after it."""
    received: list[int] = []
    previous = {number: signal.signal(number, lambda number, _: received.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, however the block ends."""
    folder = Path(mkdtemp(prefix="regard-release-"))
    try:
        yield folder
    finally:
        with interrupts_deferred():
            _remove(folder)


def _start(words: list[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C would reach some of its processes and not others, in no order
    )


def _output(process: subprocess.Popen[str]) -> str:
    # Not one read to the end: an interrupt just before a read that blocks is heeded only when it returns.
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[0]


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt the command's whole session, and kill what is still there when the command ended, or after a while."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def _remove(folder: Path) -> None:
    # What was killed may take a moment to end, and writes into the folder until then.
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    print(f"{folder} could not be removed", file=sys.stderr)
