"""`ComputeQueue`: one thread computes all answers, first come first served."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from regard.errors import InputError

MAX_ERROR_CHARACTERS = 1_000
"""Of the error of a model that a client is told."""

Emit = Callable[[str, Any], None]
"""Sends an event, by its name and data."""


class TaskCancelledError(Exception):
    """The client of a task is gone; nobody waits for its answer."""


class TimeLimitError(Exception):
    """A task took more time than the limits allow."""


class QueueFullError(Exception):
    """Too many requests wait."""


class Task:
    """One request in the queue.

    Args:
        work: computes the answer. It calls `check` now and then.
        emit: sends an event to the client.
        end: called after the last event.
    """

    def __init__(self, work: Callable[[Task], Any], emit: Emit, end: Callable[[], None]) -> None:
        self.work, self.emit, self.end = work, emit, end
        self.cancelled = False
        self._deadline = float("inf")
        self._place: int | None = None

    def start(self, seconds: float) -> None:
        """Begin to count the time."""
        self._deadline = time.monotonic() + seconds

    def check(self) -> None:
        """Stop the work where nobody waits for it any more.

        Raises:
            TaskCancelledError: the client is gone, or the server stops.
            TimeLimitError: the time is over.
        """
        if self.cancelled:
            raise TaskCancelledError
        if time.monotonic() > self._deadline:
            raise TimeLimitError

    def tell_place(self, place: int) -> None:
        """Tell the client how many requests come before, if that changed; 0: it is computed now."""
        if place != self._place:
            self._place = place
            self.emit("queue", {"place": place})


class ComputeQueue:
    """A thread that computes one task after the other.

    Args:
        max_waiting: how many tasks may wait while one is computed.
        seconds: of one task.
    """

    def __init__(self, max_waiting: int, seconds: float) -> None:
        self.max_waiting, self.seconds = max_waiting, seconds
        self._waiting: deque[Task] = deque()
        self._running: Task | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="regard-live-compute", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Put a task at the end of the queue, and tell it its place.

        Raises:
            QueueFullError: as many tasks wait as may.
        """
        with self._changed:
            if self._closed or len(self._waiting) >= self.max_waiting:
                raise QueueFullError(
                    f"{len(self._waiting)} requests wait already, and more than {self.max_waiting} are not taken: ask "
                    "again in a moment"
                )
            self._waiting.append(task)
            self._tell_places()
            self._changed.notify()

    def cancel(self, task: Task) -> None:
        """Take a task out of the queue. If it is being computed, it stops at its next `Task.check`."""
        with self._changed:
            task.cancelled = True
            if task in self._waiting:
                self._waiting.remove(task)
                self._tell_places()

    @property
    def length(self) -> int:
        """How many tasks wait or are computed."""
        with self._changed:
            return len(self._waiting) + (self._running is not None)

    def close(self, seconds: float = 5.0) -> None:
        """Cancel every task and end the thread.

        Args:
            seconds: to wait for the task that is being computed.
        """
        with self._changed:
            self._closed = True
            for task in (*self._waiting, self._running):
                if task is not None:
                    task.cancelled = True
                    task.end()
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(seconds)

    def _tell_places(self) -> None:
        first = 0 if self._running is None else 1
        for place, task in enumerate(self._waiting, first):
            task.tell_place(place)

    def _next(self) -> Task | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self._running = self._waiting.popleft()
            self._running.tell_place(0)
            self._tell_places()
            return self._running

    def _run(self) -> None:
        while (task := self._next()) is not None:
            self._compute(task)
            del task  # the thread waits without the texts of the last request

    def _compute(self, task: Task) -> None:
        """Compute a task. Whatever it raises is told to its client, and ends nothing else."""
        task.start(self.seconds)
        try:
            task.check()
            task.emit("answer", task.work(task))
        except TaskCancelledError:
            pass
        except TimeLimitError:
            _tell_error(task, f"this took more than {self.seconds:g} seconds: ask about a shorter text", "time")
        except InputError as error:
            _tell_error(task, str(error), error.argument or "input")
        except BaseException as error:  # a module that ends its program, as sys.exit does, ends its own task only
            name = type(error).__name__
            _tell_error(task, f"the model could not do this: {name}: {_error_text(error)}", name)
        finally:
            task.end()


def _error_text(error: BaseException) -> str:
    """The message of an error of somebody's model, which may be of any length, or fail itself."""
    try:
        text = str(error)
    except Exception:
        return "it has no message"
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[:MAX_ERROR_CHARACTERS]}..."


def _tell_error(task: Task, message: str, name: str) -> None:
    task.emit("error", {"message": message, "name": name})
