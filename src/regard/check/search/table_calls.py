"""How code gives its table of positions: as a function of (length, d_model), or a module that adds what it keeps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.mistakes.sinusoids import TOLERANCE
from regard.check.names import SIZES, meaning
from regard.check.sandbox.answer import error_text
from regard.check.search.layouts import Sizes
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject
from regard.check.target.preparation import copied, in_float64, in_mode
from regard.check.target.running import tensors_in
from regard.errors import InputError

__all__ = ["built", "kept_tables", "learns", "looks_like_table", "returned_for", "tables_of"]

SIZES_TRIED = ((7, 4), (12, 6), (13, 8), (15, 10), (17, 16))
"""Lengths and widths, with even and odd numbers of pairs. Short, since float32 loses an angle's digits as it grows."""
LENGTH_NAMES = {
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
WIDTH_NAMES = {
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
POSITION_NAMES, CHANNEL_NAMES = {"pos", "position", "k", "p", "t"}, {"i", "channel", "dim", "j", "c"}
TABLE_NAMES = ("pe", "p", "pos", "pos_table", "encoding", "encodings", "table")
"""What modules call the table that they keep; also anything with "pos" or "sinus" in its name."""


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
        module = built(subject, 3)
    except InputError:
        return False
    return module is not None and not learns(module) and any(True for _ in kept_tables(module))


def tables_of(diagnosis: Diagnosis) -> Iterator[Tensor | str]:
    """The tables of a function or module in several sizes, (length, d_model); or why there is none.

    Args:
        diagnosis: of the function or module; its conventions and notes are added to.
    """
    subject = diagnosis.subject
    return _of_function(subject, diagnosis) if subject.function is not None else _of_module(subject, diagnosis)


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
        if length is None and (means == "length" or name in LENGTH_NAMES) and (required or name not in ("n", "l", "t")):
            length = parameter.name
        elif width is None and (means in ("d_model", "d_head", "d_out") or name in WIDTH_NAMES):
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
    if (
        position.lower() in POSITION_NAMES
        and channel.lower() in CHANNEL_NAMES
        and (means == "d_model" or width in WIDTH_NAMES)
    ):
        return position, channel, width
    return None


def _of_function(subject: Subject, diagnosis: Diagnosis) -> Iterator[Tensor | str]:
    for length, width in SIZES_TRIED:
        yield _called(subject, length, width, diagnosis)


def _called(subject: Subject, length: int, width: int, diagnosis: Diagnosis) -> Tensor | str:
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


def _table(result: Any, length: int, width: int, diagnosis: Diagnosis) -> Tensor | str:
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


def _say(diagnosis: Diagnosis, way: str) -> None:
    if way not in diagnosis.conventions:
        diagnosis.conventions.append(way)


# How a module is called. --------------------------------------------------------------------------------------------


def learns(module: nn.Module) -> bool:
    """Whether it has anything to learn."""
    return any(parameter.requires_grad for parameter in module.parameters())


def kept_tables(module: nn.Module, axes: int = 2) -> Iterator[Tensor]:
    """The tables that a module keeps: buffers, or tensors that are plain attributes.

    Args:
        module: that adds what it keeps.
        axes: of a table: that of the channels, and those of the places.
    """
    plain = [(name, each) for inner in module.modules() for name, each in vars(inner).items()]
    for path, tensor in (*module.named_buffers(), *module.named_parameters(), *plain):
        name = path.rpartition(".")[2].lower().strip("_")
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.squeeze().ndim != axes:
            continue
        if name in TABLE_NAMES or "pos" in name or "sinus" in name:
            yield tensor


def built(subject: Subject, each: int) -> nn.Module | None:
    """A module of a subject, of two heads of a width where sizes are asked for; None of what is none.

    Args:
        subject: the module, or how it is constructed.
        each: the width of a head.

    Raises:
        InputError: it cannot be constructed.
    """
    if subject.build is None:
        return subject.module
    try:
        return subject.build(Sizes(2, 2, 6, 6, each, each))[0]
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{subject.name} cannot be constructed: {error_text(error)}") from error


def _of_module(subject: Subject, diagnosis: Diagnosis) -> Iterator[Tensor | str]:
    for length, width in SIZES_TRIED if subject.build is not None else SIZES_TRIED[-2:-1]:
        try:
            module = built(subject, width // 2)
        except InputError as error:
            yield str(error)
            return
        assert module is not None
        module = in_mode(in_float64(copied(module)), training=False)
        kept = next(kept_tables(module), None)
        if kept is None:
            yield "it has no table"
            return
        rows, channels = kept.squeeze().shape
        yield _added(module, min(length, rows), channels, diagnosis)


def returned_for(
    module: nn.Module, shape: tuple[int, ...], diagnosis: Diagnosis
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Normal numbers of a shape, and what a module returns for zeros and for them; None where that is no tensor."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with diagnosis.subject.settings.on():
        results = [module(x) for x in (torch.zeros_like(noise), noise.clone())]
    still, moved = (next(tensors_in(result), None) for result in results)
    return noise, still, moved


def _added(module: nn.Module, length: int, width: int, diagnosis: Diagnosis) -> Tensor | str:
    """What a module adds to x, whatever x is; or returns for it, of which it may read the length alone, as of ids."""
    failed = ""
    for shape, axis in (((2, length, width), 1), ((length, 2, width), 0), ((length, width), 0), ((2, length), 0)):
        try:
            noise, still, moved = returned_for(module, shape, diagnosis)
        except Exception as error:
            failed = failed or f"called with x {shape}, {error_text(error)}"
            continue
        if still is None or moved is None:
            return "it returned no tensor"
        if still.shape != shape:
            # The table alone, for the caller to add.
            table = _table(still, length, width, diagnosis) if torch.equal(still, moved) else None
            if isinstance(table, Tensor):
                return table
            failed = failed or f"called with x {shape}, it returned {tuple(still.shape)}"
            continue
        other = 1 - axis
        if len(shape) == 3 and not torch.equal(still.select(other, 0), still.select(other, 1)):
            failed = failed or "what it adds depends on the sample"
            continue
        grown = next(
            (g for g in (0.0, 1.0, width**0.5) if torch.allclose(moved, still + g * noise, atol=TOLERANCE)), None
        )
        if grown is None:
            return "what it adds to x depends on x"
        if grown > 1:
            diagnosis.notes = ["it multiplies x by sqrt(d_model) before it adds its table (paper, section 3.4)"]
        if len(shape) == 3 and axis == 0:
            _say(diagnosis, "tokens first: (tokens, batch, d_model)")
        return still.select(other, 0) if len(shape) == 3 else still
    return failed
