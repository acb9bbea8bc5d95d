"""What is drawn on a terminal, and what a command prints on a real one."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any

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


def drawn(
    draw: Callable[..., None],
    facts: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool = False,
    encoding: str = "utf-8",
    columns: int | None = None,
    **options: Any,
) -> str:
    """What a view draws of some facts, on a console that nothing of this machine's own terminal changes."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = Stream(terminal=terminal, encoding=encoding)
    draw(facts, console_for(stream), **options)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def on_a_terminal(*arguments: object) -> tuple[int, bytes]:
    """The exit code of a command, and all it shows on a pseudo-terminal: isatty is true for both streams."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"},
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    return process.wait(), shown
