"""The HTTP protocol of uvicorn, with a time for each request of a connection, and a way to drop the connection."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from regard.server.events import ABORT


class TimedProtocol(H11Protocol):
    """Closes a connection that brings no whole request in time, when it opens and after each response.

    uvicorn waits for the first request without an end. After a response it counts idle time only: a client that sends
    a byte now and then, of the next headers or of a body that nobody reads, would keep its connection for ever.
    """

    header_seconds = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the headers."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._wait_for_request(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request; in a pipeline, uvicorn starts it here."""
        self._timer.cancel()
        self._wait_for_request(self.transport.get_write_buffer_size())
        super().on_response_complete()

    def _wait_for_request(self, unsent: int) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self._close_without_request, self.cycle, unsent)

    def _close_without_request(self, last: RequestResponseCycle | None, unsent: int) -> None:
        """Close, unless a request came after the last one, or the client still reads the last response."""
        if self.cycle is not last:
            return
        left = self.transport.get_write_buffer_size()
        if 0 < left < unsent:
            self._wait_for_request(left)
        elif left:
            self.transport.abort()
        else:
            self.transport.close()


def timed_protocol(seconds: float) -> type[TimedProtocol]:
    """The protocol with a time of one's own."""
    return type("TimedProtocol", (TimedProtocol,), {"header_seconds": seconds})
