"""Clients that misbehave, and a server that ends: nothing else suffers, and nothing is left."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import regard
from regard import InputError
from regard.server import Limits, LiveServer
from regard.server.events import EventStream, encode_event
from regard.server.http_server import HttpServer
from server.live_client import (
    ask,
    bytes_of_post,
    effect_question,
    generate_question,
    open_socket,
    parse_events,
    raw_post,
    read_all,
    request,
    wait_until,
)

TEXT = "the river bank"
QUESTION = {"texts": [TEXT], "edits": []}


@pytest.mark.parametrize("cut", [1, 20, 90, -30, -1])
def test_a_connection_cut_anywhere_leaves_the_server_answering(decoder_server, cut):
    open_socket(decoder_server, raw_post(decoder_server, "ask", QUESTION)[:cut]).close()
    assert ask(decoder_server, TEXT)


def test_a_connection_reset_while_an_answer_comes_leaves_the_server_answering(decoder_server):
    connection = open_socket(decoder_server, raw_post(decoder_server, "generate", generate_question(TEXT, 40)))
    connection.recv(100)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close by a reset
    connection.close()
    assert ask(decoder_server, TEXT)


def test_headers_that_do_not_end_are_refused(decoder_server):
    start = f"GET /{decoder_server.rules.secret}/model HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    connection = open_socket(decoder_server, start)
    with suppress(ConnectionError):
        for n in range(3_000):
            connection.sendall(f"X-Header-{n}: {'a' * 100}\r\n".encode())
    with suppress(ConnectionError):
        assert read_all(connection).startswith(b"HTTP/1.1 4")
    connection.close()
    assert ask(decoder_server, TEXT)


@pytest.mark.parametrize("data", [b"", b"GET / HTT", b"POST /{secret}/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le"])
def test_a_connection_that_sends_no_request_is_closed(small_decoder, serve, data):
    server = serve(small_decoder, limits=Limits(receive_seconds=0.1))
    with open_socket(server, data) as connection:
        assert read_all(connection) == b""


@pytest.mark.more
@pytest.mark.parametrize(
    ("path", "headers", "then"),
    [
        ("/x", "", b""),
        ("/x", "", b"GET /y HTTP/1.1\r\nX: "),
        ("/x", "Content-Length: 1000000\r\n", b"a"),
        ("/x", "Transfer-Encoding: chunked\r\n", b"1\r\na\r\n"),
        ("/{secret}/model", "Content-Length: 1000000\r\n", b"a"),
    ],
)
def test_a_connection_that_brings_no_second_request_in_time_is_closed(small_decoder, serve, path, headers, then):
    server = serve(small_decoder, limits=Limits(receive_seconds=0.2))
    path = path.format(secret=server.rules.secret)
    with open_socket(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()) as connection:
        connection.settimeout(0.02)
        end = time.monotonic() + 5
        with suppress(ConnectionError):
            while time.monotonic() < end:  # a byte now and then, as a client does that wants to keep its place
                with suppress(TimeoutError):
                    if connection.recv(2**16) == b"":
                        break
                connection.sendall(then)
        assert time.monotonic() < end


def test_a_body_that_does_not_come_is_refused(small_decoder, serve):
    server = serve(small_decoder, limits=Limits(receive_seconds=0.1))
    with open_socket(server, raw_post(server, "ask", QUESTION)[:-1]) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert answer.endswith(b'"name": "body"}')


def test_a_client_that_does_not_read_is_dropped_and_others_are_answered(small_decoder, serve, capfd):
    server = serve(small_decoder, limits=Limits(send_seconds=0.2))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    connection.connect(("127.0.0.1", server.port))
    question = {"texts": ["the river bank " * 12] * 2, "edits": []}
    for _ in range(40):  # more than the buffers of both sides hold
        with suppress(ConnectionError):
            connection.sendall(raw_post(server, "ask", question))
    wait_until(lambda: not server._server.server_state.connections, "the end of the connection that nobody reads")
    assert ask(server, TEXT)
    connection.close()
    assert capfd.readouterr().err == ""


def test_one_connection_may_carry_several_requests(decoder_server):
    data = raw_post(decoder_server, "ask", QUESTION)
    with open_socket(decoder_server, data) as connection:
        first = b""
        while not first.endswith(b"0\r\n\r\n"):
            first += connection.recv(2**16)
        connection.sendall(data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        assert b"event: answer" in read_all(connection)


def test_more_connections_than_the_limit_are_refused_and_the_server_goes_on(small_decoder, serve):
    server = serve(small_decoder, limits=Limits(connections=5))
    held = [open_socket(server) for _ in range(6)]
    assert request(server, "GET", "model").status == 503
    for connection in held:
        connection.close()
    wait_until(lambda: request(server, "GET", "model").status == 200, "room for a connection")


def test_progress_that_a_slow_reader_missed_is_left_out():
    async def read():
        stream = EventStream(asyncio.get_running_loop())
        for n in range(100):
            stream.put("progress", n)
        stream.put("token", "a")
        stream.put("token", "b")
        stream.end()
        await asyncio.sleep(0.01)
        return [event async for event in stream.events()]

    with ThreadPoolExecutor(1) as pool:  # a browser test of this process may have left a loop in the main thread
        events = list(parse_events(b"".join(pool.submit(asyncio.run, read()).result())))
    assert events == [("progress", 99), ("token", "a"), ("token", "b")]


@pytest.mark.parametrize("text", ["\n\nevent: answer\ndata: 1", "\r", "\u2028", "\ud800", "é\0"])
def test_no_text_can_end_an_event(text):
    event = encode_event("token", text)
    assert event.count(b"\n") == 3
    assert list(parse_events(event)) == [("token", text)]


# The end.


def live_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("regard-live")}


def test_a_closed_server_leaves_no_thread_and_no_port(small_decoder):
    before = live_threads()
    server = LiveServer(small_decoder).start()
    port = server.port
    ask(server, TEXT)
    server.close()
    assert live_threads() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    LiveServer(small_decoder, port=port).close()


@pytest.mark.parametrize(
    ("path", "question"),
    [("effects", effect_question("the river bank " * 12, over="edges")), ("generate", generate_question(TEXT, 55))],
)
def test_closing_ends_what_is_being_computed(small_decoder, path, question):
    before = live_threads()
    server = LiveServer(small_decoder).start()
    with open_socket(server, raw_post(server, path, question)) as connection:
        wait_until(lambda: server._queue._running is not None, "the computing")
        server.close()
        assert b"event: answer" not in read_all(connection)
    assert live_threads() == before


@pytest.mark.parametrize("started", [False, True])
def test_a_closed_server_may_be_closed_again_and_not_started(small_decoder, started):
    server = LiveServer(small_decoder)
    if started:
        server.start()
    server.close()
    server.close()
    with pytest.raises(RuntimeError, match="closed"):
        server.start()


def test_starting_twice_is_starting_once(small_decoder, serve):
    server = serve(small_decoder)
    thread = server._thread
    assert server.start() is server
    assert server._thread is thread


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        *(({"port": port}, "port", "a whole number from 0 to 65535") for port in (-1, 65_536, 70_000)),
        ({"texts": ["a", " \n"]}, "texts[1]", "this one is empty"),
        ({"texts": "a \udce9"}, "texts[0]", "not valid text"),
        ({"texts": "the river " * 60}, "texts[0]", "182 tokens, and .* has positions for 64"),
        ({"name": "\udce9"}, "name", "not valid text"),
        *(
            ({"host": host}, "host", f"host='{host}' .* nothing is encrypted, .* allow_remote=True")
            for host in ("0.0.0.0", "::", "192.168.1.1", "example.org")
        ),
        *(({"host": host, "allow_remote": True}, "host", "is no address") for host in ("no such host", "127.0.0.1.1")),
        *(
            ({"allowed_hosts": [name]}, "allowed_hosts", "no name of a machine")
            for name in ("", "http://lab.example", "lab.example:80", "lab.example/path")
        ),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_served_is_refused_by_name(small_decoder, options, argument, message):
    with pytest.raises(InputError, match=message) as refused:
        regard.live(small_decoder, **options)
    assert refused.value.argument == argument


def test_a_port_that_is_taken_is_refused_by_name(small_decoder, serve):
    port = serve(small_decoder).port
    with pytest.raises(InputError, match=f"port={port} of 127.0.0.1 cannot be used"):
        LiveServer(small_decoder, port=port)


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_library_that_is_missing_is_named_with_the_extra(small_decoder, monkeypatch, library):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match=rf"this needs {library}, which is not installed: pip install '\.\[live\]'"):
        LiveServer(small_decoder)


SCRIPT = """
import signal, sys, threading
import regard
from regard.server import LiveServer
server = LiveServer(regard.load(sys.argv[1]))
server.serve_forever(on_start=lambda: {on_start})
print(server._socket.fileno(), [thread.name for thread in threading.enumerate()])
"""
CLOSED = "-1 ['MainThread']\n"


def served(small_decoder, on_start, **options):
    """A process that serves in the foreground."""
    command = [sys.executable, "-c", SCRIPT.format(on_start=on_start), small_decoder.name]
    environment = {**os.environ, "PYTHONPATH": str(Path(regard.__file__).parents[1]), **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)


@pytest.mark.more
def test_ctrl_c_as_soon_as_the_server_listens_ends_it(small_decoder):
    process = served(small_decoder, "signal.raise_signal(signal.SIGINT)")
    assert (process.communicate(timeout=60), process.returncode) == ((CLOSED, ""), 0)


@pytest.mark.more
@pytest.mark.parametrize("busy", [False, True])
def test_ctrl_c_ends_the_process_and_leaves_nothing(small_decoder, tmp_path, busy):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    said = "print(server.rules.secret, server.port, flush=True)"
    process = served(small_decoder, said, cwd=tmp_path, env={"TMPDIR": str(temporary)})
    secret, port = process.stdout.readline().split()
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
        if busy:
            question = effect_question("the river bank " * 12, over="edges")
            connection.sendall(bytes_of_post(secret, int(port), "effects", question))
            connection.recv(100)
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=60), process.returncode) == ((CLOSED, ""), 0)
    assert list(tmp_path.rglob("*")) == [temporary]  # nothing was written, here or where temporary files go


@pytest.mark.more
def test_a_connection_that_comes_up_while_the_server_stops_holds_nothing_up():
    async def application(scope, receive, send):
        raise AssertionError("there is no request")

    async def accepted_late():
        """A connection that waited in the system's queue until every open one had been closed."""
        while server.servers[0].is_serving():
            await asyncio.sleep(0.001)
        protocol = server.config.http_protocol_class
        state = {"config": server.config, "server_state": server.server_state, "app_state": {}}
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol(**state), theirs)

    def stop_soon():
        server.should_exit = True
        tasks.append(asyncio.ensure_future(accepted_late()))

    tasks = []
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(application, Limits(), on_start=stop_soon, on_stop=lambda: None)
    client, theirs = socket.socketpair()
    with client:
        # In a thread of its own: in this one playwright's loop may be running, where tests with a browser came before.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, server.serve([listening])).result(timeout=60)
        assert tasks[0].done()
        assert not server.server_state.connections
        assert client.recv(1) == b""


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_requests(small_decoder, serve):
    server = serve(small_decoder)

    def resident_after(count):
        """Bytes, after so many requests."""
        for n in range(count):
            ask(server, "the river " * (1 + n % 12))
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_after(100)
    assert resident_after(1_000) - before < 20e6
