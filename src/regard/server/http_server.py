"""`HttpServer`: uvicorn with the limits of `regard live`, and without its log of requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from regard.server.events import Application
from regard.server.http_protocol import timed_protocol
from regard.server.limits import Limits

STOP_SECONDS = 3
"""For open connections to end when the server stops."""


class HttpServer(uvicorn.Server):
    """A server that tells when it listens, and ends what is being computed before it waits for connections.

    Args:
        application: what it serves.
        limits: of a request.
        on_start: called when it listens.
        on_stop: called when it stops, in a thread.
    """

    def __init__(
        self, application: Application, limits: Limits, *, on_start: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            application,
            http=timed_protocol(limits.receive_seconds),
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="asyncio",
            log_config=None,
            log_level="error",  # not a line for each malformed request
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=limits.connections,
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)
        self._on_start, self._on_stop = on_start, on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        await asyncio.get_running_loop().run_in_executor(None, self._on_stop)
        late = asyncio.create_task(self._close_late_connections())
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    async def _close_late_connections(self) -> None:
        """Close what the system had accepted and the loop takes up now: uvicorn closes once, and waits for the rest."""
        closed: set[Any] = set()  # uvicorn protocols
        while True:
            for connection in self.server_state.connections - closed:
                connection.shutdown()
                closed.add(connection)
            await asyncio.sleep(0.01)
