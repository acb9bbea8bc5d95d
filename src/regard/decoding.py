"""The decoding strategies and their parameters: `Greedy`, `Sample`, `Beam`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_LENGTH_PENALTY = 50
"""Of the longest texts, with a million tokens, length ** penalty is still a float64."""

Phrase = str | Sequence[int]
"""Words as text, or as token ids."""


@dataclass(frozen=True)
class Greedy:
    """The most likely token in every step."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A token sampled from the model's distribution, which the arguments below narrow, in their order here.

    Every row of a batch has its own random number generator, so that the other rows do not change its text.

    Args:
        repetition_penalty: divides the positive logits of tokens that the text already has, and multiplies the negative
            ones (Keskar et al. 2019, section 4.1); 1 changes nothing.
        temperature: divides the logits; below 1 likely tokens become likelier.
        top_k: sample among the k likeliest tokens.
        top_p: sample among the likeliest tokens that together have this probability (nucleus sampling; Holtzman et al.
            2020, section 3.1).
        min_p: sample among tokens with at least this share of the largest probability (Nguyen et al. 2024).
        seed: makes the samples repeatable; None takes a seed from PyTorch's global generator.

    Raises:
        ValueError: a number is out of its range.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None
    min_p: float | int | None = None
    repetition_penalty: float | int = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            hint = "; for the likeliest token take Greedy()" if self.temperature == 0 else ""
            raise ValueError(f"temperature={self.temperature} must be above 0 and finite{hint}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} must be from 0 to 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty} must be above 0; 1 changes nothing")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} must be a number of 64 bits")


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The texts with the highest scores, found by beam search.

    A score is the sum of the tokens' log-probabilities over (number of tokens) ** length_penalty. A text is finished
    by a stop token that is among the ``num_beams`` best continuations. The search ends when no unfinished text has a
    higher score, taken at its present length, than the worst of ``num_beams`` finished ones (as in transformers).

    Args:
        num_beams: the number of texts that the search follows at once.
        length_penalty: above 0 favours long texts, below 0 short ones.
        num_return_sequences: how many of the best texts are returned.
        num_beam_groups: the beams are split into this many groups, and each step searches one group after the other. A
            token that an earlier group has taken in the same step costs ``diversity_penalty`` (Vijayakumar et al. 2018,
            "Diverse Beam Search", section 4).
        diversity_penalty: the cost of such a token; the returned texts are sorted by their scores without it.
        force_words: words or token ids that the text must contain, in any order; a word means the tokens that the
            tokenizer makes of it. The beams are divided among texts that contain none, some and all of these tokens
            (Post and Vilar 2018, "Dynamic Beam Allocation"). The limit must leave space for all,
            one after the other, also where two could share tokens.
        bad_words: words or token ids that the text must not contain; a word counts only where no letter or digit stands
            next to it, whatever its tokens.

    Raises:
        ValueError: numbers that do not fit each other; constraints that contradict each other.
    """

    num_beams: int = 4
    length_penalty: float | int = 1.0
    num_return_sequences: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float | int = 0.0
    force_words: Sequence[Phrase] = ()
    bad_words: Sequence[Phrase] = ()

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams} must be at least 1")
        if not 1 <= self.num_return_sequences <= self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} must be 1 to num_beams={self.num_beams}"
            )
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:
            limit = MAX_LENGTH_PENALTY
            raise ValueError(f"length_penalty={self.length_penalty} must be from -{limit} to {limit}")
        if self.num_beam_groups < 1 or self.num_beams % self.num_beam_groups:
            raise ValueError(f"num_beam_groups={self.num_beam_groups} must divide num_beams={self.num_beams} evenly")
        if not 0 <= self.diversity_penalty < math.inf:
            raise ValueError(f"diversity_penalty={self.diversity_penalty} must be at least 0")
        if self.num_beam_groups == 1 and self.diversity_penalty:
            raise ValueError(f"diversity_penalty={self.diversity_penalty} sets groups apart, and num_beam_groups=1")
        if self.num_beam_groups > 1 and self.force_words:
            raise ValueError(
                f"num_beam_groups={self.num_beam_groups} and force_words={self.force_words!r}: the beams can be "
                "divided in one way only"
            )
        for name in ("force_words", "bad_words"):
            phrases = getattr(self, name)
            if isinstance(phrases, str):
                raise ValueError(f"{name}={phrases!r} wants a list of words or of token ids")
            for phrase in phrases:
                if len(phrase) == 0:
                    raise ValueError(f"{name}={phrase!r} is empty: leave it out")


Strategy = Greedy | Sample | Beam
