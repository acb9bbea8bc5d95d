"""Server-sent events, and the stream of one request: written by the computing thread, read by the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An application or a response, as ASGI defines them."""

LATEST_ONLY = ("queue", "progress")
"""Of these events a slow reader gets the latest: the others say less."""


def encode_event(name: str, data: Any) -> bytes:
    """An event as the EventSource specification of the HTML standard writes it (section 9.2).

    Args:
        name: of the event.
        data: its JSON. No text of it can end the event: JSON escapes line ends, and here all that is not ASCII.

    Raises:
        ValueError: a number that is NaN or infinite.
    """
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n".encode("ascii")


class EventStream:
    """The events of one request.

    Args:
        loop: the event loop that sends them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: list[tuple[str, bytes]] = []
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, name: str, data: Any) -> None:
        """Add an event; from any thread, which also encodes it."""
        self._call(self._append, name, encode_event(name, data))

    def end(self) -> None:
        """Say that no event follows; from any thread."""
        self._call(self._end)

    async def events(self) -> AsyncIterator[bytes]:
        """The events as they come."""
        while True:
            while self._pending:
                yield self._pending.pop(0)[1]
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the server is gone, and so is the reader
            self._loop.call_soon_threadsafe(function, *arguments)

    def _append(self, name: str, event: bytes) -> None:
        if name in LATEST_ONLY:
            self._pending = [other for other in self._pending if other[0] != name]
        self._pending.append((name, event))
        self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()


PART_BYTES = 2**16
"""Of a large event as much is sent at a time."""

ABORT = "regard.abort"
"""In the state of a request: drops its connection, and what was not yet sent."""

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class EventResponse:
    """A response of events. It ends early when the client goes away, or does not read.

    Args:
        stream: the events.
        on_end: called when the response has ended, however it ended.
        send_seconds: in which the client must read `PART_BYTES`.
    """

    def __init__(self, stream: EventStream, on_end: Callable[[], None], send_seconds: float) -> None:
        self.stream, self.on_end, self.send_seconds = stream, on_end, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client is gone."""
        gone = asyncio.ensure_future(_until_gone(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            # To close the connection would wait until the client has read what was sent.
            scope["state"][ABORT]()
            await gone
        finally:
            self.on_end()
            for task in (gone, sending):
                task.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        async for event in self.stream.events():
            for start in range(0, len(event), PART_BYTES):
                part = event[start : start + PART_BYTES]
                body = {"type": "http.response.body", "body": part, "more_body": True}
                await asyncio.wait_for(send(body), self.send_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_error(send: Send, status: int, message: str, name: str) -> None:
    """Refuse a request before anything is computed: with a status, and a JSON object that says why.

    Args:
        send: of the request.
        status: of the response.
        message: a line for people.
        name: the field or the limit that is to blame, such as ``texts`` or ``queue``.
    """
    body = json.dumps({"message": message, "name": name}).encode("ascii")
    # What of the request was not read stays unread.
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode("ascii")))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
