"""The command `regard see`: the page of a text or a recording, or some of its heads in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.app import app
from regard.cli.heads import Heads, parse_layers_and_heads
from regard.cli.options import (
    ANY_FAMILY,
    DEFAULT_DECODER,
    DEFAULT_MODEL,
    MODEL_HELP,
    ensure_json_writable,
    errors_of_options,
    import_torch,
    json_option,
    load_model,
    option,
    read_argument,
    show_or_save,
    status,
    stderr_console,
)
from regard.errors import InputError
from regard.files import ensure_writable, read_text

MAX_MEGABYTES = 1e9
DEFAULT_OUT = Path("regard.html")


@app.command(
    help="Write a page that shows the attention of a model in a text, and lets you change it.\n\n"
    "One file that opens in any browser and needs no network: the sentence with its weights as lines, every head as a "
    "small picture, the map down to single cells, the numbers of each row, and what would change if a score, the "
    "scale, the temperature or the mask were another. With --compare also how context changes a word's vector.",
    epilog='Example: regard see "Write a poem about a man fishing on a river bank." --open\n\n'
    'In the terminal: regard see "The animal was too tired." --terminal --token animal\n\n'
    'A page that answers what you type: regard see "The animal was too tired." --with-model --open\n\n'
    'What a decoder looks at while it writes: regard see "The capital of Italy is" --max-new-tokens 20 --open\n\n'
    "A file of regard watch --save: regard see --recording story.safetensors\n\n"
    "What mattered beside what was looked at: regard effect TEXT --html PAGE",
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
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="A decoder first continues the text by at most N tokens, and its attention while it writes is shown, "
            f"too; the model is then by default {DEFAULT_DECODER}. By default the text is only read.",
        ),
    ] = None,
    layer: Annotated[
        str | None, option("LIST", "Only these layers: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    head: Annotated[
        str | None,
        option(
            "LIST",
            "LAYER.HEAD, such as 3.1,4.0; or 0-3, these heads in each layer. The page has these heads whole, and the "
            "others as pictures; by default all that fit. In the terminal: the heads to draw.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "WORD",
            "The word that the page shows first, at its first occurrence. A number that is no word of the text is the "
            "position of a token. By default the last word that all sentences share; of a recording, the strongest "
            "pair of tokens. In the terminal: the keys of this word alone, and more of them.",
        ),
    ] = None,
    effects: Annotated[
        list[Path] | None,
        option(
            "PATH",
            "A file of regard effect --json for the same text and model: the page opens with what mattered. May be "
            "given several times, such as for heads and tokens.",
        ),
    ] = None,
    with_model: Annotated[
        bool,
        typer.Option(
            "--with-model",
            help="The page carries the model, an encoder in 8 bits, and answers what the reader types: one file of "
            "about 25 MB for the default model, no network. With --compare TEXT it opens with two texts.",
        ),
    ] = False,
    max_size: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            min=0.5,
            help="The largest size of the page; by default 5, with --with-model 32.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, option("PATH", f"Where to write the page; by default {DEFAULT_OUT}.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw one head here, and write no page.")] = False,
    json_path: Annotated[
        Path | None,
        json_option(
            "what is shown (of a page its layers and heads, their sizes and errors, and what it omits; in the terminal "
            "each head's queries, keys and weights)"
        ),
    ] = None,
) -> None:
    """Write a page that shows the attention of a model in a text."""
    if sum(value is not None for value in (text, file, recording)) != 1:
        raise InputError("give a TEXT, --file PATH or --recording PATH, one of them")
    if recording is not None and any(value is not None for value in (model, compare, target, max_new_tokens)):
        raise InputError("--recording shows a file: --model, --compare, --target and --max-new-tokens belong to a TEXT")
    if image is not None and (recording is None or terminal):
        raise InputError("--image belongs to the page of a --recording: a TEXT has no image, and --terminal draws none")
    if terminal and (open_ or compare or effects or out is not None):
        raise InputError("--terminal draws here and writes no page: leave --out, --open, --compare and --effects out")
    if with_model:
        _refuse_with_model(
            {
                "--recording": recording,
                "--terminal": terminal or None,
                "--target": target,
                "--max-new-tokens": max_new_tokens,
                "--layer": layer,
                "--head": head,
                "--effects": effects or None,
            }
        )
    if out == Path("-"):
        raise InputError("--out -: a page is a file; give it a name, such as regard.html")
    if max_size is not None and not max_size < MAX_MEGABYTES:
        raise InputError(f"--max-size {max_size}: a number of megabytes")
    layers, heads = parse_layers_and_heads(layer, head)
    out = out or DEFAULT_OUT
    if not terminal:
        if out == json_path:
            raise InputError(f"--out and --json both name {out}: give two different files")
        ensure_writable(out)
    ensure_json_writable(json_path)
    source: Any = recording
    if recording is None:
        source = read_text(file) if file is not None else read_argument(str(text), f"--file {text}")
    import_torch()
    loaded_effects = [regard.Effects.load(path) for path in effects or ()]

    options: dict[str, Any] = {"model": None, "target": target, "token": token, "max_new_tokens": max_new_tokens}
    if recording is None:
        options["model"] = load_model(model or (DEFAULT_MODEL if max_new_tokens is None else DEFAULT_DECODER))
    with errors_of_options(
        compare=compare,
        target=target,
        layer=layer,
        head=head,
        token=token,
        max_size=max_size,
        max_new_tokens=max_new_tokens,
    ):
        if terminal:
            _draw(source, layers, heads, json_path, options)
            return
        with status("running the model") as spinner:

            def progress(paths: Iterable[str]) -> Iterable[str]:
                from rich.progress import track

                spinner.stop()
                disabled = not sys.stderr.isatty()
                return track(paths, "reading each layer", console=stderr_console(), transient=True, disable=disabled)

            page = regard.see(
                source,
                out,
                compare=compare,
                layer=layers,
                head=heads,
                image=image,
                with_model=with_model,
                max_size=None if max_size is None else int(max_size * 1e6),
                title=str(file) if file is not None else None,
                effects=loaded_effects,
                progress=progress,
                **options,
            )
    show_or_save(page, json_path, lambda page, _: print(page))
    if open_:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            print("no browser could be opened: open the file yourself", file=sys.stderr)


def _refuse_with_model(options: dict[str, Any]) -> None:
    """Refuse options of other pages.

    Raises:
        InputError: one of them was given.
    """
    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(
            f"--with-model puts the model into the page of a TEXT, with every layer and head: leave {given[0]} out"
        )


def _draw(
    source: Any, layers: list[int] | None, heads: Heads | None, json_path: Path | None, options: dict[str, Any]
) -> None:
    """Draw some heads in the terminal; by default the most informative one."""
    from regard.lens.recording.head_selection import most_informative_head
    from regard.views.source import attention_source
    from regard.views.terminal.head import draw_heads
    from regard.views.terminal.head_facts import DrawnHeads

    with status("running the model"):
        shown = attention_source(source, layers=layers, heads=heads, **options)
    if options["token"] is not None and shown.initial is not None:
        path, head, query = shown.initial
        drawn, row = shown.heads_beside(path) or [(path, head)], query
    else:
        drawn, row = shown.heads or [], None
    try:
        drawn = drawn or [most_informative_head(shown.recording)]
        show_or_save(DrawnHeads(shown.recording, shown.title, shown.model, drawn, row), json_path, draw_heads)
    except InputError:
        raise
    except ValueError as error:  # no weight is above 0; a map that is empty or has NaN
        raise InputError(str(error)) from error
