"""The command `regard watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import app
from regard.cli.heads import parse_layers_and_heads
from regard.cli.options import (
    ANY_FAMILY,
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


@app.command(
    help="Show what a model attends to in a text: every head of every layer, exactly, on real trained weights.\n\n"
    "The table has for each head its type (previous token, attention sink, same token, induction, delimiter, uniform), "
    "its entropy, its weight on the first token, its distance, and its strongest pair of tokens. For a longer text "
    "the words that received most attention follow. The model runs once, on its own fast kernels; each layer has an "
    "error: by how much the attention shown differs from what the model computed.\n\n"
    "With an encoder-decoder TEXT is the source; the model generates the target, and all three attentions are shown.",
    epilog='Example: regard watch "Write a poem about a man fishing on a river bank."\n\n'
    "A file, two layers, saved for regard.Recording.load: regard watch --file story.txt --layer 0,5 "
    "--save story.safetensors",
)
def watch(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, option("PATH", "A UTF-8 file with the text, instead of TEXT.")] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + ANY_FAMILY)] = DEFAULT_MODEL,
    layer: Annotated[
        str | None, option("LIST", "Show these layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    head: Annotated[
        str | None,
        option("LIST", "Show these heads only: LAYER.HEAD, such as 3.1,4.0; or 0-3, these heads in each layer."),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "WORD",
            "Also show what this word attends to, in the most informative of the heads shown. At its first occurrence; "
            "a number that is no word of the text is the position of a token.",
        ),
    ] = None,
    save: Annotated[
        Path | None, option("PATH", "Also save the recording as a safetensors file for regard.Recording.load.")
    ] = None,
    json_path: Annotated[Path | None, json_option("all facts")] = None,
) -> None:
    """Show what a model attends to in a text."""
    from rich.progress import track

    if (text is None) == (file is None):
        raise InputError("give a TEXT or --file PATH, one of them")
    layers, heads = parse_layers_and_heads(layer, head)
    if save is not None:
        if save == json_path:
            raise InputError(f"--save and --json both name {save}: give two different files")
        ensure_writable(save)
    ensure_json_writable(json_path)
    content = read_text(file) if file is not None else read_argument(str(text), f"--file {text}")
    import_torch()
    from regard.lens.text import run
    from regard.lens.text.overview import LONG_TEXT_TOKENS

    pretrained = load_model(model)
    with errors_of_options(layer=layer, head=head, token=token):
        with status("running the model"):
            text_run = run.run(content, pretrained, layers, heads=heads)
        no_progress = not sys.stderr.isatty() or text_run.num_tokens < LONG_TEXT_TOKENS
        overview = text_run.overview(
            lambda paths: track(
                paths, "summarizing layers", console=stderr_console(), transient=True, disable=no_progress
            ),
            token=token,
        )
    if save is not None:
        text_run.recording.save(save)

    from regard.views.terminal.heads_table import draw

    show_or_save(overview, json_path, draw)
