"""What is drawn on a terminal, and what a command prints on a real one."""

import io
import os
import pty
import threading
from contextlib import suppress

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


def drawn(draw, facts, monkeypatch, *, terminal=False, encoding="utf-8", columns=None, **options):
    """What a view draws of some facts, on a console that nothing of this machine's own terminal changes."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = Stream(terminal=terminal, encoding=encoding)
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
    with pytest.MonkeyPatch.context() as patch, open(theirs, "w", encoding="utf-8") as stream:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("sys.argv", ["regard", *map(str, arguments)])
        patch.setattr("sys.stdout", stream)
        patch.setattr("sys.stderr", stream)
        with pytest.raises(SystemExit) as ended:
            main()
    reader.join()
    os.close(ours)
    return ended.value.code, bytes(shown)


def refusal(command, *arguments):
    """The one line with which a command refuses; its exit code is 2, and it prints nothing else."""
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("regard: ")
    assert err.index("\n") == len(err) - 1
    return err
