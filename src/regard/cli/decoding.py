"""The decoding options that `regard generate` and `regard translate` share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import regard
from regard.cli.options import option
from regard.errors import InputError

__all__ = ["BadWord", "ForceWord", "LengthPenalty", "decoding_strategy", "max_new_tokens_option"]

LengthPenalty = Annotated[
    float,
    typer.Option(
        metavar="P", help="With a beam: scores are divided by length ** P; above 0 favours long texts, below 0 short."
    ),
]
ForceWord = Annotated[
    list[str] | None,
    option(
        "WORD",
        "With beam search: a word that the text must contain. May be given several times.",
        "--force-word",
    ),
]
BadWord = Annotated[
    list[str] | None,
    option(
        "WORD", "With beam search: a word that the text must not contain. May be given several times.", "--bad-word"
    ),
]


def max_new_tokens_option(help_: str) -> Any:
    """The option `--max-new-tokens`; each command has its own help."""
    return option("N", help_, "--max-new-tokens", "-n", min=1)


def decoding_strategy(
    draws: dict[str, Any],
    num_beams: int | None,
    length_penalty: float,
    num_return_sequences: int,
    force_words: list[str] | None,
    bad_words: list[str] | None,
) -> Any:
    """The strategy that the options ask for."""
    try:
        if num_beams is not None:
            if draws:
                first = next(iter(draws)).replace("_", "-")
                raise InputError(f"--num-beams searches and --{first} draws: give one of them")
            return regard.Beam(
                num_beams=num_beams,
                length_penalty=length_penalty,
                num_return_sequences=num_return_sequences,
                force_words=force_words or (),
                bad_words=bad_words or (),
            )
        if force_words or bad_words or num_return_sequences != 1:
            name = "force-word" if force_words else "bad-word" if bad_words else "num-return-sequences"
            raise InputError(f"--{name} needs a search: give --num-beams N too")
        return regard.Sample(**draws) if draws else regard.Greedy()
    except ValueError as error:
        raise InputError(str(error)) from error
