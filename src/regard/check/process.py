"""Somebody's code in a process of its own, with limits of time, memory and noise, and a clear word at the end."""

from __future__ import annotations

import errno
import faulthandler
import io
import linecache
import os
import pickle
import re
import selectors
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch

from regard.check.report import CodeLocation

__all__ = ["Stopped", "isolated"]

T = TypeVar("T")

PRINTED = 4000
"""Characters kept of what was printed, the last ones."""
GRACE = 5.0
"""Seconds after the timeout in which a process may report its last line, also on a busy machine; then it is killed."""
GIB = 2**30
CHUNK = 2**16
KEPT = 2**18
"""Bytes kept of what is printed or dumped while the work goes on."""
MOST_LEFT = 2**20
"""Bytes that may still lie in a pipe when its writer has ended: no pipe is larger."""
MOST_FRAMES = 200
FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(........))")
NO_MEMORY = ("can't allocate memory", "DefaultCPUAllocator", "bad_alloc")
"""How PyTorch and C++ say what Python says by a MemoryError."""

Frames = list[tuple[str, int]]
"""Files and lines, the deepest call first."""
Message = tuple[str, str, bytes, Frames]
"""What the process says of itself: how it ended, that in words, a pickle, where it was."""


class Stopped(Exception):
    """The work neither returned nor raised an ordinary exception."""

    def __init__(self, reason: str, where: CodeLocation | None, printed: str) -> None:
        super().__init__(reason, where, printed)
        self.reason = reason
        """What happened, as the rest of a sentence: "did not end within 10 s; it was at attention.py:12"."""
        self.where = where
        """The line of the watched file, where it is known."""
        self.printed = printed
        """The end of what it had printed."""

    def __str__(self) -> str:
        return self.reason


def isolated(work: Callable[[], T], *, timeout: float, memory: int | None, watch: Path | None = None) -> T:
    """The result of some work that is done in a process of its own.

    The process is a fork: the work sees all that is there now, and nothing that it changes is changed here. It reads an
    empty standard input; what it prints, at whatever level, is caught. It computes on one thread. However it ends, by
    Ctrl-C here too, the processes that it started end with it, but for those that left its group.

    Where there is no ``os.fork`` (Windows) the work is done here, without any limit. The memory is limited where there
    is ``/proc`` (Linux).

    Args:
        work: what to do. Its result comes back as a pickle, which may hold only what belongs to packages that are
            imported here already: reading it imports nothing.
        timeout: its time.
        memory: bytes that it may have besides those that this process has now; None for no limit.
        watch: a file of which somebody wants to know in which line the work stopped.

    Raises:
        Stopped: its time ran out, it died, it asked for too much memory, it wanted to leave (`sys.exit`, `os._exit`),
            or its result cannot be brought here.
        Exception: what the work raised, as it was if it can be pickled, else as RuntimeError of its text.
    """
    if not hasattr(os, "fork"):
        return work()
    pipes = _Pipes()
    process = 0
    status: int | None = None
    interrupts = _HeldInterrupts()
    try:
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forks beside threads: see what _settle does about them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = os.fork()
            interrupts.release()
            if process == 0:
                _child(work, timeout, memory, pipes.writing)
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
    return cast(T, _judged(pipes, status or 0, late=late, timeout=timeout, memory=memory, watch=watch))


# In the process that watches.


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
    """Three pipes: the message, what is printed, and the frames that Python dumps when it cannot do more."""

    def __init__(self) -> None:
        pairs = [os.pipe() for _ in range(3)]
        self.reading = [end for end, _ in pairs]
        self.writing = [end for _, end in pairs]
        self.message, self.printed, self.dumped = self.read = [bytearray() for _ in pairs]
        for end in self.reading:
            os.set_blocking(end, False)

    def ours(self) -> None:
        """Keep only the ends that are read."""
        while self.writing:
            os.close(self.writing.pop())

    def take(self, which: int) -> int:
        """Read what is there; the number of bytes, 0 at the pipe's end."""
        new = os.read(self.reading[which], CHUNK)
        read = self.read[which]
        read += new
        if read is not self.message:
            del read[:-KEPT]
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


def _judged(pipes: _Pipes, status: int, *, late: bool, timeout: float, memory: int | None, watch: Path | None) -> Any:
    """What the work returned, or what is to be raised in its place."""
    printed = pipes.printed.decode("utf-8", "replace")[-PRINTED:]
    too_much = (
        f"asked for more than {memory / GIB:.1f} GiB of memory" if memory else "asked for more memory than there is"
    )
    dumped = pipes.dumped.decode("ascii", "replace")

    def stopped(reason: str, frames: Frames, tell: str = "") -> Stopped:
        where = _place(frames, watch)
        return Stopped(reason + (f"{tell} {where.file}:{where.line}" if where and tell else ""), where, printed)

    try:
        kind, said, pickled, frames = _unpickled(pipes.message)
    except Exception:  # it came to no message, or not to the end of one
        if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM):
            raise stopped(f"did not end within {timeout:g} s", _frames(dumped), "; it was at") from None
        if os.WIFEXITED(status):
            raise stopped(f"ended with exit code {os.WEXITSTATUS(status)}, as by os._exit", []) from None
        number = os.WTERMSIG(status)
        if number == signal.SIGABRT and "bad_alloc" in printed:
            raise stopped(too_much, _frames(dumped), " at") from None
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        hint = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
        raise stopped(f"ended by signal {name}{hint}", _frames(dumped), " at") from None
    if kind == "returned":
        try:
            return _unpickled(pickled)
        except Exception as error:
            raise stopped(f"returned a result that cannot be read from its pickle: {_text(error)}", []) from None
    if kind == "raised":
        raised = None
        with suppress(Exception):
            raised = _unpickled(pickled)
        raise raised if isinstance(raised, Exception) else RuntimeError(said)
    raise stopped(too_much if kind == "memory" else said, frames, " at" if kind == "memory" else "")


class _Reader(pickle.Unpickler):
    """Reads pickles without importing: a class of the user's own file would run that file here."""

    def find_class(self, module: str, name: str) -> Any:
        """A class or function of a package that is here already."""
        if module.partition(".")[0] not in sys.modules:
            raise pickle.UnpicklingError(f"{module} is not imported here")
        return super().find_class(module, name)


def _unpickled(pickled: bytes | bytearray) -> Any:
    return _Reader(io.BytesIO(pickled)).load()


def _frames(dumped: str) -> Frames:
    """The frames of a dump of all threads, those of the main thread first, which is dumped last."""
    threads = reversed(THREAD.split(dumped))
    return [(ESCAPE.sub(_character, file), int(line)) for thread in threads for file, line in FRAME.findall(thread)]


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1] or escape[2] or escape[3], 16))


def _place(frames: Iterable[tuple[str, int]], watch: Path | None) -> CodeLocation | None:
    """The deepest frame in a file."""
    if watch is None:
        return None
    for file, line in frames:
        if os.path.realpath(file) == os.path.realpath(watch):
            linecache.checkcache(str(watch))
            return CodeLocation(str(watch), line, linecache.getline(str(watch), line).strip())
    return None


# In the process that works.


def _child(work: Callable[[], object], timeout: float, memory: int | None, ends: Sequence[int]) -> NoReturn:
    """Do the work, send the message, and go no way but out."""
    try:
        process = os.getpid()
        message, lift, _kept = _settle(timeout, memory, ends)
        outcome = _outcome(work, lift)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        if os.getpid() == process:  # else it is a fork of the work's own that came back here
            with open(message, "wb") as pipe:
                pickle.dump(outcome, pipe)
    except BaseException as error:
        os.write(ends[0], pickle.dumps(_failure(error)))  # of ours: a limit could not be set
    finally:
        os._exit(0)


def _settle(timeout: float, memory: int | None, ends: Sequence[int]) -> tuple[int, Callable[[], None], object]:
    """Set all limits; the pipe for the message, what lifts the limit of memory, and what must not be collected."""
    import fcntl
    import resource

    os.setsid()  # Ctrl-C at the terminal is for the process that watches, which ends this group
    # Out of the way of 0, 1 and 2, which may have been closed and so be ours.
    message, prints, dumps = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for end, standard in ((nothing, 0), (prints, 1), (prints, 2)):
        os.dup2(end, standard)
    # The streams of before may hold text that was printed there; were they collected here, it would be printed twice.
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        open(end, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for end in (1, 2)
    )
    faulthandler.enable(dumps, all_threads=False)
    # A signal needs no lock, and so sees a loop within C too; and it ends this process even where nobody watches any
    # more. `faulthandler.dump_traceback_later` would wait for ever for the thread of one that is armed there.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    faulthandler.register(signal.SIGALRM, dumps, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, max(timeout, 1e-3))
    # A fork has none of the threads that the libraries remember, and would wait for them for ever.
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    if memory is not None and pages.exists():
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + memory
        limits = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    return message, lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard)), kept


def _outcome(work: Callable[[], object], lift: Callable[[], None]) -> Message:
    """Do the work, and say how it ended."""
    try:
        result = work()
    except BaseException as error:
        lift()  # the message of too little memory needs some
        return _failure(error)
    lift()
    try:
        return "returned", "", pickle.dumps(result, pickle.HIGHEST_PROTOCOL), []
    except Exception as error:
        return "stopped", f"returned a result that cannot be pickled: {_text(error)}", b"", []


def _failure(error: BaseException) -> Message:
    steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = steps[: -MOST_FRAMES - 1 : -1]
    if isinstance(error, SystemExit):
        return "stopped", f"called sys.exit({_repr(error.code)})", b"", frames
    if _wants_memory(error):
        return "memory", "", b"", frames
    if not isinstance(error, Exception):
        return "stopped", f"raised something that is not an Exception: {_text(error)}", b"", frames
    try:
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except Exception:
        pickled = b""
    return "raised", _text(error), pickled, frames


def _wants_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in _text(error) for sign in NO_MEMORY)
    )


def _text(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # it is somebody else's
        said = ""
    return f"{type(error).__name__}: {said}"[:PRINTED].removesuffix(": ")


def _repr(code: object) -> str:
    try:
        return repr(code)[:PRINTED]
    except Exception:
        return "..."
