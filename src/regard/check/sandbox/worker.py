"""A fork that does somebody's work: its limits of time and memory, its streams, and its answer at the end."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from regard.check.sandbox.answer import answer_of, failure, write

__all__ = ["TAMPERED", "Limits", "answer_and_exit"]

NO_ANSWER, TAMPERED = 1, 97
"""Exit codes of a worker: its answer could not be written; it is the name of a function that the work replaced."""


@dataclass(frozen=True)
class Limits:
    """What some work may take."""

    timeout: float
    """Seconds."""
    memory: int | None
    """Bytes besides those that the process has when it begins; None for no limit."""


def answer_and_exit(
    work: Callable[[], object],
    limits: Limits,
    ends: Sequence[int],
    token: bytes,
    replaced: Callable[[], str | None],
) -> NoReturn:
    """Do the work, write its answer, and go no way but out.

    Args:
        work: what to do.
        limits: of time and memory.
        ends: of three pipes: for the answer, for what is printed, and for the frames that Python dumps when it can do
            nothing else.
        token: how the answer begins.
        replaced: which function the work replaced; see `watch_bindings`.
    """
    # Names of this call alone: the work may replace those of modules.
    leave, send, this_process, process = os._exit, os.write, os.getpid, os.getpid()
    code, pipe, answer = NO_ANSWER, ends[0], b""
    try:
        try:
            pipe, lift, _kept = _apply_limits(limits, ends)
            answer = write(answer_of(work, lift), token)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
        except BaseException as error:  # of ours: a limit could not be set
            with suppress(BaseException):
                answer = write(failure(error), token)
        name = replaced()
        if name is not None:
            answer = token + name.encode()
        while answer and this_process() == process:  # else it is a fork of the work's own that came back here
            answer = answer[send(pipe, answer) :]
        code = 0 if name is None else TAMPERED
    finally:
        leave(code)


def _apply_limits(limits: Limits, ends: Sequence[int]) -> tuple[int, Callable[[], None], object]:
    """Set all limits; the pipe for the answer, what lifts the limit of memory, and what must not be collected."""
    import fcntl
    import resource

    os.setsid()  # Ctrl-C at the terminal is for the process that watches, which ends this group
    # Out of the way of 0, 1 and 2, which may have been closed and so be ours.
    answers, prints, dumps = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
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
    signal.setitimer(signal.ITIMER_REAL, max(limits.timeout, 1e-3))
    # A fork has none of the threads that the libraries remember, and would wait for them for ever.
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    if limits.memory is not None and pages.exists():
        most = int(pages.read_text().split()[0]) * resource.getpagesize() + limits.memory
        several = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(several), hard))
    return answers, lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard)), kept
