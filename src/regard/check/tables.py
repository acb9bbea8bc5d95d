"""Tables of sinusoidal positions: is it the paper's (Attention Is All You Need, section 3.5), and if not, what is it?

A table is read from the numbers alone: which channels are sines and which cosines, by which exponent their wavelengths
rise, and up to which number. A mistake is named only if its formula gives every number at every size that was tried.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.answer import error_text
from regard.check.causes import MISTAKES, Convention
from regard.check.findings import Measurement
from regard.check.names import SIZES, meaning
from regard.check.search import Found
from regard.check.stage import Diagnosis, Stage
from regard.check.subject import Sizes, Subject, tensors_in
from regard.errors import InputError

__all__ = ["TableDiagnosis", "judge_table", "looks_like_table"]

CLOSE = 1e-6
"""Of a number of the table, for each radian of its angle: tables are often computed in float32."""
BASE = 10000.0
SIZES_TRIED = ((7, 4), (12, 6), (13, 8), (15, 10), (17, 16))
"""Lengths and widths, with even and odd numbers of pairs. Short, since float32 loses an angle's digits as it grows."""
_LENGTHS = {
    "length",
    "pos",
    "position",
    "positions",
    "n_position",
    "num_positions",
    "num_position",
    "n_pos",
    "num_pos",
    "max_pos",
    "max_position",
    "maxlen",
    "seqlen",
    "max_sequence_length",
    "sentence_length",
    "tokens",
    "nb_positions",
}
_WIDTHS = {
    "depth",
    "d_hid",
    "dim_embed",
    "num_units",
    "units",
    "output_dim",
    "out_dim",
    "d_pos",
    "pos_dim",
    "hid_dim",
    "dims",
}
"""Names of arguments beside those that `regard.check.names` knows."""
_POSITION, _CHANNEL = {"pos", "position", "k", "p", "t"}, {"i", "channel", "dim", "j", "c"}
_KEPT = ("pe", "p", "pos", "pos_table", "encoding", "encodings", "table")
"""What modules call the table that they keep; also anything with "pos" or "sinus" in its name."""


@dataclass(eq=False)
class TableDiagnosis(Diagnosis):
    """What was found of a table."""

    numbers: dict[str, object] = field(default_factory=dict)
    """For the sentences of its causes: ``number``, the base that was measured."""


@dataclass(frozen=True)
class Formula:
    """One way to make a table: the exponent of each channel, and which channels are sines."""

    exponents: Callable[[Tensor, int], Tensor]
    """Of (channel, width)."""
    sines: Callable[[Tensor, int], Tensor]
    causes: tuple[str, ...] = ()
    says: str = ""
    """For conventions."""

    def angles(self, length: int, width: int, base: float) -> Tensor:
        """(length, d_model), in radians."""
        exponents = self.exponents(torch.arange(width, dtype=torch.float64), width)
        return torch.arange(length, dtype=torch.float64)[:, None] * base**-exponents

    def made(self, length: int, width: int, base: float) -> Tensor:
        """The table, (length, d_model)."""
        angles = self.angles(length, width, base)
        return torch.where(self.sines(torch.arange(width, dtype=torch.float64), width), angles.sin(), angles.cos())

    def gap(self, table: Tensor, base: float) -> Tensor:
        """How far each number of a table is from this one's, in units of what its angle allows."""
        length, width = table.shape
        angles = self.angles(length, width, base)
        return (table - self.made(length, width, base)).abs() / (CLOSE * angles.abs().clamp(min=1.0))

    def fits(self, tables: Iterable[Tensor], base: float) -> bool:
        """Whether it gives every number."""
        return all(bool((self.gap(table, base) <= 1).all()) for table in tables)

    def measured(self, tables: Sequence[Tensor], base: float) -> Measurement:
        """How near the tables are to this one's."""
        return Measurement("", len(tables), max(self.gap(table, base).max().item() for table in tables))

    def base(self, table: Tensor) -> float | None:
        """The base that the angle of position 1 tells, in the fastest sine whose exponent is not 0."""
        channel = torch.arange(table.shape[1], dtype=torch.float64)
        exponents, sines = self.exponents(channel, table.shape[1]), self.sines(channel, table.shape[1])
        usable = [c for c in range(table.shape[1]) if bool(sines[c]) and float(exponents[c]) > 0]
        if not usable:
            return None
        at = min(usable, key=lambda c: float(exponents[c]))
        value = table[1, at].item()
        if not 0 < value < 1:
            return None
        return float(math.asin(value) ** (-1 / float(exponents[at])))


def _paper(channel: Tensor, width: int) -> Tensor:
    return (channel - channel % 2) / width


def _own(channel: Tensor, width: int) -> Tensor:
    return channel / width


def _double(channel: Tensor, width: int) -> Tensor:
    return 2 * channel / width


def _double_shared(channel: Tensor, width: int) -> Tensor:
    return 2 * _paper(channel, width)


def _halves(channel: Tensor, width: int) -> Tensor:
    return 2 * (channel % (width // 2)) / width


def _halves_to_the_end(channel: Tensor, width: int) -> Tensor:
    return (channel % (width // 2)) / max(1, width // 2 - 1)


def _double_halves(channel: Tensor, width: int) -> Tensor:
    return 2 * _halves(channel, width)


def _even(channel: Tensor, width: int) -> Tensor:
    return channel % 2 == 0


def _odd(channel: Tensor, width: int) -> Tensor:
    return channel % 2 == 1


def _first_half(channel: Tensor, width: int) -> Tensor:
    return channel < width // 2


_HALVES = "sines, then cosines (tensor2tensor); in the paper they alternate"
_TO_THE_END = f"{_HALVES}; wavelengths reach 10000 x 2 pi at the last pair, and in the paper one pair later"
PLAIN = Formula(_paper, _even)
FORMULAS = (
    PLAIN,
    Formula(_halves, _first_half, says=_HALVES),
    Formula(_halves_to_the_end, _first_half, says=_TO_THE_END),
    Formula(_own, _even, ("pe-angle",)),
    Formula(_double, _even, ("pe-exponent",)),
    Formula(_double_shared, _even, ("pe-exponent",)),
    Formula(_double_halves, _first_half, ("pe-exponent",), _HALVES),
    Formula(_paper, _odd, ("pe-swapped",)),
    Formula(_own, _odd, ("pe-angle", "pe-swapped")),
    Formula(_double, _odd, ("pe-exponent", "pe-swapped")),
    Formula(_double_shared, _odd, ("pe-exponent", "pe-swapped")),
)
"""With the paper's base; fewer mistakes first."""
BASED = tuple(f for f in FORMULAS if f.exponents in (_paper, _own, _halves) and len(f.causes) < 2)
"""With any other base. A doubled exponent is left out: it is the same as the plain one with the base squared."""


def looks_like_table(subject: Subject) -> bool:
    """Whether it makes a table of positions: a function of (length, d_model), or a module that adds what it keeps."""
    if subject.function is not None:
        return _arguments(subject) is not None or _by_number(subject) is not None
    required = [
        p for p in subject.called.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) != 1:
        return False
    try:
        module = _built(subject, 2, 3)
    except InputError:
        return False
    return module is not None and not _learns(module) and any(True for _ in _kept(module))


def judge_table(subject: Subject) -> TableDiagnosis:
    """Which formula gives the table of a function or module that `looks_like_table`."""
    diagnosis = TableDiagnosis(subject)
    stage = Stage("none", "", [])
    diagnosis.stages.append(stage)
    tables: list[Tensor] = []
    made = _of_function(subject, diagnosis) if subject.function is not None else _of_module(subject, diagnosis)
    with torch.no_grad():
        for table in made:
            if isinstance(table, str):
                stage.why = table
                return diagnosis
            if not bool(table.isfinite().all()):
                stage.why = "its table holds numbers that are not finite"
                return diagnosis
            tables.append(table)
    stage.found = _explained(tables, diagnosis)
    if stage.found is None:
        stage.why = diagnosis.why.pop() if diagnosis.why else _first_gap(tables)
    return diagnosis


# Which formula. -----------------------------------------------------------------------------------------------------


def _explained(tables: Sequence[Tensor], diagnosis: TableDiagnosis) -> Found | None:
    for formula in FORMULAS:
        if formula.fits(tables, BASE):
            diagnosis.measurements.append(formula.measured(tables, BASE))
            return _found(formula, formula.causes)
    widths = {table.shape[1] for table in tables}
    for formula in BASED:
        bases = [base for table in tables if (base := formula.base(table)) is not None]
        if not bases or max(bases) - min(bases) > 1e-4 * max(bases):
            continue
        base = sorted(bases)[len(bases) // 2]
        base = float(round(base)) if abs(base - round(base)) <= 1e-5 * base else base
        if not formula.fits(tables, base):
            continue
        if len(widths) == 1 and base != float(f"{base:.2g}"):
            # Of one width alone, another exponent would do as well as another base.
            diagnosis.why.append(f"its wavelengths seem to rise to {base:g} x 2 pi, which one width alone cannot show")
            return None
        if formula.exponents is _own and (base**0.5).is_integer() and base**0.5 % 100 == 0:
            diagnosis.why.append(
                f"the exponent of channel i is i/d with a base of {base:g}, or 2i/d with {base**0.5:g}: "
                "both give the same numbers"
            )
            return None
        diagnosis.numbers["number"] = base
        diagnosis.measurements.append(formula.measured(tables, base))
        return _found(formula, ("pe-base", *formula.causes))
    return None


def _found(formula: Formula, causes: Iterable[str]) -> Found:
    otherwise = (Convention("convention", formula.says, {}),) if formula.says else ()
    order = list(MISTAKES)
    named = sorted(causes, key=order.index)
    return Found({}, tuple((MISTAKES[name], {}) for name in named), otherwise)


def _first_gap(tables: Sequence[Tensor]) -> str:
    """The first channel that is not the paper's, in words."""
    for table in tables:
        wrong = PLAIN.gap(table, BASE) > 1
        if not bool(wrong.any()):
            continue
        channel = int(wrong.any(0).nonzero()[0])
        position = int(wrong[:, channel].nonzero()[0])
        angle = PLAIN.angles(len(table), table.shape[1], BASE)[position, channel].item()
        is_sine = channel % 2 == 0
        paper = math.sin(angle) if is_sine else math.cos(angle)
        return (
            f"no known mistake explains its table; channel {channel} of {table.shape[1]} (counted from 0) is the first "
            f"to deviate: at position {position} it is {table[position, channel].item():.6f}, the paper's is "
            f"{'sin' if is_sine else 'cos'}({angle:.6g}) = {paper:.6f}"
        )
    return "no known mistake explains its table"


# How a function is called. ------------------------------------------------------------------------------------------


def _plain(subject: Subject) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter for parameter in subject.called.values() if parameter.kind in kinds]


def _arguments(subject: Subject) -> tuple[str, str] | None:
    """The names of the arguments for the length and the width, if it has these and requires no other."""
    length = width = None
    for parameter in _plain(subject):
        name = parameter.name.lower()
        means = meaning(parameter.name, SIZES)
        required = parameter.default is parameter.empty
        if length is None and (means == "length" or name in _LENGTHS) and (required or name not in ("n", "l", "t")):
            length = parameter.name
        elif width is None and (means in ("d_model", "d_head", "d_out") or name in _WIDTHS):
            width = parameter.name
        elif required:
            return None
    return None if length is None or width is None else (length, width)


def _by_number(subject: Subject) -> tuple[str, str, str] | None:
    """The names of (pos, i, d), for a function that gives one number of the table."""
    names = [parameter.name for parameter in _plain(subject) if parameter.default is parameter.empty]
    if len(names) != 3:
        return None
    position, channel, width = names
    means = meaning(width, SIZES)
    if position.lower() in _POSITION and channel.lower() in _CHANNEL and (means == "d_model" or width in _WIDTHS):
        return position, channel, width
    return None


def _of_function(subject: Subject, diagnosis: TableDiagnosis) -> Iterator[Tensor | str]:
    for length, width in SIZES_TRIED:
        yield _called(subject, length, width, diagnosis)


def _called(subject: Subject, length: int, width: int, diagnosis: TableDiagnosis) -> Tensor | str:
    names = _arguments(subject)
    if names is None:
        return _one_by_one(subject, length, width)
    failed = ""
    for positions in (length, torch.arange(length), torch.arange(length)[:, None]):
        shown = positions if isinstance(positions, int) else f"{tuple(positions.shape)}"
        try:
            table = _table(_call(subject, {names[0]: positions, names[1]: width}), length, width, diagnosis)
        except Exception as error:
            table = error_text(error)
        if isinstance(table, Tensor):
            return table
        failed = failed or f"called with {names[0]}={shown}, {names[1]}={width}, {table}"
    return failed


def _call(subject: Subject, given: dict[str, Any]) -> Any:
    assert subject.function is not None
    positional = [name for name in given if subject.called[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    with subject.settings.on():
        if positional:  # in the order of the signature
            return subject.function(*(given[name] for name in subject.called if name in given))
        return subject.function(**given)


def _one_by_one(subject: Subject, length: int, width: int) -> Tensor | str:
    names = _by_number(subject)
    assert names is not None
    rows = []
    for position in range(length):
        row = []
        for channel in range(width):
            try:
                row.append(float(_call(subject, dict(zip(names, (position, channel, width), strict=True)))))
            except Exception as error:
                given = f"{names[0]}={position}, {names[1]}={channel}, {names[2]}={width}"
                return f"called with {given}, {error_text(error)}"
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def _table(result: Any, length: int, width: int, diagnosis: TableDiagnosis) -> Tensor | str:
    """What came back, as (length, d_model)."""
    tensor = next(tensors_in(result), None)
    if tensor is None:
        tensor = torch.as_tensor(result)
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        return "it returned complex numbers"
    kept = tensor.squeeze().to(torch.float64)
    if kept.shape == (width, length) and width != length:
        _say(diagnosis, "its table is (d_model, length)")
        kept = kept.t()
    if kept.shape != (length, width):
        return f"it returned {tuple(tensor.shape)}"
    if tensor.ndim == 3 and tensor.shape[1] == 1:
        _say(diagnosis, "its table is (length, 1, d_model)")
    return kept


def _say(diagnosis: TableDiagnosis, way: str) -> None:
    if way not in diagnosis.conventions:
        diagnosis.conventions.append(way)


# How a module is called. --------------------------------------------------------------------------------------------


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _kept(module: nn.Module) -> Iterator[Tensor]:
    """The tables that it keeps: buffers, or tensors that are plain attributes."""
    plain = [(name, each) for inner in module.modules() for name, each in vars(inner).items()]
    for path, tensor in (*module.named_buffers(), *module.named_parameters(), *plain):
        name = path.rpartition(".")[2].lower().strip("_")
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.squeeze().ndim != 2:
            continue
        if name in _KEPT or "pos" in name or "sinus" in name:
            yield tensor


def _built(subject: Subject, pairs: int, each: int) -> nn.Module | None:
    if subject.build is None:
        return subject.module
    try:
        return subject.build(Sizes(2, pairs, 6, 6, each, each))[0]
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{subject.name} cannot be constructed: {error_text(error)}") from error


def _of_module(subject: Subject, diagnosis: TableDiagnosis) -> Iterator[Tensor | str]:
    for length, width in SIZES_TRIED if subject.build is not None else SIZES_TRIED[-2:-1]:
        try:
            module = _built(subject, 2, width // 2)
        except InputError as error:
            yield str(error)
            return
        assert module is not None
        module = copy.deepcopy(module).double().eval()
        kept = next(_kept(module), None)
        if kept is None:
            yield "it has no table"
            return
        rows, channels = kept.squeeze().shape
        yield _added(module, min(length, rows), channels, diagnosis)


def _added(module: nn.Module, length: int, width: int, diagnosis: TableDiagnosis) -> Tensor | str:
    """What a module adds to x, whatever x is."""
    failed = ""
    for shape, axis in (((2, length, width), 1), ((length, 2, width), 0), ((length, width), 0)):
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        try:
            with diagnosis.subject.settings.on():
                results = [module(x) for x in (torch.zeros_like(noise), noise.clone())]
            still, moved = (next(tensors_in(result), None) for result in results)
        except Exception as error:
            failed = failed or f"called with x {shape}, {error_text(error)}"
            continue
        if still is None or moved is None:
            return "it returned no tensor"
        if still.shape != shape:
            if torch.equal(still, moved):  # the table alone, for the caller to add
                return _table(still, length, width, diagnosis)
            failed = failed or f"called with x {shape}, it returned {tuple(still.shape)}"
            continue
        other = 1 - axis
        if len(shape) == 3 and not torch.equal(still.select(other, 0), still.select(other, 1)):
            failed = failed or "what it adds depends on the sample"
            continue
        grown = next((g for g in (0.0, 1.0, width**0.5) if torch.allclose(moved, still + g * noise, atol=CLOSE)), None)
        if grown is None:
            return "what it adds to x depends on x"
        if grown > 1:
            diagnosis.notes = ["it multiplies x by sqrt(d_model) before it adds its table (paper, section 3.4)"]
        if len(shape) == 3 and axis == 0:
            _say(diagnosis, "tokens first: (tokens, batch, d_model)")
        return still.select(other, 0) if len(shape) == 3 else still
    return failed
