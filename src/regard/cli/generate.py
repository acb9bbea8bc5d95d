"""The command `regard generate`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import regard
from regard.cli.app import app
from regard.cli.decoding import BadWord, ForceWord, LengthPenalty, decoding_strategy, max_new_tokens_option
from regard.cli.options import MODEL_HELP, import_torch, loaded, option, status
from regard.errors import InputError
from regard.escape import visible

__all__ = ["generate"]


@app.command(
    help="Write on from a prompt, and show the text while it is written.\n\n"
    "By default the likeliest token each time. With --temperature, --top-k, --top-p, --min-p, --repetition-penalty or "
    "--seed tokens are drawn; with --num-beams the best of several texts is found, and shown at the end. Only the new "
    "text is printed.\n\n"
    "A model that reads images writes about one: there PROMPT is the image's path.",
    epilog='Example: regard generate "Once upon a time" --model openai-community/gpt2 --temperature 0.8 --top-p 0.95 '
    "--seed 1",
)
def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            help="The text to go on from, in quotes; - reads it from standard input. The path of an image where the "
            "model reads images."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=MODEL_HELP + "GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2; Marian, BART, T5; vision-encoder-decoder.",
        ),
    ],
    max_new_tokens: Annotated[
        int | None,
        max_new_tokens_option(
            "The most tokens that are written; by default 128, or as many as the model has positions for."
        ),
    ] = None,
    temperature: Annotated[float | None, option("T", "Draw: below 1 the likely become likelier.")] = None,
    top_k: Annotated[int | None, option("K", "Draw among the K likeliest.")] = None,
    top_p: Annotated[float | None, option("P", "Draw among the likeliest that together have probability P.")] = None,
    min_p: Annotated[float | None, option("P", "Draw among those at least P times as likely as the likeliest.")] = None,
    repetition_penalty: Annotated[
        float | None, option("R", "Draw: above 1, tokens that the text has become less likely.")
    ] = None,
    seed: Annotated[int | None, option("N", "Draw the same again next time.")] = None,
    num_beams: Annotated[
        int | None, option("N", "Follow so many texts at once and keep the best.", "--num-beams")
    ] = None,
    length_penalty: LengthPenalty = 1.0,
    num_return_sequences: Annotated[
        int, typer.Option(metavar="N", min=1, help="With a beam: print the N best texts, the best first.")
    ] = 1,
    force_words: ForceWord = None,
    bad_words: BadWord = None,
    stop: Annotated[list[str] | None, option("TEXT", "End before this text. May be given several times.")] = None,
) -> None:
    """Write on from a prompt, and show the text while it is written."""
    import_torch()
    drawn = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    draws = {name: value for name, value in drawn.items() if value is not None}
    strategy = decoding_strategy(draws, num_beams, length_penalty, num_return_sequences, force_words, bad_words)
    pretrained = loaded(model)
    if prompt == "-" and pretrained.modality == "images":
        raise InputError(f"{model} reads images, and standard input is read as text: give the path of an image")
    text = sys.stdin.read() if prompt == "-" else prompt
    if max_new_tokens is None:
        from regard.generation import max_new_tokens_left

        max_new_tokens = min(128, max_new_tokens_left(pretrained, text))
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or None}
    if isinstance(strategy, regard.Beam):
        with status("searching"):
            found = regard.generate(pretrained, text, strategy=strategy, **options)
        for written in [found] if num_return_sequences == 1 else found:
            print(_shown(str(written)))
        return
    for piece in regard.stream(pretrained, text, strategy=strategy, **options):
        print(_shown(str(piece)), end="", flush=True)
    print()


def _shown(text: str) -> str:
    """A text as it is, but for what could steer the terminal."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)
