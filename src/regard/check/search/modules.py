"""Modules to call: of two sizes, in float64, with parameters that all count."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch
from torch import nn

from regard.check.names import SIZES, meaning, role
from regard.check.search.cases import DIFFERENT, OTHER
from regard.check.search.layouts import Sizes
from regard.check.search.parameters import refuse_lazy
from regard.check.search.subject import Subject
from regard.check.target.preparation import in_float64, in_mode, redraw
from regard.errors import InputError

__all__ = ["modules_of", "whole"]

OTHERS = (
    DIFFERENT,
    replace(OTHER, d_value=7),
    Sizes(batch=2, heads=2, queries=6, keys=6, d_key=16, d_value=16),
    Sizes(batch=2, heads=8, queries=6, keys=6, d_key=8, d_value=8),
    Sizes(batch=2, heads=1, queries=6, keys=6, d_key=10, d_value=10),
)
"""Sizes to build modules of, until two could be built and called."""
MAX_PARAMETERS = 20_000_000
"""Of a module that is searched."""


def modules_of(subject: Subject) -> tuple[list[tuple[Sizes, nn.Module, int, int | None]], str]:
    """Modules of two sizes, in float64, with parameters that all count."""
    failed: InputError | None = None
    made: list[tuple[Sizes, nn.Module, int, int | None]] = []
    if subject.build is None:
        assert subject.module is not None
        module = in_mode(in_float64(subject.module), training=False)
        refuse_lazy(module)
        redraw(module, 1)
        width, other = _width(module)
        return [(DIFFERENT, module, width, other)], ""
    grouped = any(
        meaning(name, SIZES) == "kv_heads" for name in inspect.signature(subject.kind or nn.Module).parameters
    )
    for sizes in OTHERS:
        if grouped and sizes.heads % 2:
            continue
        try:
            torch.manual_seed(0)
            module, said = subject.build(sizes)
        except InputError as error:
            failed = failed or error
            continue
        _refuse_large(module)
        module = in_mode(in_float64(module), training=False)
        refuse_lazy(module)
        redraw(module, len(made) + 1)
        if not made:
            subject.assumptions += said
            subject.told = any(meaning(each.partition("=")[0].rpartition(".")[2], SIZES) == "heads" for each in said)
            subject.module = module
        made.append((sizes, module, _inferred(module, sizes.d_model), None))
        if len(made) == 2:
            break
    if failed is not None and not made:
        raise failed
    return made, ""


def _refuse_large(module: nn.Module) -> None:
    """Refuse a module whose sizes the constructor's defaults make too large to be computed hundreds of times.

    Raises:
        InputError: it has more than `MAX_PARAMETERS`.
    """
    count = sum(each.numel() for each in module.parameters() if not nn.parameter.is_lazy(each))
    if count > MAX_PARAMETERS:
        millions = f"{count / 1e6:.0f} million parameters with the sizes that are its defaults"
        raise InputError(f"{type(module).__name__} has {millions}, too many to be searched: give smaller ones by --arg")


def whole(subject: Subject) -> nn.Module:
    """The module itself, of any size that can be built.

    Raises:
        InputError: none can.
    """
    return modules_of(subject)[0][0][1] if subject.module is None else subject.module


def _inferred(module: nn.Module, guess: int) -> int:
    """The width of its input: what was asked for, unless its parameters say otherwise."""
    widths = [each.in_features for each in module.modules() if isinstance(each, nn.Linear)]
    if guess in widths or not widths:
        return guess
    for name in ("d_model", "embed_dim", "dim", "hidden_size"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    return widths[0] if widths else guess


def _width(module: nn.Module) -> tuple[int, int | None]:
    for name in ("d_model", "embed_dim", "hidden_size", "dim", "n_embd"):
        for owner in (module, getattr(module, "config", None)):
            value = getattr(owner, name, None)
            if isinstance(value, int):
                other = getattr(module, "kdim", None)
                return value, other if isinstance(other, int) and other != value else None
    for path, parameter in module.named_parameters():
        if parameter.ndim == 2 and role(path) in ("q", "qkv"):
            owner = module.get_submodule(path.rpartition(".")[0])
            stored = isinstance(owner, nn.Linear | nn.MultiheadAttention)
            return parameter.shape[1 if stored else 0], None
    raise InputError(f"the input width of {type(module).__name__} is unknown: give it an attribute d_model")
