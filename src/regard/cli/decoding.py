"""The decoding options of `regard generate` and `regard translate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import regard
from regard.cli.options import option
from regard.errors import InputError

LengthPenalty = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Beam search: divide scores by length ** P; above 0 favours long texts, below 0 short ones.",
    ),
]
ForceWords = Annotated[
    list[str] | None,
    option("WORD", "Beam search: the text must contain this word. May be given several times.", "--force-word"),
]
BadWords = Annotated[
    list[str] | None,
    option("WORD", "Beam search: the text must not contain this word. May be given several times.", "--bad-word"),
]


def max_new_tokens_option(help_: str) -> Any:
    """The option `--max-new-tokens`; each command has its own help."""
    return option("N", help_, "--max-new-tokens", "-n", min=1)


def decoding_strategy(
    sampling: dict[str, Any],
    num_beams: int | None,
    length_penalty: float,
    num_return_sequences: int,
    force_words: list[str] | None,
    bad_words: list[str] | None,
) -> Any:
    """The strategy of the decoding options; ``sampling`` has the arguments of `regard.Sample`, the rest of `Beam`."""
    try:
        if num_beams is not None:
            if sampling:
                first = next(iter(sampling)).replace("_", "-")
                raise InputError(f"--num-beams searches and --{first} samples: give one of them")
            return regard.Beam(
                num_beams=num_beams,
                length_penalty=length_penalty,
                num_return_sequences=num_return_sequences,
                force_words=force_words or (),
                bad_words=bad_words or (),
            )
        if force_words or bad_words or num_return_sequences != 1:
            name = "force-word" if force_words else "bad-word" if bad_words else "num-return-sequences"
            raise InputError(f"--{name} needs a beam search: give --num-beams N too")
        return regard.Sample(**sampling) if sampling else regard.Greedy()
    except ValueError as error:
        raise InputError(str(error)) from error
