"""The commands that write text: generate, translate."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import regard
from regard.cli.door import app
from regard.cli.shared import MODEL_HELP, import_torch, loaded, on_stderr, option, status
from regard.errors import InputError
from regard.views.visible import visible

__all__ = ["generate", "translate"]

LengthPenalty = Annotated[
    float,
    typer.Option(
        metavar="P", help="With a beam: scores are divided by length ** P; above 0 favours long texts, below 0 short."
    ),
]
Must = Annotated[
    list[str] | None, option("WORD", "With a beam: a word that has to appear. May be given several times.")
]
Never = Annotated[
    list[str] | None, option("WORD", "With a beam: a word that may not appear. May be given several times.")
]


def _most_tokens(help_: str) -> Any:
    return option("N", help_, "--max-new-tokens", "-n", min=1)


@app.command(
    help="Write on from a prompt, and show the text while it is written.\n\n"
    "By default the likeliest token each time. With --temperature, --top-k, --top-p, --min-p, --repetition-penalty or "
    "--seed tokens are drawn; with --beam the best of several texts is found, and shown at the end. What is printed is "
    "what is new.\n\n"
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
        _most_tokens("The most tokens that are written; by default 128, or as many as the model has positions for."),
    ] = None,
    temperature: Annotated[float | None, option("T", "Draw: below 1 the likely become likelier.")] = None,
    top_k: Annotated[int | None, option("K", "Draw among the K likeliest.")] = None,
    top_p: Annotated[float | None, option("P", "Draw among the likeliest that together have probability P.")] = None,
    min_p: Annotated[float | None, option("P", "Draw among those at least P times as likely as the likeliest.")] = None,
    repetition_penalty: Annotated[
        float | None, option("R", "Draw: above 1, tokens that the text has become less likely.")
    ] = None,
    seed: Annotated[int | None, option("N", "Draw the same again next time.")] = None,
    beam: Annotated[int | None, option("WIDTH", "Follow so many texts at once and keep the best.", "--beam")] = None,
    length_penalty: LengthPenalty = 1.0,
    n_best: Annotated[
        int, typer.Option(metavar="N", min=1, help="With a beam: print the N best texts, the best first.")
    ] = 1,
    must: Must = None,
    never: Never = None,
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
    strategy = _strategy(draws, beam, length_penalty, n_best, must, never)
    pretrained = loaded(model)
    if prompt == "-" and pretrained.reads == "images":
        raise InputError(f"{model} reads images, and standard input is read as text: give the path of an image")
    text = sys.stdin.read() if prompt == "-" else prompt
    if max_new_tokens is None:
        from regard.generation import room

        max_new_tokens = min(128, room(pretrained, text))
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or None}
    if isinstance(strategy, regard.Beam):
        with status("searching"):
            found = regard.generate(pretrained, text, strategy=strategy, **options)
        for written in [found] if n_best == 1 else found:
            print(_shown(str(written)))
        return
    for piece in regard.stream(pretrained, text, strategy=strategy, **options):
        print(_shown(str(piece)), end="", flush=True)
    print()


@app.command(
    help="Translate texts, or whatever else an encoder-decoder was trained to make of them: one line for each.",
    epilog='Example: regard translate --model Helsinki-NLP/opus-mt-en-de "The house is old." "It rains."\n\n'
    "A file, line by line: regard translate --model NAME - < in.txt > out.txt",
)
def translate(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts, each in quotes; - reads lines from standard input.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help=MODEL_HELP + "Marian, BART, T5.")],
    beam: Annotated[
        int, typer.Option("--beam", metavar="WIDTH", min=1, help="Follow so many texts at once and keep the best.")
    ] = 4,
    length_penalty: LengthPenalty = 1.0,
    must: Must = None,
    never: Never = None,
    max_new_tokens: Annotated[
        int | None,
        _most_tokens("The most tokens of one text; by default 512, or as many as the model has positions."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that go through the model together.")] = 16,
) -> None:
    """Translate texts, one line for each."""
    from rich.progress import track

    import_torch()
    strategy = _strategy({}, beam, length_penalty, 1, must, never)
    lines = [line.rstrip("\n") for text in texts for line in (sys.stdin if text == "-" else [text])]
    translated = regard.translate(
        loaded(model), lines, strategy=strategy, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    # Where lines appear one after the other on a terminal, they are progress enough.
    hidden = sys.stdout.isatty() or not sys.stderr.isatty() or len(lines) <= batch_size
    bar = track(translated, "translating", len(lines), console=on_stderr(), transient=True, disable=hidden)
    for written in bar:
        print(visible(written), flush=True)


def _strategy(
    draws: dict[str, Any],
    beam: int | None,
    length_penalty: float,
    n_best: int,
    must: list[str] | None,
    never: list[str] | None,
) -> Any:
    """The strategy that the options ask for."""
    try:
        if beam is not None:
            if draws:
                first = next(iter(draws)).replace("_", "-")
                raise InputError(f"--beam searches and --{first} draws: give one of them")
            return regard.Beam(
                width=beam, length_penalty=length_penalty, n_best=n_best, must=must or (), never=never or ()
            )
        if must or never or n_best != 1:
            name = "must" if must else "never" if never else "n-best"
            raise InputError(f"--{name} needs a search: give --beam WIDTH too")
        return regard.Sample(**draws) if draws else regard.Greedy()
    except ValueError as error:
        raise InputError(str(error)) from error


def _shown(text: str) -> str:
    """A text as it is, but for what could steer the terminal."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)
