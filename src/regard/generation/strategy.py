"""How the next token is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Beam", "Greedy", "Phrase", "Sample", "Strategy"]

Phrase = str | Sequence[int]
"""Words, or the token ids of words."""


@dataclass(frozen=True)
class Greedy:
    """The most likely token, each time."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A token drawn from the model's distribution, after it is made narrower, in the order of these arguments.

    Every row of a batch draws from a stream of its own, so that it is not changed by the others.

    Args:
        repetition_penalty: logits of tokens that the text has are divided by it where positive, multiplied where
            negative (Keskar et al. 2019, section 4.1); 1 changes nothing.
        temperature: logits are divided by it: below 1 the likely become likelier.
        top_k: only so many of the likeliest.
        top_p: only the likeliest that together have this probability (nucleus; Holtzman et al. 2020, section 3.1).
        min_p: only those with at least this share of the likeliest one's probability (Nguyen et al. 2024).
        seed: makes the draws repeatable; None draws a seed from PyTorch's own generator.

    Raises:
        ValueError: a number out of its range.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None
    min_p: float | int | None = None
    repetition_penalty: float | int = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} must be above 0; for the likeliest token take Greedy()")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1, or None for all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} must be from 0 to 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty} must be above 0; 1 changes nothing")


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The texts with the highest scores that a search finds which follows several at once.

    A score is the sum of the tokens' log-probabilities over (number of tokens) ** length_penalty. A text is finished
    by a stop token that is among the ``width`` best continuations. The search ends when no text that goes on has a
    higher score, taken at its present length, than the worst of ``width`` finished ones (as in transformers).

    Args:
        width: texts that are followed.
        length_penalty: above 0 favours long texts, below 0 short ones.
        n_best: how many of the best texts are returned.
        groups: the width is split into so many groups, one searched after the other in each step, and tokens that
            groups before have taken cost ``diversity`` (Vijayakumar et al. 2018, "Diverse Beam Search", section 4).
        diversity: how much; what is returned is sorted by the scores without it.
        must: words or token ids that have to stand in the text, in any order; words as the tokens that the tokenizer
            makes of them. The width is shared out among texts that have met none, some and all of their tokens
            (Post and Vilar 2018, "Dynamic Beam Allocation"). Room is kept for one after the other, also where two
            could share tokens.
        never: words or token ids that may not stand in it; words whatever their tokens, where no letter or digit stands
            beside them.

    Raises:
        ValueError: numbers that do not fit one another; constraints that contradict one another.
    """

    width: int = 4
    length_penalty: float | int = 1.0
    n_best: int = 1
    groups: int = 1
    diversity: float | int = 0.0
    must: Sequence[Phrase] = ()
    never: Sequence[Phrase] = ()

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width={self.width} must be at least 1: so many texts are followed")
        if not 1 <= self.n_best <= self.width:
            raise ValueError(f"n_best={self.n_best} must be 1 to width={self.width}")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty={self.length_penalty} must be a finite number")
        if self.groups < 1 or self.width % self.groups:
            raise ValueError(f"groups={self.groups} must divide width={self.width} evenly")
        if not 0 <= self.diversity < math.inf:
            raise ValueError(f"diversity={self.diversity} must be at least 0")
        if self.groups == 1 and self.diversity:
            raise ValueError(f"diversity={self.diversity} sets groups apart, and groups=1")
        if self.groups > 1 and self.must:
            raise ValueError(f"groups={self.groups} and must={self.must!r}: the width can be shared out one way only")
        for name in ("must", "never"):
            phrases = getattr(self, name)
            if isinstance(phrases, str) or any(len(phrase) == 0 for phrase in phrases):
                raise ValueError(f"{name}={phrases!r} wants a list of words or of token ids, none of them empty")


Strategy = Greedy | Sample | Beam
