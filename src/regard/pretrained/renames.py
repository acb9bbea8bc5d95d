"""Between a checkpoint's weights and a model's: an ordered table, read in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.transformer import Config

__all__ = ["DTYPES", "Rename", "back", "every", "fill", "inside", "linear", "listed", "packed"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""What weights may be stored and loaded in."""

Layout = Literal["same", "transposed", "row"]


@dataclass(frozen=True)
class Rename:
    """One of our parameters, and the checkpoint's tensors that make it, stacked in this order.

    In every name ``{n}`` stands for each layer's number, and ``{m}`` for each of the decoder's layers where an
    encoder-decoder has both.
    """

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] = ()
    """How many rows of ours each gives; all the same by default."""
    layout: Layout = "same"
    """``transposed``: inputs before outputs (GPT-2); ``row``: a matrix of one row (the logits' bias of BART)."""


def linear(ours: str, theirs: str, *, bias: bool = True, layout: Layout = "same") -> list[Rename]:
    """Weight and, perhaps, bias of one linear layer or norm."""
    weight = Rename(f"{ours}.weight", (f"{theirs}.weight",), layout=layout)
    return [weight, Rename(f"{ours}.bias", (f"{theirs}.bias",))] if bias else [weight]


def packed(config: Config, ours: str, theirs: str, parts: tuple[str, str, str], *, bias: bool = False) -> list[Rename]:
    """The packed projection of an attention from the checkpoint's three: queries, keys, values.

    Args:
        config: of the stack, for the widths.
        ours: the attention's name here.
        theirs: the attention's name there.
        parts: what its three projections are called there.
        bias: whether they have one.
    """
    kv = (config.num_kv_heads or config.num_heads) * config.head_dim
    rows = (config.num_heads * config.head_dim, kv, kv)
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Rename(f"{ours}.qkv.{kind}", tuple(f"{theirs}.{part}.{kind}" for part in parts), rows) for kind in kinds]


def inside(renames: Sequence[Rename], ours: str, theirs: str, letter: str = "n") -> list[Rename]:
    """A model's table where that model is part of another.

    Args:
        renames: the table, whose layers are numbered by ``n``.
        ours: what stands before its names here.
        theirs: what stands before its names there.
        letter: what numbers its layers in the other.
    """

    def numbered(name: str) -> str:
        return name.replace("{n}", f"{{{letter}}}")

    return [
        replace(
            rename, ours=numbered(ours + rename.ours), theirs=tuple(numbered(theirs + name) for name in rename.theirs)
        )
        for rename in renames
    ]


def every(renames: Sequence[Rename], layers: Mapping[str, int]) -> Iterator[Rename]:
    """The table with each layer's number in its place, by what stands for it: ``n``, ``m``."""
    for rename in renames:
        letter = next((letter for letter in layers if f"{{{letter}}}" in rename.ours), None)
        if letter is None:
            yield rename
            continue
        for number in range(layers[letter]):
            spelled = [name.replace(f"{{{letter}}}", str(number)) for name in (rename.ours, *rename.theirs)]
            yield replace(rename, ours=spelled[0], theirs=tuple(spelled[1:]))


def fill(
    model: nn.Module, tensors: Mapping[str, Tensor], renames: Sequence[Rename], *, dtype: torch.dtype, source: Path
) -> None:
    """Put a checkpoint's tensors into a model, each exactly once.

    Args:
        model: on any device, the meta device included; its parameters are replaced.
        tensors: by their names in the checkpoint.
        renames: a table that makes every parameter of the model, without letters.
        dtype: of the model's weights.
        source: named in errors.

    Raises:
        InputError: a tensor is missing, left over, of another shape than the model's, or not of finite numbers.
    """
    left = dict(tensors)
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for rename in renames:
        parts = [left.pop(name, None) for name in rename.theirs]
        missing += [name for name, part in zip(rename.theirs, parts, strict=True) if part is None]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            state[rename.ours] = _stack(found, rename, model.get_parameter(rename.ours).shape, dtype, source)
    if missing:
        raise InputError(f"{source} lacks {listed(missing)}")
    if left:
        raise InputError(f"{source} holds weights that this model has no place for: {listed(sorted(left))}")
    # A parameter with several names, as token vectors that two stacks share, is in the table once.
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[name] = state[first[id(parameter)]]
    model.load_state_dict(state, assign=True)


def back(model: nn.Module, renames: Sequence[Rename]) -> dict[str, Tensor]:
    """A model's weights under the checkpoint's names and in its layout: the opposite of `fill`."""
    tensors: dict[str, Tensor] = {}
    for rename in renames:
        ours = model.get_parameter(rename.ours).detach().cpu()
        rows = list(rename.rows) or [len(ours) // len(rename.theirs)] * len(rename.theirs)
        for name, part in zip(rename.theirs, torch.split(ours, rows), strict=True):
            if rename.layout == "transposed":
                part = part.T
            tensors[name] = (part[None] if rename.layout == "row" else part).contiguous()
    return tensors


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _stack(parts: list[Tensor], rename: Rename, shape: torch.Size, dtype: torch.dtype, source: Path) -> Tensor:
    rows = rename.rows or (shape[0] // len(parts),) * len(parts)
    for i, (part, name) in enumerate(zip(parts, rename.theirs, strict=True)):
        expected = (rows[i], *shape[1:])
        if rename.layout != "same":
            expected = expected[::-1] if rename.layout == "transposed" else (1, *expected)
        if part.dtype not in DTYPES:
            raise InputError(f"{source}: {name} is {part.dtype}; regard reads {listed([str(d) for d in DTYPES])}")
        if tuple(part.shape) != expected:
            raise InputError(f"{source}: {name} has shape {tuple(part.shape)}, the config wants {expected}")
    if rename.layout != "same":
        parts = [part.T if rename.layout == "transposed" else part[0] for part in parts]
    # Always a copy: what was read is mapped from the file, and would change, or crash the process, when the file does.
    stacked = torch.cat([part.to(dtype) for part in parts])
    if stacked.numel() and not torch.stack(stacked.aminmax()).isfinite().all():
        names = listed(rename.theirs)
        if dtype is not torch.float32 and all(part.isfinite().all() for part in parts):
            raise InputError(f"{source}: {names} holds numbers beyond {dtype}; load it in torch.float32")
        raise InputError(f"{source} is damaged: {names} holds numbers that are not finite. Fetch it anew")
    return stacked
