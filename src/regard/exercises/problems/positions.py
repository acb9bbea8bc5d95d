"""Exercises 10 and 11: sinusoidal and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import Rotary, sinusoidal
from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.sinusoids import BASE, FORMULAS, PAPER, Formula
from regard.exercises.problems.numbers import course_call, draw, random_call
from regard.exercises.problems.problem import OwnMistake, Problem, Variant, no_trail

__all__ = ["ROTARY", "SINUSOIDAL_POSITIONS"]


# 10 -------------------------------------------------------------------------------------------------------------------


def _table(tokens: int, d_model: int) -> Tensor:
    return sinusoidal(tokens, d_model, dtype=torch.float64)


def _of_bank(formula: Formula, base: float = BASE, known: str = "") -> OwnMistake:
    """A formula of the bank of tables, with the words of its first mistake."""
    mistake = MISTAKES[known or formula.mistakes[0]]
    return OwnMistake(
        mistake.id,
        "angle" if mistake.id != "pe-swapped" else "sine and cosine",
        mistake.message.format(number=base),
        mistake.impact,
        lambda tokens, d_model: formula.made(tokens, d_model, base),
        no_trail
        if mistake.id == "pe-swapped"
        else lambda tokens, d_model: [
            formula.angles(tokens, d_model, base),
            base ** -formula.exponents(torch.arange(d_model, dtype=torch.float64), d_model),
        ],
        r"= .*cos|= .*sin|cos|sin" if mistake.id == "pe-swapped" else r"\*\*|exp|pow|10000|1e4",
    )


def _own_angles(tokens: int, d_model: int) -> Tensor:
    """Angles of which each channel has its own."""
    exponents = torch.arange(d_model, dtype=torch.float64) / d_model
    return torch.arange(tokens, dtype=torch.float64)[:, None] / BASE**exponents


def _without_power(tokens: int, d_model: int) -> Tensor:
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / BASE * exponents
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


def _shifted(tokens: int, d_model: int) -> Tensor:
    return _table(tokens + 1, d_model)[1:]


SINUSOIDS = (
    OwnMistake(
        "pe-from-one",
        "positions",
        "positions are counted from 1: the first row is that of position 1",
        "Trained weights meet every token one position later.",
        _shifted,
        pattern=r"arange\(1|\+\s*1|range\(1",
    ),
    OwnMistake(
        "pe-halves",
        "sine and cosine",
        "all sines come first and then all cosines, as in tensor2tensor; in the paper they alternate",
        "It trains as well, but weights trained with the other order give wrong numbers.",
        lambda tokens, d_model: sinusoidal(tokens, d_model, halves=True, dtype=torch.float64),
        pattern=r"cat|stack",
    ),
    OwnMistake(
        "pe-sines-only",
        "sine and cosine",
        "every channel is a sine; the second one of each pair has to be the cosine of the same angle",
        "A shift of position is no longer a rotation of each pair of channels.",
        lambda tokens, d_model: PAPER.angles(tokens, d_model, BASE).sin(),
        pattern=r"sin",
    ),
    OwnMistake(
        "pe-sines-only",
        "sine and cosine",
        "every channel is a sine, with an angle of its own; channels come in pairs of a sine and a cosine of one angle",
        "A shift of position is no longer a rotation of each pair of channels.",
        lambda tokens, d_model: _own_angles(tokens, d_model).sin(),
        pattern=r"sin",
    ),
    OwnMistake(
        "pe-exponent",
        "angle",
        "the exponent of pair i is i / d_model; in the paper it is 2i / d_model, so that wavelengths rise twice as far",
        "The longest wavelength is 100 x 2 pi: positions further apart cannot be told apart.",
        lambda tokens, d_model: PAPER.made(tokens, d_model, 100.0),
        lambda tokens, d_model: [PAPER.angles(tokens, d_model, 100.0), PAPER.angles(tokens, d_model, 100.0)[:, ::2]],
        r"\*\*|exp|pow",
    ),
    OwnMistake(
        "pe-power-missing",
        "angle",
        "the position is divided by 10000 and multiplied by the exponent; 10000 has to be raised to it",
        "All angles are nearly 0: positions are hardly told apart.",
        lambda tokens, d_model: _without_power(tokens, d_model),
        pattern=r"10000|1e4",
    ),
    OwnMistake(
        "pe-angles-returned",
        "sine and cosine",
        "the result is the angles: no sine and no cosine is taken of them",
        "Late positions are many times larger than the embeddings they are added to.",
        lambda tokens, d_model: PAPER.angles(tokens, d_model, BASE),
    ),
    OwnMistake(
        "pe-degrees",
        "angle",
        "the angles are taken for degrees; they are radians",
        "Neighbouring positions are hardly told apart.",
        lambda tokens, d_model: (
            PAPER.made(tokens, d_model, BASE) * 0
            + torch.where(
                torch.arange(d_model) % 2 == 0,
                (PAPER.angles(tokens, d_model, BASE) * math.pi / 180).sin(),
                (PAPER.angles(tokens, d_model, BASE) * math.pi / 180).cos(),
            )
        ),
        pattern=r"pi|180|deg|radians",
    ),
    OwnMistake(
        "pe-multiplied",
        "angle",
        "the position is multiplied by 10000^(...); the paper divides by it",
        "All channels but the first pair turn many times for each token, and look random.",
        lambda tokens, d_model: PAPER.made(tokens, d_model, 1 / BASE),
        lambda tokens, d_model: [PAPER.angles(tokens, d_model, 1 / BASE)],
        r"\*\*|exp|pow",
    ),
    OwnMistake(
        "pe-transposed",
        "result",
        "the table is transposed: each row has to be a position",
        "It cannot be added to (tokens, d_model), or adds the wrong numbers where both are equal.",
        lambda tokens, d_model: _table(tokens, d_model).T,
    ),
    *(_of_bank(each) for each in FORMULAS if each.mistakes),
    *(_of_bank(PAPER, base, "pe-base") for base in (1000.0, 100_000.0, 500_000.0)),
)


def _sinusoids() -> Iterable[Variant]:
    return SINUSOIDS


SINUSOIDAL_POSITIONS = Problem(
    calls=lambda: [
        course_call(3, 4),
        random_call("tokens d_model", 7, 10),
        random_call("tokens d_model", 6, 6),
        random_call("tokens d_model", 4, 2),
    ],
    right=_table,
    variants=_sinusoids,
)


# 11 -------------------------------------------------------------------------------------------------------------------


def _turned(
    x: Tensor,
    *,
    base: float = BASE,
    exponent: Callable[[Tensor, int], Tensor] = lambda pair, width: 2 * pair / width,
    first: float = 0.0,
    sign: float = 1.0,
) -> Tensor:
    """Neighbouring channels turned by angles of another formula."""
    angles = _angles(x, base=base, exponent=exponent, first=first) * sign
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(1)


def _angles(
    x: Tensor,
    *,
    base: float = BASE,
    exponent: Callable[[Tensor, int], Tensor] = lambda pair, width: 2 * pair / width,
    first: float = 0.0,
) -> Tensor:
    tokens, width = x.shape
    theta = base ** -exponent(torch.arange(width // 2, dtype=torch.float64), width)
    return (torch.arange(tokens, dtype=torch.float64) + first)[:, None] * theta


def _each(x: Tensor) -> Tensor:
    """The angle of each channel's pair."""
    return _angles(x).repeat_interleave(2, -1)


def _angle_mistake(id_: str, message: str, impact: str, pattern: str, **choices: Any) -> OwnMistake:
    """A mistake of the angle."""
    return OwnMistake(
        id_,
        "angle",
        message,
        impact,
        lambda x: _turned(x, **choices),
        no_trail,
        pattern,
    )


ROTARY_MISTAKES = (
    OwnMistake(
        "rotary-halves",
        "pairs",
        "channel i is paired with channel i + d_k / 2, as in Llama; here pairs are neighbours, as in the RoFormer "
        "paper",
        "Both ways work, but weights trained with one give wrong numbers with the other.",
        lambda x: Rotary(x.shape[-1])(x[None, None])[0, 0],
        pattern=r"chunk|cat|//\s*2",
    ),
    _angle_mistake(
        "rotary-backward",
        "the pairs are turned the other way round: the minus stands at the other product",
        "Among themselves, queries and keys still agree; trained weights give wrong numbers.",
        r"sin\(.*[-+]|sin",
        sign=-1.0,
    ),
    _angle_mistake(
        "rotary-from-one",
        "positions are counted from 1: the first token is turned already",
        "Distances are the same, so a model trains; a cache that counts from 0 no longer fits.",
        r"arange\(1|\+\s*1|range\(1",
        first=1.0,
    ),
    _angle_mistake(
        "rotary-exponent",
        "the exponent of pair i is i / d_k; in the paper it is 2i / d_k",
        "The slowest pair turns too fast: far positions look like near ones.",
        r"\*\*|pow|exp",
        exponent=lambda pair, width: pair / width,
    ),
    _angle_mistake(
        "rotary-exponent",
        "the exponent of pair i is 4i / d_k, the number of its channel taken twice; in the paper it is 2i / d_k",
        "Half of the pairs hardly turn over any text.",
        r"\*\*|pow|exp",
        exponent=lambda pair, width: 4 * pair / width,
    ),
    *(
        _angle_mistake(
            "rotary-base",
            f"the base is {base:g}; in the paper it is 10000",
            "Angles are those of another model: trained weights give wrong numbers.",
            f"{base:g}",
            base=base,
        )
        for base in (1000.0, 100.0, 100_000.0, 500_000.0)
    ),
    OwnMistake(
        "rotary-same-channel",
        "turn",
        "each channel is multiplied by cosine plus sine of its own: the other channel of the pair has no part in it",
        "That is no turn: lengths change, and scores do not depend on the distance alone.",
        lambda x: x * _each(x).cos() + x * _each(x).sin(),
        pattern=r"sin",
    ),
    OwnMistake(
        "rotary-mixed-pairs",
        "pairs",
        "the angles are those of neighbouring pairs, and the channels that are turned together those of halves",
        "That is no turn: lengths change, and scores do not depend on the distance alone.",
        lambda x: (
            x * _each(x).cos() + torch.cat((-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]), -1) * _each(x).sin()
        ),
        pattern=r"chunk|cat|repeat|//\s*2",
    ),
    OwnMistake(
        "rotary-mixed-pairs",
        "pairs",
        "the channels that are turned together are neighbours, and the angles those of pairs of halves",
        "That is no turn: lengths change, and scores do not depend on the distance alone.",
        lambda x: (
            x * _angles(x).repeat(1, 2).cos()
            + torch.stack((-x[:, 1::2], x[:, 0::2]), -1).flatten(1) * _angles(x).repeat(1, 2).sin()
        ),
        pattern=r"repeat|cat",
    ),
    OwnMistake(
        "rotary-missing",
        "turn",
        "nothing is turned: the result is x itself",
        "No score depends on the positions.",
        lambda x: x,
        no_trail,
        r"return",
    ),
    OwnMistake(
        "rotary-cosine-only",
        "turn",
        "each channel is multiplied by the cosine alone: the sine of the other channel is missing",
        "That is no turn: lengths change, and scores do not depend on the distance alone.",
        lambda x: x * _each(x).cos(),
        pattern=r"cos",
    ),
    OwnMistake(
        "rotary-no-minus",
        "turn",
        "both products with the sine are added: the minus of the first one is missing",
        "That is no turn but a mirror image: lengths change.",
        lambda x: torch.stack(
            (
                x[:, 0::2] * _angles(x).cos() + x[:, 1::2] * _angles(x).sin(),
                x[:, 0::2] * _angles(x).sin() + x[:, 1::2] * _angles(x).cos(),
            ),
            -1,
        ).flatten(1),
        lambda x: [x[:, 0::2] * _angles(x).cos() + x[:, 1::2] * _angles(x).sin()],
        r"sin",
    ),
    OwnMistake(
        "rotary-overwritten",
        "turn",
        "the second channel of a pair is turned with the first one as it is already turned: it was overwritten in "
        "place",
        "That is no turn: lengths change.",
        lambda x: torch.stack(
            (
                (first := x[:, 0::2] * _angles(x).cos() - x[:, 1::2] * _angles(x).sin()),
                first * _angles(x).sin() + x[:, 1::2] * _angles(x).cos(),
            ),
            -1,
        ).flatten(1),
        pattern=r"1::2",
    ),
    OwnMistake(
        "rotary-added",
        "turn",
        "sinusoidal positions are added; rotary positions turn what is there",
        "A score depends on both positions, not on their distance alone.",
        lambda x: x + _table(*x.shape),
    ),
    OwnMistake(
        "rotary-halves-returned",
        "result",
        "the turned channels come back as two halves, first all even ones, then all odd ones; each pair stays in its "
        "place",
        "Channels of queries and keys still match one another, but not those of trained weights.",
        lambda x: torch.cat((_turned(x)[:, 0::2], _turned(x)[:, 1::2]), -1),
        pattern=r"cat",
    ),
)


def _rotary_mistakes() -> Iterable[Variant]:
    return ROTARY_MISTAKES


def _course_vectors() -> Tensor:
    return torch.tensor(
        [[1.16, 0.23, 0.57, 1.36], [1.16, 0.23, 0.57, 1.36], [4.41, -2.16, 1.16, 0.23]], dtype=torch.float64
    )


ROTARY = Problem(
    calls=lambda: [
        course_call(_course_vectors()),
        random_call("x", *draw(61, [7, 6])),
        random_call("x", *draw(62, [4, 4])),
        random_call("x", *draw(63, [5, 2])),
    ],
    right=lambda x: Rotary(x.shape[-1], interleaved=True)(x[None, None])[0, 0],
    variants=_rotary_mistakes,
)
