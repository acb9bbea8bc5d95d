"""The command `regard translate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import regard
from regard.cli.app import app
from regard.cli.decoding import BadWords, ForceWords, LengthPenalty, decoding_strategy, max_new_tokens_option
from regard.cli.options import MODEL_HELP, import_torch, load_model, read_argument, stderr_console
from regard.escape import visible


@app.command(
    help="Translate texts, or generate whatever else an encoder-decoder was trained for: one line for each text.",
    epilog='Example: regard translate --model Helsinki-NLP/opus-mt-en-de "The house is old." "It rains."\n\n'
    "A file, line by line: regard translate --model NAME - < in.txt > out.txt",
)
def translate(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts, each in quotes; - reads lines from standard input.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + "Marian, BART, T5.")],
    num_beams: Annotated[int, typer.Option(metavar="N", min=1, help="Beam search with N texts at once.")] = 4,
    length_penalty: LengthPenalty = 1.0,
    force_words: ForceWords = None,
    bad_words: BadWords = None,
    max_new_tokens: Annotated[
        int | None,
        max_new_tokens_option("The most tokens of one text; by default 512, or as many as the model has positions."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that go through the model together.")] = 16,
) -> None:
    """Translate texts, one line for each."""
    from rich.progress import track

    import_torch()
    strategy = decoding_strategy({}, num_beams, length_penalty, 1, force_words, bad_words)
    sources = [line for text in texts for line in _lines(text)]
    targets = regard.translate(
        load_model(model), sources, strategy=strategy, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    # Lines that appear on a terminal show the progress themselves.
    disable = sys.stdout.isatty() or not sys.stderr.isatty() or len(sources) <= batch_size
    for target in track(
        targets, "translating", len(sources), console=stderr_console(), transient=True, disable=disable
    ):
        print(visible(target), flush=True)


def _lines(text: str) -> list[str]:
    """The texts of an argument: itself, or for - the lines of the standard input."""
    content = read_argument(text, f"regard translate - < {text}")
    return content.split("\n") if text == "-" and content else [content] if text != "-" else []
