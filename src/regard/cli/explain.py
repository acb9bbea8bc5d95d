"""The command `regard explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.app import app
from regard.cli.heads import parse_one_head
from regard.cli.options import (
    ANY_FAMILY,
    DEFAULT_MODEL,
    MODEL_HELP,
    ensure_json_writable,
    errors_of_options,
    import_torch,
    json_option,
    option,
    read_argument,
    require_choice,
    show_or_save,
    status,
)
from regard.errors import InputError

ATTENTIONS = ("cross", "decoder", "encoder")

MAX_KEYS = 20
"""The most keys of a row that are shown without --all."""


@app.command(
    help="Show what attention does with a word of a sentence, on real trained weights.\n\n"
    "The output has up to six parts: the tokens and the input; what the word attends to; of a decoder, what comes "
    "next; the arithmetic of that row, number by number; how context changes the word (with --compare); and the proof: "
    "the row by the definition in float64, compared with the model's own output.\n\n"
    "In an encoder a word attends to all words of the text, in a decoder to itself and earlier words. With an "
    "encoder-decoder TEXT is the source, and the word is one of the target, the last by default: the row shows which "
    "words of the source it came from (cross-attention).",
    epilog='Example: regard explain "Write a poem about a man fishing on a river bank." --token bank '
    '--compare "Write a poem about a man applying for a loan in a bank."\n\n'
    'A decoder: regard explain "The capital of France is" --model smollm2\n\n'
    'Which word of a sentence a translated word came from: regard explain "Das Haus ist alt." --token house '
    "--model Helsinki-NLP/opus-mt-de-en",
)
def explain(
    text: Annotated[str, typer.Argument(help="A sentence, in quotes.", show_default=False)],
    token: Annotated[
        str | None,
        option(
            "WORD",
            "The word to explain, at its first occurrence. A number that is no word of the text is the position of a "
            "token. By default the last word that all sentences share.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        option(
            "N",
            "Which layer, from 0. By default layer and head are those in which the word gives one other token of the "
            "text the largest weight, among heads in which tokens look to different places.",
        ),
    ] = None,
    head: Annotated[str | None, option("N", "Which head, from 0; or LAYER.HEAD, such as 3.1.")] = None,
    compare: Annotated[
        list[str] | None,
        option(
            "TEXT",
            "Another sentence with the same word, to show how context changes the word. May be given several times.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option(
            "TEXT",
            "The output of an encoder-decoder for TEXT. By default the model generates it with greedy decoding.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        option(
            "KIND",
            "The attention of an encoder-decoder: cross (the default: a word of the target attends to the source), "
            "decoder (a word of the target attends to itself and earlier words) or encoder (a word of the source "
            "attends to the source).",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=MODEL_HELP + ANY_FAMILY,
        ),
    ] = DEFAULT_MODEL,
    all_keys: Annotated[
        bool, typer.Option("--all", help=f"Show every token of a long text, not only the {MAX_KEYS} strongest.")
    ] = False,
    json_path: Annotated[Path | None, json_option("all facts")] = None,
) -> None:
    """Show what attention does with a word of a sentence, on real trained weights."""
    one_layer, one_head = parse_one_head(layer, head)
    require_choice("--attention", attention, ATTENTIONS)
    if attention == "encoder" and target is not None:
        raise InputError("--attention encoder reads the source only: leave --target out")
    ensure_json_writable(json_path)
    text = read_argument(text, f"regard explain - < {text}")
    import_torch()
    options = {"token": token, "compare": compare, "target": target, "attention": attention, "model": model}
    with status("reading the model"), errors_of_options(layer=layer, head=head, **options):
        explanation = regard.explain(
            text, token, model, compare, layer=one_layer, head=one_head, target=target, attention=attention
        )

    from regard.views.terminal.explanation import draw

    show_or_save(explanation, json_path, partial(draw, max_keys=None if all_keys else MAX_KEYS))
