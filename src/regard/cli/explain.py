"""The command `regard explain`."""

from __future__ import annotations

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
    option,
    status,
    tell,
)

__all__ = ["explain"]


@app.command(
    help="Show what attention does with a word of a sentence, on real trained weights.\n\n"
    "The tokens and the input; where the word looks; the arithmetic of that row, number by number; how context "
    "changes the word (with --compare); and the proof: the row by the definition in float64, held against what the "
    "model itself computed.\n\n"
    "In an encoder a word looks at all words of the text, in a decoder at itself and those before it. With an "
    "encoder-decoder TEXT is the source, and the word is one that is written for it, the last by default: shown is "
    "which words of the source it came from (cross-attention).",
    epilog='Example: regard explain "Write a poem about a man fishing on a river bank." --token bank '
    '--compare "Write a poem about a man applying for a loan in a bank."\n\n'
    'Which word of a sentence a translated word came from: regard explain "Das Haus ist alt." --token house '
    "--model Helsinki-NLP/opus-mt-de-en",
)
def explain(
    text: Annotated[str, typer.Argument(help="A sentence, in quotes.", show_default=False)],
    token: Annotated[
        str | None,
        option(
            "WORD",
            "The word to explain; of a word that stands there twice, the first. A number that is no word of the text "
            "is a token's position. By default the last word that all sentences share.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        option(
            "N",
            "Which layer, from 0. By default layer and head are those in which one other token of the text gets its "
            "largest share from the word.",
        ),
    ] = None,
    head: Annotated[int | None, option("N", "Which head, from 0.")] = None,
    compare: Annotated[
        list[str] | None,
        option(
            "TEXT",
            "Another sentence with the same word, to see how context changes it. May be given several times.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option(
            "TEXT",
            "What an encoder-decoder writes for TEXT. By default what it writes by itself, the likeliest token each "
            "time.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        option(
            "KIND",
            "Of an encoder-decoder: cross (the default: a word of the target looks at the source), decoder (it looks "
            "at itself and those before it) or encoder (a word of the source looks at the source).",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=MODEL_HELP + ANY_FAMILY,
        ),
    ] = DEFAULT_MODEL,
    json_path: Annotated[
        Path | None, option("PATH", "Also write every fact as JSON; - prints only that.", "--json")
    ] = None,
) -> None:
    """Show what attention does with a word of a sentence, on real trained weights."""
    import_torch()
    with status("reading the model"):
        explanation = regard.explain(
            text, token, model, compare, layer=layer, head=head, target=target, attention=attention
        )

    from regard.views.terminal.explanation import draw

    tell(explanation, json_path, draw)
