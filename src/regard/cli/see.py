"""The command `regard see`: the page of a text or a recording, or some of its heads in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import regard
from regard.cli.app import app
from regard.cli.options import (
    ANY_FAMILY,
    DEFAULT_MODEL,
    MODEL_HELP,
    import_torch,
    load_model,
    option,
    read_argument,
    status,
    stderr_console,
)
from regard.errors import InputError
from regard.escape import visible

MAX_MEGABYTES = 1e9
DEFAULT_OUT = Path("regard.html")


class SeeSource(NamedTuple):
    """What the command shows."""

    recording: regard.Recording
    title: str
    model: str
    context: Mapping[str, Any] | None


@app.command(
    help="Write a page that shows the attention of a model in a text, and lets you change it.\n\n"
    "One file that opens in any browser and needs no network: the sentence with its weights as lines, every head as a "
    "small picture, the map down to single cells, the numbers of each row, and what would change if a score, the "
    "scale, the temperature or the mask were another. With --compare also how context changes a word's vector.",
    epilog='Example: regard see "Write a poem about a man fishing on a river bank." --open\n\n'
    'In the terminal: regard see "The animal was too tired." --terminal --query animal\n\n'
    "A file of regard watch --save: regard see --recording story.safetensors",
)
def see(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    recording: Annotated[
        Path | None, option("PATH", "A file of regard watch --save or Recording.save, in place of TEXT.")
    ] = None,
    image: Annotated[
        Path | None, option("PATH", "With --recording: the image that the model read, to draw the weights over it.")
    ] = None,
    model: Annotated[
        str | None, option("NAME", f"{MODEL_HELP}{ANY_FAMILY} By default {DEFAULT_MODEL}.", "--model")
    ] = None,
    compare: Annotated[
        list[str] | None,
        option("TEXT", "Another sentence, to see how context changes the words in both. May be given several times."),
    ] = None,
    target: Annotated[
        str | None, option("TEXT", "The output of an encoder-decoder for TEXT. By default the model generates it.")
    ] = None,
    layers: Annotated[
        str | None, option("LIST", "Only these layers: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    heads: Annotated[
        str | None,
        option(
            "LIST",
            "LAYER.HEAD, such as 3.5,4.0: the page has these heads whole, and the others as pictures. By default all "
            "that fit. In the terminal: the heads to draw.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        option(
            "TOKEN",
            "In the terminal: the keys of this query alone, and more of them. Of a token that occurs several times, "
            "the first. A number that is no token of the text is a position.",
        ),
    ] = None,
    max_size: Annotated[float, typer.Option(metavar="MB", min=0.5, help="The largest size of the page.")] = 5.0,
    out: Annotated[Path | None, option("PATH", f"Where to write the page; by default {DEFAULT_OUT}.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head here, and write no page.")] = False,
) -> None:
    """Write a page that shows the attention of a model in a text."""
    if sum(value is not None for value in (text, file, recording)) != 1:
        raise InputError("give a TEXT, --file PATH or --recording PATH, one of them")
    if recording is not None and any(value is not None for value in (model, compare, target, layers)):
        raise InputError("--recording shows a file: --model, --compare, --target and --layers belong to a TEXT")
    if image is not None and (recording is None or terminal):
        raise InputError("--image belongs to the page of a --recording: a TEXT has no image, and --terminal draws none")
    if terminal and (open_ or compare or out is not None):
        raise InputError("--terminal draws here and writes no page: leave --out, --open and --compare out")
    if query is not None and not terminal:
        raise InputError("--query belongs to --terminal; on the page you choose the query by a click")
    if out == Path("-"):
        raise InputError("--out -: a page is a file; give it a name, such as regard.html")
    if not max_size < MAX_MEGABYTES:
        raise InputError(f"--max-size {max_size}: a number of megabytes")
    import_torch()
    from regard.files import ensure_writable
    from regard.lens.text.run import parse_heads

    if not terminal:
        ensure_writable(out or DEFAULT_OUT)

    given_heads = None if heads is None else parse_heads(heads)
    if recording is not None:
        source = SeeSource(regard.Recording.load(recording), recording.name, "", None)
    else:
        source = _run(text, file, model or DEFAULT_MODEL, layers, target, compare)
    if given_heads is not None:
        _resolve(source.recording, given_heads)  # before anything is computed
    try:
        if terminal:
            _draw(source.recording, given_heads, query)
            return
        page = _render(source, given_heads, int(max_size * 1e6), image)
    except ValueError as error:  # there is nothing to show; the size is too small
        raise InputError(str(error)) from error

    from regard.files import write_text

    out = out or DEFAULT_OUT
    write_text(page, out)
    print(f"{visible(str(out))}: {len(page.encode()) / 1e6:.2f} MB")
    if open_:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            print("no browser could be opened: open the file yourself", file=sys.stderr)


def _run(
    text: str | None, file: Path | None, model: str, layers: str | None, target: str | None, compare: list[str] | None
) -> SeeSource:
    """Run a model on a text."""
    from regard.lens.text import run
    from regard.lens.text.contextual import contextual_vectors

    indices = None if layers is None else run.parse_layers(layers)
    words = run.read_text(file) if file is not None else read_argument(str(text), f"--file {text}")
    pretrained = load_model(model)
    with status("running the model"):
        text_run = run.run(words, pretrained, indices, target)
        text_run.label_surface_forms()
        context = contextual_vectors([words, *compare], pretrained).to_dict() if compare else None
    return SeeSource(text_run.recording, words if file is None else str(file), pretrained.name, context)


def _resolve(recording: regard.Recording, heads: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """The paths of some layers, and the places of heads in their maps."""
    from regard.lens.recording.head_selection import resolve_heads

    try:
        return resolve_heads(recording, heads)
    except LookupError as error:  # there is no such layer or head
        raise InputError(str(error.args[0])) from error


def _draw(recording: regard.Recording, heads: Sequence[tuple[int, int]] | None, query: str | None) -> None:
    """Draw some heads in the terminal; by default the most informative one."""
    from regard.lens.recording.head_selection import most_informative_head
    from regard.views.terminal.console import console_for
    from regard.views.terminal.head import draw, find_query

    for path, head in _resolve(recording, heads) if heads else [most_informative_head(recording)]:
        position = None if query is None else find_query(recording[path], query)
        draw(recording, console_for(sys.stdout), path=path, head=head, query=position)


def _render(source: SeeSource, heads: Sequence[tuple[int, int]] | None, max_size: int, image: Path | None) -> str:
    """The page, with a progress bar."""
    from rich.progress import track

    from regard.views.html import PageImage, render_page

    disabled = not sys.stderr.isatty()
    return render_page(
        source.recording,
        title=source.title,
        model=source.model,
        max_size=max_size,
        heads=heads,
        image=None if image is None else PageImage.load(image),
        context=source.context,
        progress=lambda paths: track(
            paths, "reading each layer", console=stderr_console(), transient=True, disable=disabled
        ),
    )
