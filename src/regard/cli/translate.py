"""The command `regard translate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.app import app
from regard.cli.decoding import (
    BadWords,
    ForceWords,
    LengthPenalty,
    NumReturnSequences,
    decoding_strategy,
    hypothesis_facts,
    max_new_tokens_option,
    print_hypotheses,
)
from regard.cli.options import (
    MODEL_HELP,
    ensure_json_writable,
    import_torch,
    json_option,
    load_model,
    read_argument,
    stderr_console,
    write_json,
)
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
    num_return_sequences: NumReturnSequences = 1,
    force_words: ForceWords = None,
    bad_words: BadWords = None,
    max_new_tokens: Annotated[
        int | None,
        max_new_tokens_option("The most tokens of one text; by default 512, or as many as the model has positions."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that go through the model together.")] = 16,
    json_path: Annotated[
        Path | None,
        json_option(
            "model and translations: each source with its hypotheses, which have text, ids, tokens, score, stop_reason,"
        ),
    ] = None,
) -> None:
    """Translate texts, one line for each."""
    from rich.progress import track

    strategy = decoding_strategy({}, num_beams, length_penalty, num_return_sequences, force_words, bad_words)
    sources = [line for text in texts for line in _lines(text)]
    ensure_json_writable(json_path)
    import_torch()
    pretrained = load_model(model)
    targets = regard.translate(
        pretrained,
        sources,
        strategy=strategy,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        return_hypotheses=True,
    )
    # Lines that appear on a terminal show the progress themselves.
    disable = sys.stdout.isatty() or not sys.stderr.isatty() or len(sources) <= batch_size
    translations = []
    tracked = track(targets, "translating", len(sources), console=stderr_console(), transient=True, disable=disable)
    for source, target in zip(sources, tracked, strict=True):
        hypotheses = [target] if num_return_sequences == 1 else target
        if json_path != Path("-"):
            print_hypotheses(hypotheses, visible)
        if json_path is not None:
            translations.append({"source": source, "hypotheses": hypothesis_facts(hypotheses, pretrained)})
    write_json({"model": model, "translations": translations}, json_path)


def _lines(text: str) -> list[str]:
    """The texts of an argument: itself, or for - the lines of the standard input."""
    content = read_argument(text, f"regard translate - < {text}")
    return content.split("\n") if text == "-" and content else [content] if text != "-" else []
