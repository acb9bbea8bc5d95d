"""What an argument of a call is by the layer of the module that is called with it, and with nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from regard.check.target.axes_inside import is_taken_by_a_norm
from regard.check.target.documented_shapes import documented_letters, is_of_samples
from regard.check.target.facts import read_once
from regard.check.target.names import call_meaning, is_of_pairs
from regard.check.target.preparation import embeds, modules_in
from regard.check.target.usage import applied_modules, is_given_anew, is_two_sides

__all__ = ["STEP", "are_spread", "ids_of_samples", "role_by_layer", "step_candidates", "width_taken"]

STEP = "step"
"""The role of how far each sample is, as the step of a diffusion: one number of each."""
_TIMES = re.compile(r"t|ts|(?:time|diffusion|noise)_?(?:steps?|levels?)?|timesteps?|steps?|sigmas?|noise_levels?", re.I)
_WRITTEN_TWICE = r"\s*\)\s*(?:\.unsqueeze\(\s*(?:dim\s*=\s*)?1\s*\)|\[\s*:\s*,\s*None\b)"


def first_layer(target: Any, source: str, name: str) -> nn.Module | None:
    """The layer that takes an argument, of a sequence of layers the first; None where several do, or none.

    Args:
        target: what is called.
        source: its text.
        name: of the argument.
    """
    owner = next(iter(modules_in(target)), None)
    found = {id(each): each for attribute in applied_modules(source, name) if (each := _of(owner, attribute))}
    if len({type(each) for each in found.values()}) != 1:
        return None
    return next(iter(found.values()))


def _of(owner: nn.Module | None, attribute: str) -> nn.Module | None:
    layer = getattr(owner, attribute, None)
    while isinstance(layer, nn.Sequential) and len(layer):
        layer = layer[0]
    return layer if isinstance(layer, nn.Module) else None


def role_by_layer(target: Any, source: str, name: str, role: str | None) -> str | None:
    """What an argument that has to be given is by the layer that takes it; None where that says no more than its name.

    Args:
        target: what is called.
        source: its text.
        name: of the argument.
        role: by its name.
    """
    if role is None and _is_two_sides_inside(target, name):
        return "grid"
    if role == "image" and is_taken_by_a_norm(target, name):
        return "x"  # the tokens of a picture
    layer = first_layer(target, source, name)
    if layer is None:
        return None
    if isinstance(layer, nn.Embedding):
        found = STEP if are_spread(source, name) else "ids"
        is_of_tokens = role == "size length" and documented_letters(source, name) == "bt"
        return found if role in (None, "start") or is_of_tokens else None
    if isinstance(layer, nn.Linear | nn.LayerNorm):
        is_bare = len(name) == 1 and role in ("mask", "size length")
        return "x" if (role is None or is_bare) and not is_given_anew(source, name) else None
    is_own = not type(layer).__module__.startswith("torch.")
    return STEP if is_own and role in (None, "size length", "start") and _TIMES.fullmatch(name) else None


def _is_two_sides_inside(target: Any, name: str) -> bool:
    """Whether a part that takes an argument of the same name takes it apart into height and width."""
    kinds = {type(each) for module in modules_in(target) for each in module.modules() if each is not module}
    for kind in kinds:
        call = kind.forward
        if kind.__module__.startswith("torch.") or name not in inspect.signature(call).parameters:
            continue
        try:
            if is_two_sides(inspect.getsource(call), name):
                return True
        except (OSError, TypeError):
            continue
    return False


@read_once
def width_taken(target: Any, source: str, name: str) -> int | None:
    """How wide the vectors of tokens are that a layer takes as they are handed over; None where nothing says it."""
    layer = None if is_of_pairs(name) or is_given_anew(source, name) else first_layer(target, source, name)
    if isinstance(layer, nn.Linear):
        return layer.in_features or None
    return layer.normalized_shape[-1] if isinstance(layer, nn.LayerNorm) else None


def ids_of_samples(target: Any, source: str, name: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """One id of each sample, as of its class or of its step, where an embedding looks them up; else nothing.

    One inside of a module may, where they are written to be one of each sample.
    """
    is_written = is_of_samples(source, name) and embeds(target)
    if call_meaning(name) != "ids" and (is_written or isinstance(first_layer(target, source, name), nn.Embedding)):
        yield "id of each sample", lambda draft: torch.arange(draft.sizes.batch) + 1


def are_spread(source: str, name: str) -> bool:
    """Whether what is looked up gets an axis for the tokens: it is one vector of each sample."""
    return re.search(rf"\bself\.\w+\(\s*{re.escape(name)}{_WRITTEN_TWICE}", source) is not None


def step_candidates() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A number of each sample, whole or not, and the same with an axis behind."""
    yield "of each sample", lambda draft: torch.arange(draft.sizes.batch) + 1
    yield "number of each sample", lambda draft: torch.arange(draft.sizes.batch, dtype=torch.float64) + 1
    yield "column", lambda draft: torch.arange(draft.sizes.batch, dtype=torch.float64)[:, None] + 1
