"""Somebody's code in a process of its own, with limits of time, memory and noise, and a clear word at the end."""

from __future__ import annotations

import io
import linecache
import os
import re
import selectors
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from regard.check.location import CodeLocation
from regard.check.sandbox.answer import (
    MAX_ANSWER_BYTES,
    MAX_CHARACTERS,
    Answer,
    Frame,
    answer_of,
    new_token,
    read,
    write,
)
from regard.check.sandbox.monkeypatches import watch_bindings
from regard.check.sandbox.worker import TAMPERED, Limits, answer_and_exit
from regard.errors import InputError

__all__ = ["Stopped", "isolated"]

GRACE = 5.0
"""Seconds after the timeout in which a process may report its last line, also on a busy machine; then it is killed."""
GIB = 2**30
CHUNK = 2**16
KEPT = 2**18
"""Bytes kept of what is printed or dumped while the work goes on."""
MOST_LEFT = 2**20
"""Bytes that may still lie in a pipe when its writer has ended: no pipe is larger."""
FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in ', re.MULTILINE)
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(........))")


class Stopped(Exception):
    """The work did not return a result."""

    def __init__(self, reason: str, where: CodeLocation | None, printed: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """What happened, as the rest of a sentence: "did not end within 10 s; it was at attention.py:12"."""
        self.where = where
        """The line of the watched file, where it is known."""
        self.printed = printed
        """The end of what it had printed."""


def isolated(work: Callable[[], object], *, timeout: float, memory: int | None, watch: Path | None = None) -> Any:
    """The result of some work that is done in a process of its own.

    The process is a fork: the work sees all that is there now, and nothing that it changes is changed here. It reads an
    empty standard input; what it prints, at whatever level, is caught. It computes on one thread. However it ends, by
    Ctrl-C here too, the processes that it started end with it, but for those that left its group. Its answer is JSON
    that is read here and never run. It is no sandbox: the work may do whatever this process may do.

    Where there is no ``os.fork`` (Windows) the work is done here, without any limit. The memory is limited where there
    is ``/proc`` (Linux).

    Args:
        work: what to do. Its result holds what JSON holds: dicts, lists, texts, numbers, True, False and None.
        timeout: its time in seconds.
        memory: bytes that it may have besides those that this process has now; None for no limit.
        watch: a file of which somebody wants to know in which line the work stopped.

    Raises:
        InputError: the work raised it.
        Stopped: the work raised anything else, `SystemExit` and `KeyboardInterrupt` included; its time ran out, it died
            or left by `os._exit`, it asked for too much memory, or its answer cannot be read.
    """
    token, limits, replaced = new_token(), Limits(timeout, memory), watch_bindings()
    if not hasattr(os, "fork"):
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            answer = read(write(answer_of(work), token), token)
            if (name := replaced()) is not None:
                answer = _tampered(name)
        return _result(answer, printed.getvalue(), limits, watch)
    pipes = _Pipes()
    process = 0
    status: int | None = None
    interrupts = _HeldInterrupts()
    try:
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forks beside threads: see what the worker does about them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = os.fork()
            interrupts.release()
            if process == 0:
                answer_and_exit(work, limits, pipes.writing, token, replaced)
            if interrupts.came:
                signal.raise_signal(signal.SIGINT)
            status = _follow(process, pipes, time.monotonic() + timeout + GRACE)
        finally:
            if process:
                late = status is None
                status = _end(process, status)
        pipes.drain()
    finally:
        interrupts.release()
        pipes.close()
    answer = _answer(pipes, token, status or 0, late=late, limits=limits)
    return _result(answer, pipes.printed.decode("utf-8", "replace"), limits, watch)


class _HeldInterrupts:
    """Lets Ctrl-C wait until it is released: Python drops one that comes while the callbacks of a fork run."""

    def __init__(self) -> None:
        self.came = False
        is_main = threading.current_thread() is threading.main_thread()
        self.former = signal.getsignal(signal.SIGINT) if is_main else None
        if self.former is not None:
            signal.signal(signal.SIGINT, self._hold)

    def _hold(self, *_: object) -> None:
        self.came = True

    def release(self) -> None:
        """Put the former handler back."""
        if self.former is not None:
            signal.signal(signal.SIGINT, self.former)
            self.former = None


class _Pipes:
    """Three pipes: the answer, what is printed, and the frames that Python dumps when it cannot do more."""

    def __init__(self) -> None:
        pairs = [os.pipe() for _ in range(3)]
        self.reading = [end for end, _ in pairs]
        self.writing = [end for _, end in pairs]
        self.answer, self.printed, self.dumped = self.read = [bytearray() for _ in pairs]
        for end in self.reading:
            os.set_blocking(end, False)

    def ours(self) -> None:
        """Keep only the ends that are read."""
        while self.writing:
            os.close(self.writing.pop())

    def take(self, which: int) -> int:
        """Read what is there; the number of bytes, 0 at the pipe's end."""
        new = os.read(self.reading[which], CHUNK)
        kept = self.read[which]
        kept += new
        if kept is not self.answer:
            del kept[:-KEPT]
        del kept[MAX_ANSWER_BYTES + 1 :]  # one more shows that there was too much
        return len(new)

    def drain(self) -> None:
        """Read what was left, when nobody writes any more; or one that got away does, and then not for ever."""
        for which in range(len(self.read)):
            left = MOST_LEFT
            with suppress(BlockingIOError):
                while left > 0 and (taken := self.take(which)):
                    left -= taken

    def close(self) -> None:
        self.ours()
        while self.reading:
            os.close(self.reading.pop())


def _follow(process: int, pipes: _Pipes, deadline: float) -> int | None:
    """Read until the process has ended; its status, or None if it has not when the time is over."""
    pipes.ours()
    with selectors.DefaultSelector() as selector:
        for which, end in enumerate(pipes.reading):
            selector.register(end, selectors.EVENT_READ, which)
        while time.monotonic() < deadline:
            # The pipes' ends are not waited for: a grandchild may hold them. Once they are there, it is a moment only.
            for key, _ in selector.select(0.05 if selector.get_map() else 0.002):
                if not pipes.take(key.data):
                    selector.unregister(key.fileobj)
            try:
                ended, status = os.waitpid(process, os.WNOHANG)
            except ChildProcessError:  # somebody else here waits for every process
                return 0
            if ended:
                return status
    return None


def _end(process: int, status: int | None) -> int:
    """Kill the process, where it has not ended, and all of its group; its status."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    if status is None:
        with suppress(ProcessLookupError):  # it may not yet have come so far as to have a group
            os.kill(process, signal.SIGKILL)
        try:
            return os.waitpid(process, 0)[1]
        except ChildProcessError:
            return 0
    return status


def _answer(pipes: _Pipes, token: bytes, status: int, *, late: bool, limits: Limits) -> Answer:
    """What the process answered; or how it ended without an answer."""
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == TAMPERED and pipes.answer.startswith(token):
        return _tampered(pipes.answer.removeprefix(token).decode("utf-8", "replace"))
    try:
        return read(pipes.answer, token)
    except ValueError as error:
        unread = str(error)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    frames = _dumped_frames(pipes.dumped.decode("ascii", "replace"))
    if late or killed == signal.SIGALRM:
        return Answer("stopped", f"did not end within {limits.timeout:g} s", frames=frames)
    if killed == signal.SIGABRT and b"bad_alloc" in pipes.printed:
        return Answer("memory", frames=frames)
    if killed:
        name = signal.Signals(killed).name if killed in set(signal.Signals) else str(killed)
        hint = ", as the system does when memory runs out" if killed == signal.SIGKILL else ""
        return Answer("stopped", f"ended by signal {name}{hint}", frames=frames)
    if pipes.answer:
        return Answer("stopped", f"gave an answer that cannot be read: {unread}")
    return Answer("stopped", f"ended with exit code {os.WEXITSTATUS(status)} and no answer, as by os._exit")


def _tampered(name: str) -> Answer:
    return Answer("stopped", f"replaced {name}, which the check computes with: check it where nothing is replaced")


def _result(answer: Answer, printed: str, limits: Limits, watch: Path | None) -> Any:
    """The result of an answer; or what it tells is raised."""
    if answer.kind == "returned":
        return answer.result
    if answer.kind == "refused":
        raise InputError(answer.text)
    reason = answer.text
    if answer.kind == "memory" and limits.memory is not None:
        reason = f"asked for more than {limits.memory / GIB:.1f} GiB of memory"
    elif answer.kind == "memory":
        reason = "asked for more memory than there is"
    where = _place(answer.frames, watch)
    raise Stopped(
        reason if where is None else f"{reason}; it was at {where.file}:{where.line}",
        where,
        printed[-MAX_CHARACTERS:],
    )


def _dumped_frames(dumped: str) -> tuple[Frame, ...]:
    """The frames of a dump of all threads, those of the main thread first, which is dumped last."""
    threads = reversed(THREAD.split(dumped))
    return tuple(
        Frame(ESCAPE.sub(_character, file), int(line)) for thread in threads for file, line in FRAME.findall(thread)
    )


def _character(escape: re.Match[str]) -> str:
    """The character of an escape; the escape itself where somebody wrote one that is none."""
    try:
        return chr(int(escape[1] or escape[2] or escape[3], 16))
    except (ValueError, OverflowError):
        return escape[0]


def _place(frames: Iterable[Frame], watch: Path | None) -> CodeLocation | None:
    """The deepest frame in a file."""
    if watch is None:
        return None
    for frame in frames:
        if "\0" not in frame.file and os.path.realpath(frame.file) == os.path.realpath(watch):
            linecache.checkcache(str(watch))
            return CodeLocation(str(watch), frame.line, linecache.getline(str(watch), frame.line).strip())
    return None
