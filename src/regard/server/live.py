"""`regard.live`: a model's page, served from this process."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import import_optional
from regard.pretrained.load import load
from regard.server.limits import Limits
from regard.server.live_server import LiveServer

DEFAULT_MODEL = "smollm2"


def live(
    model: Any = None,
    tokenizer: Any = None,
    *,
    port: int = 0,
    open: bool = False,
    texts: str | Sequence[str] = (),
    name: str | None = None,
    host: str = "127.0.0.1",
    allow_remote: bool = False,
    allowed_hosts: str | Sequence[str] = (),
    limits: Limits | None = None,
) -> LiveServer:
    """A page on which one types and a model of this process answers: the views of `regard.see`, for any text.

    In a notebook a cell that ends with it shows the page. Elsewhere open its address, which nobody else can guess::

        with regard.live("smollm2") as server:
            print(server.url)
            input("Enter ends the server.")

    A module of your own needs its tokenizer::

        regard.live(model.eval(), tokenizer)

    The server runs in a thread, one question after the other, first come first served. It keeps no text. It ends with
    `LiveServer.close`, with the block, or with the process.

    Args:
        model: a name, a folder or a GGUF file for `regard.load`, or its result; or a module that `regard.watch` sees,
            in evaluation mode. By default the offline copy of SmolLM2.
        tokenizer: of a module: of tokenizers or of transformers. A model of `regard.load` has its own.
        port: to listen on; 0 for any that is free.
        open: whether to open the page in the browser of this machine.
        texts: one or two that the page opens with; by default one or two of ours.
        name: of the model, on the page; by default its own.
        host: the address to listen on.
        allow_remote: whether other machines may reach the server, which another host than a loopback address needs.
            Nothing is encrypted: everybody on the way can read the address, the texts and the answers.
        allowed_hosts: names beside the address by which browsers may call the server.
        limits: of a request, such as its tokens.

    Returns:
        The server, which answers already.

    Raises:
        InputError: starlette or uvicorn is not installed (the extra ``live``); no such model; a module without a
            tokenizer; a host of other machines without `allow_remote`; a port that is not free.
        TypeError: no model.
    """
    import_optional("starlette", "live")
    import_optional("uvicorn", "live")
    if model is None or isinstance(model, str | Path):
        model = load(DEFAULT_MODEL if model is None else model)
    server = LiveServer(
        model,
        tokenizer,
        host=host,
        port=port,
        texts=texts,
        name=name,
        allow_remote=allow_remote,
        allowed_hosts=allowed_hosts,
        allow_frames=True,
        limits=limits,
    ).start()
    if open and not webbrowser.open(server.url):
        print(f"no browser could be opened: open {server.url} yourself", file=sys.stderr)
    return server
