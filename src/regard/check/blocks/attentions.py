"""The attentions inside a block: modules of their own, or projections of the block itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from regard.check.names import role

__all__ = ["BlockAttention", "attentions_in", "has_more_than", "is_block", "is_linear", "is_norm"]


@dataclass(frozen=True, eq=False)
class BlockAttention:
    """An attention inside a block: a module of its own, or projections of the block itself."""

    path: str
    """Of the module; of the first projection, where it is none."""
    enters: tuple[nn.Module, ...]
    """What reads its input."""
    leaves: nn.Module
    """What returns its output."""
    whole: bool
    """Whether it is a module of its own."""


def is_block(module: nn.Module) -> bool:
    """Whether there is more than an attention: its norms, a feed-forward network, an embedding."""
    inner = list(attentions_in(module))
    if not inner:
        return False
    if any(one.whole for one in inner):
        return any(one.path for one in inner) and has_more_than(module, [one.leaves for one in inner if one.whole])
    return True


def attentions_in(module: nn.Module) -> Iterator[BlockAttention]:
    """The outermost submodules that are an attention and nothing else; projections that a block has of its own."""
    if not _projects(module):
        return
    if not isinstance(module, nn.ModuleList | nn.ModuleDict) and not has_more_than(module, []):  # these are not called
        yield BlockAttention("", (module,), module, True)
        return
    within = [(path, child, list(attentions_in(child))) for path, child in module.named_children() if _projects(child)]
    for path, _, found in within:
        for one in found:
            yield replace(one, path=f"{path}.{one.path}".rstrip("."))
    if not within:
        yield from _projections(module)


def _projects(module: nn.Module) -> bool:
    """Whether the projections of an attention are among its parameters."""
    roles = set()
    for path, parameter in module.named_parameters():
        is_role = role(path) if parameter.ndim > 1 else None
        if is_role in ("qkv", "kv") and parameter.ndim == 2 and max(parameter.shape) > 3 * min(parameter.shape):
            is_role = None  # the first map of a feed-forward network
        if not re.search("embed|norm|relative|(^|[.])w[tp]e[.]", path.lower()):
            roles.add(is_role)
    return {"q", "k", "v"} <= roles or "qkv" in roles or {"q", "kv"} <= roles


def has_more_than(module: nn.Module, but: list[nn.Module]) -> bool:
    """Whether there are norms (but of queries and keys), embeddings or two linear maps beside an attention."""
    inside = {id(part) for each in but for part in each.modules()}
    others = 0
    for path, part in module.named_modules():
        if id(part) in inside:
            continue
        name = path.rpartition(".")[2].lower()
        if is_norm(part) and re.sub("norm|layer|ln|rms|[^a-z]", "", name) not in ("q", "k", "query", "key"):
            return True
        if isinstance(part, nn.Embedding) and not re.search("rel|bias", path.lower()):
            return True
        others += is_linear(part) and role(f"{path}.weight") in ((None,) if not but else (None, "out", "qkv"))
    return others >= 2


def _projections(module: nn.Module) -> Iterator[BlockAttention]:
    """The linear maps of a block that has an attention in its own code."""
    found: dict[str, nn.Module] = {}
    first, out = "", None
    for path, part in module.named_modules():
        is_role = role(f"{path}.weight") if is_linear(part) else None
        if is_role in ("q", "k", "v", "kv") or (is_role == "qkv" and "qkv" not in found):
            found.setdefault(is_role, part)
            first = first or path
        elif is_role == "out" and out is None and found and _square(part):
            out = part
    if found and out is not None:
        yield BlockAttention(first, tuple(found.values()), out, False)


def _square(part: nn.Module) -> bool:
    weight = getattr(part, "weight", None)
    return isinstance(weight, Tensor) and weight.shape[0] == weight.shape[1]


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm, by its name."""
    return "norm" in type(module).__name__.lower() and all(parameter.ndim < 2 for parameter in module.parameters())


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies each position by one matrix."""
    return isinstance(module, nn.Linear | nn.Conv1d) or type(module).__name__ == "Conv1D"
