"""What is drawn on a terminal, and what a command prints on a real one."""

import io
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest

from regard.views.terminal.console import console_for


class Stream(io.TextIOWrapper):
    """Bytes in memory that may call themselves a terminal."""

    name, mode = "<test>", "w"

    def __init__(self, *, terminal: bool, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@contextmanager
def plain_environment(columns=None):
    """While nothing of this machine's own terminal changes what is shown."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        yield patch


def drawn(draw, facts, *, terminal=False, encoding="utf-8", columns=None, **options):
    """What a view draws of some facts, on a console of its own."""
    stream = Stream(terminal=terminal, encoding=encoding)
    with plain_environment(columns):
        draw(facts, console_for(stream), **options)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def on_a_terminal(*arguments):
    """The exit code of a command, and all it shows on a pseudo-terminal: isatty is true for both streams."""
    from regard.cli import main

    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        with suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(ours, 65536):
                shown.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with plain_environment() as patch, open(theirs, "w", encoding="utf-8") as stream:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("sys.argv", ["regard", *map(str, arguments)])
        patch.setattr("sys.stdout", stream)
        patch.setattr("sys.stderr", stream)
        with pytest.raises(SystemExit) as ended:
            main()
    reader.join()
    os.close(ours)
    return ended.value.code, bytes(shown)


def printed(command, *arguments):
    """What a command prints that succeeds; it says nothing else."""
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    return out


def refusal(command, *arguments):
    """The one line with which a command refuses; its exit code is 2, and it prints nothing else."""
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("regard: ")
    assert err.index("\n") == len(err) - 1
    return err


def started(*arguments, **options):
    """A command in a process of its own, which Ctrl-C ends; a job in the background would ignore it."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "TERM": "xterm"}
    return subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, arguments)],
        env={**os.environ, **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
