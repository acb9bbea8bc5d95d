"""The command `regard see`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.app import app
from regard.cli.options import (
    ANY_FAMILY,
    DEFAULT_MODEL,
    MODEL_HELP,
    import_torch,
    loaded,
    on_stderr,
    option,
    status,
)
from regard.errors import InputError
from regard.escape import visible

__all__ = ["see"]


@app.command(
    help="Write a page on which you can look at the attention of a model in a text, touch it, and follow its "
    "arithmetic.\n\n"
    "One file that opens in any browser and asks nothing of a network: the sentence with its weights as lines, every "
    "head as a small picture, the map down to single cells, the numbers of each row, and what would change if a score, "
    "the scale, the temperature or the mask were another. With --compare also how context changes a word's vector.",
    epilog='Example: regard see "Write a poem about a man fishing on a river bank." --open\n\n'
    'In the terminal: regard see "The animal was too tired." --terminal\n\n'
    "What regard watch --save kept: regard see --recording story.safetensors",
)
def see(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    recording: Annotated[
        Path | None, option("PATH", "What regard watch --save or Recording.save kept, in place of TEXT.")
    ] = None,
    model: Annotated[
        str | None, option("NAME", f"{MODEL_HELP}{ANY_FAMILY} By default {DEFAULT_MODEL}.", "--model")
    ] = None,
    compare: Annotated[
        list[str] | None,
        option("TEXT", "Another sentence, to see how context changes the words in both. May be given several times."),
    ] = None,
    target: Annotated[
        str | None, option("TEXT", "What an encoder-decoder writes for TEXT. By default what it writes by itself.")
    ] = None,
    layers: Annotated[
        str | None, option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    heads: Annotated[
        str | None,
        option(
            "LIST",
            "LAYER.HEAD, such as 3.5,4.0: these heads are in the page whole, and the others as pictures. By default "
            "all that fit. In the terminal: these are drawn.",
        ),
    ] = None,
    max_size: Annotated[float, typer.Option(metavar="MB", min=0.5, help="The most that the page may take.")] = 5.0,
    out: Annotated[Path | None, option("PATH", "Where to write the page; by default regard.html.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head here, and write no page.")] = False,
) -> None:
    """Write a page on which you can look at the attention of a model in a text."""
    from rich.progress import track

    if sum(given is not None for given in (text, file, recording)) != 1:
        raise InputError("give a TEXT, --file PATH or --recording PATH, one of them")
    if recording is not None and any(given is not None for given in (model, compare, target, layers)):
        raise InputError("--recording shows what was kept: --model, --compare, --target and --layers belong to a TEXT")
    if terminal and (open_ or compare or out is not None):
        raise InputError("--terminal draws here and writes no page: leave --out, --open and --compare out")
    if out == Path("-"):
        raise InputError("--out -: a page is a file; give it a name, such as regard.html")
    if not max_size < 1e9:
        raise InputError(f"--max-size {max_size}: a number of megabytes")
    import_torch()
    from regard.lens.recording.head_selection import most_informative_head, resolve_heads
    from regard.lens.text import run
    from regard.lens.text.contextual import contextual_vectors

    wanted = None if heads is None else run.parse_heads(heads)
    if recording is not None:
        serialization, title, name, context = regard.Recording.load(recording), recording.name, "a recording", None
    else:
        numbers = None if layers is None else run.parse_layers(layers)
        words = run.read_text(file) if text is None and file is not None else str(text)
        pretrained = loaded(model or DEFAULT_MODEL)
        with status("running the model"):
            seen = run.run(words, pretrained, numbers, target)
            seen.label_surface_forms()
            context = contextual_vectors([words, *compare], pretrained).to_dict() if compare else None
        serialization, title, name = seen.recording, words if text is not None else str(file), pretrained.name
    try:
        asked = resolve_heads(serialization, wanted) if wanted else None
    except LookupError as error:  # no such layer or head
        raise InputError(str(error.args[0])) from error
    try:
        if terminal:
            from regard.views.terminal.console import console_for
            from regard.views.terminal.head import draw

            for path, head in asked or [most_informative_head(serialization)]:
                draw(serialization, console_for(sys.stdout), path=path, head=head)
            return

        from regard.files import write_text
        from regard.views.html import render_page

        hidden = not sys.stderr.isatty()
        page = render_page(
            serialization,
            title=title,
            model=name,
            max_size=int(max_size * 1e6),
            heads=wanted,
            context=context,
            progress=lambda paths: track(
                paths, "asking each layer", console=on_stderr(), transient=True, disable=hidden
            ),
        )
    except ValueError as error:  # nothing to show; a size that is too small
        raise InputError(str(error)) from error
    out = out or Path("regard.html")
    write_text(page, out)
    print(f"{visible(str(out))}: {len(page.encode()) / 1e6:.2f} MB")
    if open_:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            print("no browser could be opened: open the file yourself", file=sys.stderr)
