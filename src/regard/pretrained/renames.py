"""The table between a checkpoint's weights and a model's parameters, used in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.transformer import Config

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""The dtypes in which weights may be stored and loaded."""

TensorLayout = Literal["same", "transposed", "row"]


@runtime_checkable
class LazyTensor(Protocol):
    """A weight whose values are computed when they are copied: of a GGUF file, which has them quantised."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""

    def copy_to(self, destination: Tensor) -> None:
        """Write the values into a tensor of the same shape and any dtype."""


Weight = Tensor | LazyTensor


def values_of(weight: Weight) -> Tensor:
    """The values of a weight: the tensor itself, or what a lazy one computes."""
    if isinstance(weight, Tensor):
        return weight
    values = torch.empty(weight.shape, dtype=weight.dtype)
    weight.copy_to(values)
    return values


@dataclass(frozen=True)
class Rename:
    """One parameter of the model, and the checkpoint's tensors that make it, stacked in this order.

    In every name ``{n}`` stands for the number of each layer; in an encoder-decoder ``{n}`` stands for the number of
    each encoder layer and ``{m}`` for the number of each decoder layer.
    """

    parameter: str
    checkpoint_names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    """How many rows of the parameter each tensor gives; equally many by default."""
    layout: TensorLayout = "same"
    """How the checkpoint stores the tensor. ``transposed``: inputs before outputs (GPT-2); ``row``: with a first axis
    of size 1 (the logits' bias of BART)."""


def linear(parameter: str, checkpoint_name: str, *, bias: bool = True, layout: TensorLayout = "same") -> list[Rename]:
    """Weight and, perhaps, bias of one linear layer or norm."""
    weight = Rename(f"{parameter}.weight", (f"{checkpoint_name}.weight",), layout=layout)
    return [weight, Rename(f"{parameter}.bias", (f"{checkpoint_name}.bias",))] if bias else [weight]


def packed_qkv(
    config: Config, attention: str, checkpoint_attention: str, projections: tuple[str, str, str], *, bias: bool = False
) -> list[Rename]:
    """The packed projection of an attention, made of the checkpoint's three: queries, keys, values.

    Args:
        config: the stack's, for the widths.
        attention: the name of the attention in the model.
        checkpoint_attention: the name of the attention in the checkpoint.
        projections: the names of the three projections in the checkpoint.
        bias: whether the projections have a bias.
    """
    kv_width = (config.num_kv_heads or config.num_heads) * config.head_dim
    rows = (config.num_heads * config.head_dim, kv_width, kv_width)
    return [
        Rename(f"{attention}.qkv.{part}", tuple(f"{checkpoint_attention}.{name}.{part}" for name in projections), rows)
        for part in (("weight", "bias") if bias else ("weight",))
    ]


def prefixed(renames: Sequence[Rename], prefix: str, checkpoint_prefix: str, letter: str = "n") -> list[Rename]:
    """The table of a model that is part of another model.

    Args:
        renames: the table of the part, whose layers are numbered by ``n``.
        prefix: goes before the names of the parameters.
        checkpoint_prefix: goes before the names in the checkpoint.
        letter: numbers the part's layers in the whole model.
    """

    def renumbered(name: str) -> str:
        return name.replace("{n}", f"{{{letter}}}")

    return [
        replace(
            rename,
            parameter=renumbered(prefix + rename.parameter),
            checkpoint_names=tuple(renumbered(checkpoint_prefix + name) for name in rename.checkpoint_names),
        )
        for rename in renames
    ]


def expand_layers(renames: Sequence[Rename], num_layers: Mapping[str, int]) -> Iterator[Rename]:
    """The table with one entry for each layer.

    Args:
        renames: a table with letters.
        num_layers: the number of layers for each letter, ``n`` and ``m``.
    """
    for rename in renames:
        letter = next((letter for letter in num_layers if f"{{{letter}}}" in rename.parameter), None)
        if letter is None:
            yield rename
            continue
        for layer in range(num_layers[letter]):
            parameter, *checkpoint_names = (
                name.replace(f"{{{letter}}}", str(layer)) for name in (rename.parameter, *rename.checkpoint_names)
            )
            yield replace(rename, parameter=parameter, checkpoint_names=tuple(checkpoint_names))


def load_weights(
    model: nn.Module, tensors: Mapping[str, Weight], renames: Sequence[Rename], *, dtype: torch.dtype, source: Path
) -> None:
    """Put a checkpoint's tensors into a model, each exactly once.

    The model's weights are copies: safetensors maps its tensors from the file, so a change of the file would change or
    crash a model. Nothing is copied before the names and the shapes of all are right, and one parameter after the other
    is: the memory holds the model, and of lazy tensors what one of them needs.

    Args:
        model: on any device, the meta device included; its parameters are replaced.
        tensors: by their names in the checkpoint.
        renames: an expanded table that makes every parameter of the model.
        dtype: of the model's weights.
        source: the file that errors name.

    Raises:
        InputError: a tensor is missing, unknown, of another shape than the model's, or not finite.
    """
    used = {name for rename in renames for name in rename.checkpoint_names}
    if missing := [name for rename in renames for name in rename.checkpoint_names if name not in tensors]:
        raise InputError(f"{source} lacks {summarize_names(missing)}")
    if unused := sorted(tensors.keys() - used):
        raise InputError(f"{source} holds weights that this model has no place for: {summarize_names(unused)}")
    shapes = {rename.parameter: model.get_parameter(rename.parameter).shape for rename in renames}
    parts = {rename.parameter: [tensors[name] for name in rename.checkpoint_names] for rename in renames}
    for rename in renames:
        _check_parts(parts[rename.parameter], rename, shapes[rename.parameter], source)
    state = {
        rename.parameter: _stack(parts[rename.parameter], rename, shapes[rename.parameter], dtype, source)
        for rename in renames
    }
    # A parameter with several names, as token vectors that two stacks share, is in the table once.
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[name] = state[first_names[id(parameter)]]
    model.load_state_dict(state, assign=True)


def export_weights(model: nn.Module, renames: Sequence[Rename]) -> dict[str, Tensor]:
    """A model's weights under the checkpoint's names and in its layout: the opposite of `load_weights`."""
    tensors: dict[str, Tensor] = {}
    for rename in renames:
        parameter = model.get_parameter(rename.parameter).detach().cpu()
        count = len(rename.checkpoint_names)
        rows = list(rename.rows) or [len(parameter) // count] * count
        for name, part in zip(rename.checkpoint_names, torch.split(parameter, rows), strict=True):
            if rename.layout == "transposed":
                part = part.T
            tensors[name] = (part[None] if rename.layout == "row" else part).contiguous()
    return tensors


def summarize_names(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    first = ", ".join(names[:5])
    return first if len(names) <= 5 else f"{first} and {len(names) - 5} more"


def _check_parts(parts: Sequence[Weight], rename: Rename, shape: torch.Size, source: Path) -> None:
    """Refuse tensors that do not make the parameter."""
    rows = rename.rows or (shape[0] // len(parts),) * len(parts)
    for part, name, num_rows in zip(parts, rename.checkpoint_names, rows, strict=True):
        expected = (num_rows, *shape[1:])
        if rename.layout != "same":
            expected = expected[::-1] if rename.layout == "transposed" else (1, *expected)
        if part.dtype not in DTYPES:
            supported = summarize_names([str(each) for each in DTYPES])
            raise InputError(f"{source}: {name} is {part.dtype}; regard reads {supported}")
        if tuple(part.shape) != expected:
            raise InputError(f"{source}: {name} has shape {tuple(part.shape)}, the config wants {expected}")


def _stack(parts: Sequence[Weight], rename: Rename, shape: torch.Size, dtype: torch.dtype, source: Path) -> Tensor:
    """The parameter that a checkpoint's tensors make."""
    stacked = torch.empty(shape, dtype=dtype)
    rows = list(rename.rows) or [shape[0] // len(parts)] * len(parts)
    for part, destination in zip(parts, torch.split(stacked, rows), strict=True):
        if rename.layout != "same":
            destination = destination.T if rename.layout == "transposed" else destination[None]
        if isinstance(part, Tensor):
            destination.copy_(part)
        else:
            part.copy_to(destination)
    if stacked.numel() and not torch.stack(stacked.aminmax()).isfinite().all():
        names = summarize_names(rename.checkpoint_names)
        if dtype is not torch.float32 and all(values_of(part).isfinite().all() for part in parts):
            raise InputError(f"{source}: {names} holds numbers beyond {dtype}; load it in torch.float32")
        raise InputError(f"{source} is damaged: {names} holds numbers that are not finite. Fetch it anew")
    return stacked
