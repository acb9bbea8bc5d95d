"""The queue: one thread, first come first served, each request told its place."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard import InputError
from regard.server import Limits
from regard.server.queueing import ComputeQueue, QueueFullError, Task
from server.live_client import ask, effect_question, open_socket, post, raw_post, wait_until

TEXT = "the river bank"
LONG = {"texts": ["the river bank " * 12], "edits": []}


class SilentError(Exception):
    """An error of a model whose message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class Recorded:
    """A task that notes its events, and waits for a word before it is done."""

    def __init__(self, queue: ComputeQueue, name: str, *, wait: bool = False) -> None:
        self.events: list[tuple[str, object]] = []
        self.go, self.started, self.ended = threading.Event(), threading.Event(), threading.Event()
        if not wait:
            self.go.set()
        self.task = Task(lambda task: self._work(task, name), self._emit, self.ended.set)
        queue.submit(self.task)

    def _work(self, task: Task, name: str) -> str:
        self.started.set()
        while not self.go.wait(0.01):
            task.check()
        return name

    def _emit(self, name: str, data: object) -> None:
        self.events.append((name, data))

    @property
    def places(self) -> list[int]:
        return [data["place"] for name, data in self.events if name == "queue"]


@pytest.fixture
def queue():
    queue = ComputeQueue(3, 60)
    yield queue
    queue.close()


@pytest.fixture
def first(queue):
    """A task that is computed until its `go` is set."""
    task = Recorded(queue, "first", wait=True)
    task.started.wait()
    return task


def test_each_is_told_how_many_come_first_and_when_it_moves_up(queue, first):
    second, third = Recorded(queue, "second", wait=True), Recorded(queue, "third")
    first.go.set()
    second.started.wait()
    second.go.set()
    third.ended.wait()
    assert (first.places, second.places, third.places) == ([0], [1, 0], [2, 1, 0])
    assert third.events[-1] == ("answer", "third")


def test_a_task_that_is_cancelled_while_it_waits_is_never_computed(queue, first):
    second, third = Recorded(queue, "second"), Recorded(queue, "third")
    queue.cancel(second.task)
    assert third.places == [2, 1]
    first.go.set()
    third.ended.wait()
    assert not second.started.is_set()


def test_a_task_that_is_cancelled_while_it_is_computed_makes_room(queue, first):
    second = Recorded(queue, "second")
    queue.cancel(first.task)
    second.ended.wait()
    assert [name for name, _ in first.events] == ["queue"]
    assert second.events[-1] == ("answer", "second")


def test_more_than_may_wait_are_refused(queue, first):
    for name in "abc":
        Recorded(queue, name)
    with pytest.raises(QueueFullError, match="more than 3"):
        Recorded(queue, "d")
    first.go.set()


def test_a_task_that_takes_too_long_is_ended_and_says_so():
    queue = ComputeQueue(3, 0.05)
    slow = Recorded(queue, "slow", wait=True)
    slow.ended.wait()
    name, data = slow.events[-1]
    assert (name, data["name"]) == ("error", "time")
    assert "more than 0.05 seconds" in data["message"]
    queue.close()


def told_of(queue, error):
    """What the client of a task that raises an error is told of it."""
    events, ended = [], threading.Event()

    def fail(task):
        raise error

    queue.submit(Task(fail, lambda *event: events.append(event), ended.set))
    ended.wait()
    name, data = events[-1]
    assert name == "error"
    return data


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (InputError("no", "texts"), "texts"),
        (RuntimeError("no"), "RuntimeError"),
        (MemoryError(), "MemoryError"),
        (SystemExit(1), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SilentError(), "SilentError"),
    ],
)
def test_an_error_goes_to_its_own_client_and_the_next_task_is_computed(queue, error, name):
    assert told_of(queue, error)["name"] == name
    after = Recorded(queue, "after")
    after.ended.wait()
    assert after.events[-1] == ("answer", "after")


def test_of_a_long_error_the_beginning_is_told(queue):
    assert 100 < len(told_of(queue, RuntimeError("a" * 1_000_000))["message"]) < 2_000


def test_a_closed_queue_ends_what_runs_and_what_waits_and_takes_no_more(queue, first):
    second = Recorded(queue, "second")
    queue.close()
    assert first.ended.is_set()
    assert second.ended.is_set()
    assert not queue._thread.is_alive()
    with pytest.raises(QueueFullError):
        Recorded(queue, "third")


# Over HTTP.


@pytest.mark.more
def test_twenty_clients_at_once_are_all_answered_with_their_own_text_in_order(decoder_server):
    texts = ["the " * (n + 1) for n in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: post(decoder_server, "ask", {"texts": [text], "edits": []}), texts))
    for text, answered in zip(texts, answers, strict=True):
        assert answered.answer["texts"][0]["facts"]["title"] == text
        places = [data["place"] for name, data in answered.events if name == "queue"]
        assert places == sorted(set(places), reverse=True)
        assert places[-1] == 0
    wait_until(lambda: decoder_server._queue.length == 0, "the end of the queue")


def ask_for_effects(server):
    """The connection of a request that is being computed."""
    connection = open_socket(server, raw_post(server, "effects", effect_question(*LONG["texts"], over="edges")))
    wait_until(lambda: server._queue._running is not None, "the request")
    return connection


def test_a_request_beyond_the_queue_is_refused_and_the_others_are_answered(small_decoder, serve):
    server = serve(small_decoder, limits=Limits(waiting=1))
    running = ask_for_effects(server)
    waiting = open_socket(server, raw_post(server, "ask", LONG))
    wait_until(lambda: server._queue.length == 2, "the second request")
    refused = post(server, "ask", LONG)
    assert (refused.status, refused.json["name"]) == (503, "queue")
    for connection in (running, waiting):
        connection.close()
    wait_until(lambda: server._queue.length == 0, "the end of the requests whose clients are gone")
    assert ask(server, TEXT)


def test_a_client_that_leaves_the_queue_frees_its_place(small_decoder, serve):
    server = serve(small_decoder)
    running = ask_for_effects(server)
    waiting = [open_socket(server, raw_post(server, "ask", LONG)) for _ in range(4)]
    wait_until(lambda: server._queue.length == 5, "all requests")
    waiting[0].close()
    wait_until(lambda: server._queue.length <= 4, "the place of the client that is gone")
    for connection in (running, *waiting[1:]):
        connection.close()
    wait_until(lambda: server._queue.length == 0, "the end")
