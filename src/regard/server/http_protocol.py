"""The HTTP protocol of uvicorn, with a time for the first request of a connection, and a way to drop the connection."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.server.events import ABORT


class TimedProtocol(H11Protocol):
    """Closes a connection whose headers do not arrive: uvicorn waits for the first request without an end."""

    header_seconds = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the headers."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._timer = self.loop.call_later(self.header_seconds, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        if self.scope is None:  # what uvicorn has before the first request
            self.transport.close()  # type: ignore[unreachable]


def timed_protocol(seconds: float) -> type[TimedProtocol]:
    """The protocol with a time of one's own."""
    return type("TimedProtocol", (TimedProtocol,), {"header_seconds": seconds})
