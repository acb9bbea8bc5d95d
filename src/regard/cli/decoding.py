"""The decoding options of `regard generate` and `regard translate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import option
from regard.decoding import Beam, Greedy, Sample, Strategy
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.generation import Hypothesis
    from regard.pretrained import Pretrained

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


NumReturnSequences = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Beam search: print the N best texts, the best first, each after its score and a tab.",
    ),
]


def print_hypotheses(texts: list[Hypothesis], escape: Callable[[str], str]) -> None:
    """Print generated texts; several with their scores."""
    for each in texts:
        score = "" if len(texts) == 1 else "\t" if each.score is None else f"{each.score:.4f}\t"
        print(f"{score}{escape(str(each.text))}", flush=True)


def hypothesis_facts(texts: list[Hypothesis], pretrained: Pretrained) -> list[dict[str, Any]]:
    """Generated texts as `--json` writes them."""
    tokenizer = pretrained.tokenizer
    return [
        {
            "text": each.text,
            "ids": each.ids,
            "tokens": [tokenizer.id_to_token(token) for token in each.ids],  # type: ignore[union-attr]
            "score": each.score,
            "stop_reason": each.stop_reason,
        }
        for each in texts
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
) -> Strategy:
    """The strategy of the decoding options; ``sampling`` has the arguments of `regard.Sample`, the rest of `Beam`."""
    try:
        if num_beams is not None:
            if sampling:
                first = next(iter(sampling)).replace("_", "-")
                raise InputError(f"--num-beams searches and --{first} samples: give one of them")
            return Beam(
                num_beams=num_beams,
                length_penalty=length_penalty,
                num_return_sequences=num_return_sequences,
                force_words=force_words or (),
                bad_words=bad_words or (),
            )
        if force_words or bad_words or num_return_sequences != 1:
            name = "force-word" if force_words else "bad-word" if bad_words else "num-return-sequences"
            raise InputError(f"--{name} needs a beam search: give --num-beams N too")
        return Sample(**sampling) if sampling else Greedy()
    except ValueError as error:
        raise InputError(str(error)) from error
