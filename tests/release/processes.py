"""Commands that are ended, with all that they started, when the check is stopped."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

GRACE_SECONDS = 10


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
    # A session of its own: Ctrl-C would reach some of its processes and not others, in no order.
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        _end(process)
        raise
    if process.returncode != exit_code:
        tail = "\n".join(output.splitlines()[-40:])
        raise CommandFailed(f"{' '.join(words)}\nended with {process.returncode}, expected {exit_code}:\n{tail}")
    return output


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt the command's whole session, and kill what is still there after some seconds."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
