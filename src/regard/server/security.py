"""Who may ask: the secret in the address, the `Host` and the `Origin` of a request; and the headers of every response.

A page of another site can make a browser send requests to 127.0.0.1. It does not know the secret. It cannot read an
answer, since no CORS header allows it, and its `Origin` is refused. By DNS rebinding (Jackson et al. 2007, "Protecting
Browsers from DNS Rebinding Attacks") its own name becomes the name of this machine; then its `Host` is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import compare_digest

from regard.errors import InputError
from regard.server.events import Application, Message, Receive, Scope, Send, send_error

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

LOOPBACK_FRAMES = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*"
"""Where a notebook's page comes from, which shows the page in a frame."""

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)
"""A `Host` header as RFC 9110 has it: a name or an address, and the port."""

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class AccessRules:
    """What a request must have to be answered."""

    secret: str
    """The first part of the path."""
    host: str = "127.0.0.1"
    """The address on which the server listens."""
    allowed_hosts: Sequence[str] = ()
    """Other names by which browsers may call it, those of `host_names`."""
    allow_frames: bool = False
    """Whether pages of this machine, such as a notebook, may show the page in a frame."""

    def has_secret(self, path: str) -> bool:
        """Whether a path begins with the secret; the comparison takes the same time wherever the two differ."""
        return compare_digest(path.split("/")[1].encode() if "/" in path else b"", self.secret.encode())

    def allows_host(self, host: str) -> bool:
        """Whether this is a name of this server: no name that somebody else's DNS can point here."""
        name = _host_name(host)
        if name is None:
            return False
        if name in LOOPBACK_NAMES or name == self.host.lower() or name in self.allowed_hosts:
            return True
        # Rebinding needs a name. Other machines reach a server that listens for them by its address, too.
        return not is_loopback(self.host) and _is_address(name)

    @property
    def frame_ancestors(self) -> str:
        """The sources of the policy `frame-ancestors`."""
        return LOOPBACK_FRAMES if self.allow_frames else "'none'"


def host_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of this machine as a `Host` header has them, in small letters and without a port.

    Raises:
        InputError: no name, such as an address of the web.
    """
    names = [names] if isinstance(names, str) else names
    for name in names:
        if _host_name(name) != name.lower():
            raise InputError(
                f"{name!r} is no name of a machine: write it as in teacher.local, without http://, port and path",
                "allowed_hosts",
            )
    return tuple(name.lower() for name in names)


def _host_name(host: str) -> str | None:
    """The name or address in a `Host` header, without its port; None where it is malformed."""
    found = HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class SecureApplication:
    """An application behind `AccessRules`; its paths begin after the secret.

    Args:
        application: answers the requests that may be answered.
        rules: which may.
    """

    def __init__(self, application: Application, rules: AccessRules) -> None:
        self.application, self.rules = application, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self._headers(list(message.get("headers", ())))}
            await send(message)

        path = scope["path"]
        if not self.rules.has_secret(path):
            await _send_empty(send_secured, 404)
        elif (refusal := self._refusal(scope)) is not None:
            await send_error(send_secured, 403, refusal, "origin")
        elif path.count("/") == 1:  # without the slash, the page's relative addresses would lack the secret
            await _send_empty(send_secured, 308, [(b"location", f"{path}/".encode())])
        else:
            inner = "/" + path.split("/", 2)[2]
            await self.application({**scope, "path": inner, "raw_path": inner.encode()}, receive, send_secured)

    def _refusal(self, scope: Scope) -> str | None:
        """Why a request with the secret is refused; None where it is not."""
        hosts, origins = ([value for name, value in scope["headers"] if name == key] for key in (b"host", b"origin"))
        if len(hosts) != 1 or not self.rules.allows_host(host := hosts[0].decode("latin-1")):
            return "this server answers to its own address only: open the address that it printed"
        if origins and origins != [f"{scope['scheme']}://{host}".encode("latin-1")]:
            return "this server answers its own page only, and no page of another origin"
        return None

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of a response with those that every one has."""
        names = {name.lower() for name, _ in headers}
        policy = f"default-src 'none'; frame-ancestors {self.rules.frame_ancestors}".encode()
        added = {**HEADERS, b"content-security-policy": policy}
        return headers + [(name, value) for name, value in added.items() if name not in names]


async def _send_empty(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *headers]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
