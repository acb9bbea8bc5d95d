"""The decoding options that `regard generate` and `regard translate` share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import regard
from regard.cli.options import option
from regard.errors import InputError

__all__ = ["LengthPenalty", "Must", "Never", "decoding_strategy", "max_new_tokens_option"]

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


def max_new_tokens_option(help_: str) -> Any:
    """The option `--max-new-tokens`; each command has its own help."""
    return option("N", help_, "--max-new-tokens", "-n", min=1)


def decoding_strategy(
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
