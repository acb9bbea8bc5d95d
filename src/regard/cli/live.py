"""The command `regard live`: a page on which one types, and a model of this machine answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.app import app
from regard.cli.options import ANY_FAMILY, DEFAULT_DECODER, MODEL_HELP, import_torch, load_model, option
from regard.errors import import_optional
from regard.escape import visible

if TYPE_CHECKING:
    from regard.server.live_server import LiveServer


@app.command(
    help="Serve a page on which you type and a model of this machine answers, until Ctrl-C.\n\n"
    "Type a sentence, and every view of regard see follows: where each head looks, its map, the numbers of a row. What "
    "if goes through the real model, and so does Effect: heads, tokens or edges are removed while you watch. A decoder "
    "says which tokens come next, and writes while its map grows. Any model that regard can load will do.\n\n"
    "Only this machine reaches the page: the server listens on 127.0.0.1, the address has a secret that is another one "
    "each time, and requests from other pages are refused. Texts are neither kept nor written to disk, and nothing "
    "leaves the machine. Several pages may be open at once; the model answers one after the other.\n\n"
    "--host with another address lets other machines in, such as those of a class: whoever knows the address may use "
    "the model, and nothing is encrypted. So it also needs --allow-remote.",
    epilog="Example: regard live --open\n\n"
    "A sentence encoder: regard live --model sentence-transformers/all-MiniLM-L6-v2\n\n"
    "A file of llama.cpp, always at the same port: regard live --model model.gguf --port 8000\n\n"
    "A class in the same network: regard live --host 0.0.0.0 --allow-remote\n\n"
    "From Python, with a model of your own: regard.live(model, tokenizer)",
)
def live(
    model: Annotated[
        str, option("NAME", f"{MODEL_HELP}{ANY_FAMILY} Or a GGUF file. By default {DEFAULT_DECODER}.", "--model")
    ] = DEFAULT_DECODER,
    port: Annotated[
        int,
        option(
            "N", "The port to listen on, from 0 to 65535; by default, or for 0, one that is free.", min=0, max=65535
        ),
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    text: Annotated[
        list[str] | None,
        option("TEXT", "What the page opens with. May be given twice: then both are compared. By default one of ours."),
    ] = None,
    host: Annotated[
        str, option("ADDRESS", "The address to listen on; by default 127.0.0.1, which only this machine reaches.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Other machines may reach the server. Everybody on the way can read the texts and the secret.",
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        option(
            "NAME", "A name by which browsers may call this machine, beside its address. May be given several times."
        ),
    ] = None,
) -> None:
    """Serve a page on which you type and a model of this machine answers, until Ctrl-C."""
    import_optional("starlette", "live")
    import_optional("uvicorn", "live")
    import_torch()
    from regard.server.live_server import LiveServer, validate_host

    validate_host(host, allow_remote)  # before the model is read
    server = LiveServer(
        load_model(model),
        host=host,
        port=port,
        texts=text or (),
        allow_remote=allow_remote,
        allowed_hosts=allowed_host or (),
    )
    server.serve_forever(lambda: _announce(server, open_))


def _announce(server: LiveServer, open_: bool) -> None:
    """Print the address, now that it answers."""
    from regard.server.security import is_loopback

    print(server.url, flush=True)
    print(f"{visible(server.model.facts()['name'])} answers at this address. Ctrl-C ends it.", file=sys.stderr)
    if not is_loopback(server.rules.host):
        print(
            f"Other machines reach it at port {server.port} of this one's own address, with the same path. Whoever "
            "knows it may use the model; nothing is encrypted.",
            file=sys.stderr,
        )
    if open_:
        import webbrowser

        if not webbrowser.open(server.url):
            print("no browser could be opened: open the address yourself", file=sys.stderr)
