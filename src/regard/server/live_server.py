"""`LiveServer`: the page of `regard live`, in the foreground or in a thread of its own."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from torch import nn

from regard.errors import InputError, errors_of_argument, import_optional, require_utf8
from regard.pretrained import Pretrained
from regard.server.frame import server_frame
from regard.server.limits import Limits
from regard.server.live_model import LiveModel
from regard.server.pretrained_model import PretrainedModel
from regard.server.queueing import ComputeQueue
from regard.server.security import AccessRules, host_names, is_loopback
from regard.server.user_module import UserModule

SECRET_BYTES = 24
"""Of the secret in the address: 192 random bits."""

START_SECONDS = 20.0
STOP_SECONDS = 10.0


class LiveServer:
    """A model on this machine, and the page that asks it.

    ::

        with LiveServer(regard.load("smollm2")) as server:
            print(server.url)

    Args:
        model: from `regard.load`, or a module that `regard.watch` sees, in evaluation mode.
        tokenizer: of a module: of tokenizers or of transformers. A model of `regard.load` has its own.
        host: the address to listen on.
        port: to listen on; 0 for any that is free.
        texts: one or two that the page opens with; by default one or two of ours.
        name: of the model, on the page; by default its own.
        allow_remote: whether other machines may reach the server. It has no encryption: everybody on the way can read
            the secret, the texts and the answers.
        allowed_hosts: names beside the address by which browsers may call the server.
        allow_frames: whether pages of this machine, such as a notebook, may show the page in a frame.
        limits: of a request.

    Raises:
        InputError: starlette or uvicorn is not installed; a model without a tokenizer; an address of other machines
            without `allow_remote`; a port that is not free; a text that the model cannot read; a wrong name of a host.
        TypeError: no model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        texts: str | Sequence[str] = (),
        name: str | None = None,
        allow_remote: bool = False,
        allowed_hosts: str | Sequence[str] = (),
        allow_frames: bool = False,
        limits: Limits | None = None,
    ) -> None:
        import_optional("starlette", "live")
        import_optional("uvicorn", "live")
        validate_host(host, allow_remote)
        self.limits = limits or Limits()
        texts = [texts] if isinstance(texts, str) else texts
        self.model = _live_model(model, tokenizer, self.limits, texts, name)
        _require_readable(self.model, texts)
        self.rules = AccessRules(secrets.token_urlsafe(SECRET_BYTES), host, host_names(allowed_hosts), allow_frames)
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        """The port that it listens on."""
        self._queue: ComputeQueue | None = None
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page. Who knows it may ask the model."""
        host = self.rules.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{self.rules.secret}/"

    def start(self) -> LiveServer:
        """Serve in a thread of its own, until `close`; does nothing where it serves already.

        Raises:
            RuntimeError: it was closed; the thread did not start.
        """
        self._require_open()
        if self._thread is None:
            self._prepare()
            self._thread = threading.Thread(target=self._run, name="regard-live", daemon=True)
            self._thread.start()
            if not self._started.wait(START_SECONDS):
                self.close()
                raise RuntimeError("the server did not start")
        return self

    def serve_forever(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Serve in the foreground, until Ctrl-C; nothing is left behind.

        Args:
            on_start: called when the server answers.

        Raises:
            RuntimeError: it was closed.
        """
        try:
            with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
                self._prepare(on_start)
                self._run()
        finally:
            self.close()

    def close(self) -> None:
        """Stop: every request ends, threads and port are free. A second call does nothing."""
        if self._queue is not None:
            self._queue.close()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)
        self._socket.close()

    def __enter__(self) -> LiveServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LiveServer({self.model.facts()['name']!r}, {self.url})"

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        return server_frame(self.url, f"{self.model.facts()['name']}, live")

    def _require_open(self) -> None:
        if self._socket.fileno() < 0:
            raise RuntimeError("this server was closed: make another")

    def _prepare(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Make the server that listens on the socket.

        Args:
            on_start: called when it answers.

        Raises:
            RuntimeError: it was closed.
        """
        from regard.server.application import make_application
        from regard.server.http_server import HttpServer

        self._require_open()
        self._queue = ComputeQueue(self.limits.waiting, self.limits.compute_seconds)
        application = make_application(self.model, self._queue, self.rules, self.limits)
        self._started = threading.Event()

        def started() -> None:
            self._started.set()
            on_start()

        self._server = HttpServer(application, self.limits, on_start=started, on_stop=self._queue.close)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def validate_host(host: str, allow_remote: bool) -> None:
    """Refuse an address of other machines that was not asked for.

    Raises:
        InputError: it is no loopback address, and `allow_remote` is not said.
    """
    if not allow_remote and not is_loopback(host):
        raise InputError(
            f"host={host!r} would let other machines use this model and, because nothing is encrypted, read the "
            "secret and every text on its way. For this machine take 127.0.0.1; otherwise say so: allow_remote=True",
            "host",
        )


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: no such address; a port that is not free.
    """
    if not 0 <= port <= 65_535:  # getaddrinfo takes 70000 for 4464
        raise InputError(f"port: a whole number from 0 to 65535; got {port}", "port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"host={host!r} is no address of this machine: {error}", "host") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except (OSError, OverflowError) as error:
        found.close()
        raise InputError(
            f"port={port} of {host} cannot be used: {error}. Take another, or 0 for any that is free", "port"
        ) from error
    return found


def _require_readable(model: LiveModel, texts: Sequence[str]) -> None:
    """Refuse texts with which the page could not open.

    Raises:
        InputError: an empty text; one that the model cannot read.
    """
    for n, text in enumerate(texts):
        with errors_of_argument(f"texts[{n}]"):
            if not text.strip():
                raise InputError("a page opens with a text, and this one is empty: write a sentence, or leave it out")
            model.read(text)


def _live_model(model: Any, tokenizer: Any, limits: Limits, texts: Sequence[str], name: str | None) -> LiveModel:
    """The model as the server sees it.

    Raises:
        InputError: a tokenizer for a model that has its own; more than two texts.
        TypeError: no model.
    """
    if len(texts) > 2:
        raise InputError(f"a page opens with one text, or two that are compared; got {len(texts)}", "texts")
    with errors_of_argument("name"):
        require_utf8(name or "")
    if isinstance(model, Pretrained):
        if tokenizer is not None:
            raise InputError(f"tokenizer is for modules: {model.name} has its own", "tokenizer")
        return PretrainedModel(model, limits, texts, name)
    if isinstance(model, nn.Module):
        return UserModule(model, tokenizer, limits, texts, name)
    raise TypeError(
        f"a live page takes a model of regard.load or a torch.nn.Module; got {type(model).__name__}"
        + (f": write regard.load({model!r})" if isinstance(model, str) else "")
    )
