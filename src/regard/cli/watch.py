"""The command `regard watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

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
    tell,
)
from regard.errors import InputError

__all__ = ["watch"]


@app.command(
    help="See what a model attends to in a text: every head of every layer, exactly, on real trained weights.\n\n"
    "A table of layers and heads: what kind of head it is (previous token, attention sink, same token, induction, "
    "delimiter, uniform), its entropy, its weight on the first token, how far it looks, and the strongest pair of "
    "words. Of a longer text also which words were looked at most. The model runs once, on its own fast kernels; each "
    "layer says by how much the attention shown differs from what the model computed.\n\n"
    "With an encoder-decoder TEXT is the source, and what it writes for it is watched too.",
    epilog='Example: regard watch "Write a poem about a man fishing on a river bank."\n\n'
    "A file, two layers, kept for regard.Recording.load: regard watch --file story.txt --layers 0,5 "
    "--save story.safetensors",
)
def watch(
    text: Annotated[str | None, typer.Argument(help="A text, in quotes.", show_default=False)] = None,
    file: Annotated[Path | None, option("PATH", "A file with the text, in place of TEXT; UTF-8.")] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + ANY_FAMILY)] = DEFAULT_MODEL,
    layers: Annotated[
        str | None, option("LIST", "These layers only: numbers from 0 and ranges, such as 0,3-5. By default all.")
    ] = None,
    save: Annotated[
        Path | None, option("PATH", "Also keep the recording: a file of safetensors for regard.Recording.load.")
    ] = None,
    json_path: Annotated[
        Path | None, option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """See what a model attends to in a text."""
    from rich.progress import track

    if (text is None) == (file is None):
        raise InputError("give a TEXT or --file PATH, one of them")
    import_torch()
    from regard.files import ensure_writable
    from regard.lens.text import run
    from regard.lens.text.overview import LONG_TEXT_TOKENS

    numbers = None if layers is None else run.parse_layers(layers)
    words = run.read_text(file) if text is None and file is not None else str(text)
    if save is not None:
        if save == json_path:
            raise InputError(f"--save and --json both name {save}: give each a file of its own")
        ensure_writable(save)
    pretrained = loaded(model)
    with status("running the model"):
        seen = run.run(words, pretrained, numbers)
    hidden = not sys.stderr.isatty() or seen.num_tokens < LONG_TEXT_TOKENS
    facts = seen.overview(
        lambda paths: track(paths, "asking each layer", console=on_stderr(), transient=True, disable=hidden)
    )
    if save is not None:
        seen.recording.save(save)

    from regard.views.terminal.heads_table import draw

    tell(facts, json_path, draw)
