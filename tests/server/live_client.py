"""A client of the live server over real HTTP, and small models for it."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regard.server import LiveServer

SECONDS = 60
"""For any answer: more means that it never comes."""


@dataclass
class Answered:
    """A response that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The server-sent events: name and data."""
        return list(parse_events(self.body))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def answer(self) -> Any:
        """The data of the last event, which must be the answer."""
        name, data = self.events[-1]
        assert name == "answer", data
        return data

    @property
    def error(self) -> Any:
        """The data of the last event, which must be an error."""
        name, data = self.events[-1]
        assert name == "error", name
        return data


def parse_events(body: bytes) -> Iterator[tuple[str, Any]]:
    for block in body.decode().split("\n\n"):
        if block:
            first, second = block.split("\n")
            yield first.removeprefix("event: "), json.loads(second.removeprefix("data: "))


def request(
    server: LiveServer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    secret: str | None = None,
) -> Answered:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    try:
        connection.request(method, f"/{server.rules.secret if secret is None else secret}/{path}", body, headers or {})
        response = connection.getresponse()
        return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def post(server: LiveServer, path: str, question: Any) -> Answered:
    """A question, as the page asks it."""
    return request(server, "POST", path, json.dumps(question).encode(), {"content-type": "application/json"})


def ask(server: LiveServer, *texts: str, edits: list[dict[str, Any]] | None = None) -> Any:
    """The answer to a question."""
    return post(server, "ask", {"texts": list(texts), "edits": edits or []}).answer


def edit(attention: int, head: int, query: int | None = None, *, off: bool = False, **edits: Any) -> dict[str, Any]:
    """A `ModelEdit`."""
    return {"attention": attention, "head": head, "query": query, "off": off, "edits": edits}


def effect_question(*texts: str, **changes: Any) -> dict[str, Any]:
    """An `EffectQuestion` over the heads."""
    question = {"texts": list(texts), "over": "heads", "metric": "kl", "tokens": [], "ablation": "zero"}
    return {**question, "source": None, **changes}


def generate_question(text: str, count: int, **changes: Any) -> dict[str, Any]:
    """A `GenerateQuestion`, greedy by default."""
    question = {"text": text, "max_new_tokens": count, "temperature": 0, "seed": 0}
    return {**question, "show": {"attention": 0, "head": 0}, **changes}


def open_socket(server: LiveServer, data: bytes = b"") -> socket.socket:
    """A connection of bytes."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
    connection.sendall(data)
    return connection


def raw_post(server: LiveServer, path: str, question: Any) -> bytes:
    """The bytes of a question."""
    return bytes_of_post(server.rules.secret, server.port, path, question)


def bytes_of_post(secret: str, port: int, path: str, question: Any) -> bytes:
    """The same for a server of another process."""
    body = json.dumps(question).encode()
    start = f"POST /{secret}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


def read_all(connection: socket.socket) -> bytes:
    """What a connection brings until the server closes it."""
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)
