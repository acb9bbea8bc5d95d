"""The frequencies by which rotary positions turn queries and keys, measured on tokens that are all alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence
from regard.check.roles.table import AttentionTable
from regard.check.trace.operation import Trace

__all__ = ["rotations", "wrong_frequencies"]

BASE = 10000.0
"""Of tables that are handed over."""
TOLERANCE = 1e-5
"""Of a turn, for each radian of its angle: tables are often computed in float32."""
LEAST_BASE = 1000.0
"""Smaller numbers of a file are rarely meant as one."""
LEAST_SHARE = 1e-3
"""Of the slowest frequency, 1 over the base: longer contexts divide it by a few dozen (NTK, YaRN)."""
LEAST_MULTIPLE = 0.1
"""By which positions lie farther apart."""
_SCALING = re.compile(
    r"\b(?:rope|rotary|pos|position)_scaling\s+is\b|\bif\s+(?:not\s+)?[\w.]*\b(?:rope|rotary|pos|position)_scaling\b"
)
"""Code that asks whether positions are scaled."""
_SCALED = re.compile(r"\b(?:rope|rotary|pos|position)_scaling\b[^\n=]*=\s*[\d{]")
"""And that says by how much."""
_INTERPOLATED = re.compile(
    r"\blinear\s+(?:position(?:al)?\s+|ro(?:pe|tary)\s+)?(?:interpolation|scaling)\b|\bposition(?:al)?\s+interpolation\b"
    r"|\b(?:squeez|compress|shrink)\w*\s+(?:\w+\s+){0,3}positions\b",
    re.I,
)
"""In the text of the code: positions lie nearer to one another than those that it was trained on (Chen et al. 2023)."""
POWERS = (
    (0.5, "the exponents rise as i/d, half as fast as 2i/d"),
    (2.0, "the exponents rise as 4i/d, twice as fast as 2i/d"),
    (-1.0, "the exponents have the other sign: frequencies grow from pair to pair"),
)
"""What the exponents of Su et al. 2021, 2i/d, were multiplied by."""


def wrong_frequencies(evidence: Evidence, table: AttentionTable) -> tuple[str, CodeLocation | None]:
    """What is said of frequencies that are no powers of the base in the code by -2i/d, but by a multiple of it.

    Scaled ones (NTK, YaRN) and those of other numbers that stand in the code are right. Not so where the code asks
    whether positions are scaled, is told of no scaling, and sets them farther apart: longer texts need nearer ones.

    Args:
        evidence: of an attention whose queries and keys are rotated.
        table: of tokens that are all alike.
    """
    for turns, tokens, is_whole in rotations(table):
        pairs = turns.shape[-1]
        if pairs < 2 or any(_fits(turns, tokens, base, 1.0) for base in {BASE, *evidence.numbers} if base > 1):
            return "", None
        bases = sorted(each for each in evidence.numbers if LEAST_BASE <= each < 1e9)
        slow = turns[1].angle().abs() / float(tokens[1])
        if bases and bool((slow < LEAST_SHARE / bases[-1]).any()):
            found = ", ".join(f"{float(each):.3g}" for each in slow[:4])
            least = f"of the base {bases[-1]:g} none turns by less than {1 / bases[-1]:.3g}"
            message = f"the pairs turn by {found} from token to token: {least}"
            return message, _line_of_powers(evidence.base.instance.run.trace, pairs)
        for base in bases:
            for power, said in POWERS:
                if (is_whole or power != 0.5) and _fits(turns, tokens, base, power):
                    found, wanted = (
                        ", ".join(f"{base ** (-each * pair / pairs):.3g}" for pair in range(min(4, pairs)))
                        for each in (power, 1.0)
                    )
                    message = (
                        f"the pairs turn by {found} from token to token: of the base {base:g} it is {wanted}; {said}"
                    )
                    return message, _line_of_powers(evidence.base.instance.run.trace, pairs)
            which = _chosen_powers(turns, tokens, base)
            if is_whole and which and len(set(which)) < pairs:
                found, wanted = (
                    ", ".join(f"{base ** (-each / pairs):.3g}" for each in powers) for powers in (which, range(pairs))
                )
                message = (
                    f"the pairs turn by {found} from token to token: of the base {base:g} it is {wanted}; some are "
                    "there several times, and others are missing"
                )
                return message, _line_of_powers(evidence.base.instance.run.trace, pairs)
        may_be_off = _SCALING.search(evidence.code) and not _SCALED.search(evidence.code)
        said = _farther_apart(turns, tokens, {BASE, *bases}, _first_turn(turns, tokens)) if may_be_off else ""
        if said:
            return f"{said} where no scaling is set", _line_of_powers(evidence.base.instance.run.trace, pairs)
        is_interpolated = _INTERPOLATED.search(" ".join(evidence.code.split()))
        for multiple in sorted(evidence.numbers) if is_interpolated else ():
            if said := _farther_apart(turns, tokens, {BASE, *bases}, multiple):
                message = (
                    f"{said}, by which interpolation divides them: they lie farther apart, and not nearer together"
                )
                return message, _line_of_powers(evidence.base.instance.run.trace, pairs)
    return "", None


def _first_turn(turns: Tensor, tokens: Tensor) -> float:
    """By which the first pair turns from token to token."""
    return float(turns[1].angle().abs()[0]) / float(tokens[1])


def _farther_apart(turns: Tensor, tokens: Tensor, bases: Iterable[float], multiple: float) -> str:
    """What is said of pairs that all turn by the same multiple, more than 1, of the frequencies of a base."""
    pairs = turns.shape[-1]
    base = next((each for each in bases if _fits(turns, tokens * multiple, each, 1.0)), 0.0)
    if multiple < 1 + LEAST_MULTIPLE or not base:
        return ""
    found, wanted = (
        ", ".join(f"{scale * base ** (-pair / pairs):.3g}" for pair in range(min(4, pairs))) for scale in (multiple, 1)
    )
    return (
        f"the pairs turn by {found} from token to token: of the base {base:g} it is {wanted}; positions are times "
        f"{multiple:.4g}"
    )


def rotations(table: AttentionTable) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """(tokens, pairs): by which each pair of channels is turned, the tokens, and whether all channels are rotated."""
    for vectors, owner in ((table.q, table.query), (table.k, table.key)):
        mine = ((owner.sample == owner.sample.min()) & (table.head == 0) & (owner.token >= 0)).nonzero().flatten()
        if not len(mine):
            continue
        tokens, which = torch.unique(owner.token[mine], return_inverse=True)
        rows = torch.zeros(len(tokens), vectors.shape[-1], dtype=torch.float64)
        rows[which] = vectors[mine].double()
        moves = ((rows - rows[:1]).abs().amax(0) > 1e-9 * float(rows.abs().max())).nonzero().flatten()
        if len(tokens) < 2 or not len(moves):
            continue
        first, end = int(moves[0]), int(moves[-1]) + 1
        width = end - first
        if width % 2 or width != len(moves):
            continue
        channels = torch.arange(first, end)
        halves, neighbours = channels.view(2, -1), channels.view(-1, 2).T
        for pairs in (halves, neighbours):
            turned = torch.complex(rows[:, pairs[0]], rows[:, pairs[1]])
            lengths = turned.abs()
            if float((lengths - lengths[:1]).abs().max()) < 1e-6 * float(lengths.max()) and bool(
                (lengths[0] > 0).all()
            ):
                yield turned / turned[:1], tokens - tokens[0], width == rows.shape[-1]
                break


def _fits(turns: Tensor, tokens: Tensor, base: float, power: float) -> bool:
    """Whether pair i turns by base^(-power i / pairs) from token to token, to one side or the other."""
    pairs = turns.shape[-1]
    angles = tokens[:, None] * base ** (-power * torch.arange(pairs, dtype=torch.float64) / pairs)
    allowed = TOLERANCE * angles.abs().clamp(min=1.0)
    wanted = torch.polar(torch.ones_like(angles), angles)
    return any(bool(((turns - each).abs() <= allowed).all()) for each in (wanted, wanted.conj()))


def _chosen_powers(turns: Tensor, tokens: Tensor, base: float) -> list[int]:
    """For each pair, which i it is by whose base^(-i / pairs) it turns; empty where one turns by another angle."""
    pairs = turns.shape[-1]
    angles = tokens[:, None] * base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    allowed = TOLERANCE * angles.abs().clamp(min=1.0)
    for sign in (1, -1):
        wanted = torch.polar(torch.ones_like(angles), sign * angles)
        fits = ((turns[:, :, None] - wanted[:, None]).abs() <= allowed[:, None]).all(0)
        if bool((fits.sum(1) == 1).all()):
            return fits.to(torch.uint8).argmax(1).tolist()
    return []


def _line_of_powers(trace: Trace, pairs: int) -> CodeLocation | None:
    """The line that computes as many powers; else that of their cosines."""
    for names in (("pow", "exp"), ("cos", "polar")):
        for operation in trace:
            made = operation.outputs[0].data.numel() if operation.outputs else 0
            if operation.name in names and made and made % pairs == 0 and not operation.outputs[0].learned:
                return operation.location
    return None
