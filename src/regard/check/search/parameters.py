"""Which parameter of a module plays which role: what can be told by names and shapes, to be proved by numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from regard.check.names import role
from regard.check.recipes.case import ProjectionWeights
from regard.check.search.matrices import Roles, StoredParameter, matrices, projections
from regard.errors import InputError

__all__ = ["Structure", "refuse_lazy", "structures"]


@dataclass(frozen=True, eq=False)
class Structure:
    """One way to read a module's parameters."""

    label: str
    """The same for two modules of one class that are read the same way."""
    weights: ProjectionWeights
    says: tuple[str, ...] = ()
    """What is unusual about it."""
    design: tuple[str, ...] = ()
    """What is left out on purpose."""
    packed: bool = False
    """Whether weights of several roles stand in one matrix, in an order of their own."""


def refuse_lazy(module: nn.Module) -> None:
    """Refuse a module whose parameters have no sizes yet.

    Raises:
        InputError: it has such a parameter.
    """
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"its parameter {name} has no size before its first call (a lazy module): give an object that was "
                "called once, FILE.py:OBJECT"
            )


def _found(module: nn.Module) -> Iterator[StoredParameter]:
    for path, parameter in module.named_parameters():
        owner = module.get_submodule(path.rpartition(".")[0])
        stored = "raw"
        if isinstance(owner, nn.Linear) or (isinstance(owner, nn.MultiheadAttention) and "in_proj" in path):
            stored = "out-in"
        elif type(owner).__name__ == "Conv1D":
            stored = "in-out"
        elif isinstance(owner, nn.Conv1d | nn.Conv2d) and parameter.ndim > 1 and parameter[0, 0].numel() == 1:
            yield StoredParameter(path, parameter.detach().flatten(1), "out-in")
            continue
        yield StoredParameter(path, parameter.detach(), stored)


def structures(module: nn.Module, width: int, heads: int | None, context: int | None = None) -> Iterator[Structure]:
    """Ways to read the parameters of a module, likelier ones first.

    Args:
        module: an attention.
        width: of what it is given.
        heads: how many it has, where that is known.
        context: the width of what keys and values are made of, if another.
    """
    found = list(_found(module))
    extra = _extra(module)
    seen = set()
    for label, roles, says in _read(found):
        for number in _heads(module, roles, heads):
            for structure in _built(roles, number, width, context or width, label, says, extra, heads is not None):
                if structure.label not in seen:
                    seen.add(structure.label)
                    yield structure


def _read(found: list[StoredParameter]) -> Iterator[tuple[str, Roles, tuple[str, ...]]]:
    matrices = [each for each in found if each.tensor.ndim >= 2 and not _normed(each.path)]
    vectors = {each.path: each for each in found if each.tensor.ndim == 1 or _is_bias(each)}
    named: Roles = {}
    unnamed = []
    for each in matrices:
        if each.path in vectors:
            continue
        is_role = role(each.path)
        if is_role is None:
            unnamed.append(each)
        else:
            named.setdefault(is_role, []).append((each, _bias(each, vectors)))
    if "out" not in named and len(unnamed) == 1 and ({"q", "k", "v"} <= set(named) or "qkv" in named):
        named["out"] = [(unnamed[0], _bias(unnamed[0], vectors))]
    if "qkv" in named or {"q", "k", "v"} <= set(named) or {"q", "kv"} <= set(named):
        yield "named", named, ()
        return
    square = [each for each in matrices if each.tensor.ndim == 2]
    if 3 <= len(square) <= 4:
        for order in permutations(range(len(square)), len(square)):
            roles = {
                letter: [(square[at], _bias(square[at], vectors))]
                for letter, at in zip(("q", "k", "v", "out"), order, strict=False)
            }
            yield f"order {order}", roles, ()
    if len(square) in (1, 2) and "qkv" not in named:
        for first in range(len(square)):
            roles = {"qkv": [(square[first], _bias(square[first], vectors))]}
            if len(square) == 2:
                roles["out"] = [(square[1 - first], _bias(square[1 - first], vectors))]
            yield f"packed {first}", roles, ()


def _normed(path: str) -> bool:
    return re.search(r"norm|(^|[._])ln(\d|[._]|$)|embedding|pos_|relative|rel_", path.lower()) is not None


def _is_bias(found: StoredParameter) -> bool:
    """Whether two axes are those of a bias by head: (heads, width)."""
    name = found.path.rpartition(".")[2].lower()
    return found.tensor.ndim == 2 and (
        name.endswith("bias") or re.fullmatch("b_?(q|k|v|o|query|key|value|out)", name) is not None
    )


def _bias(weight: StoredParameter, vectors: Mapping[str, StoredParameter]) -> StoredParameter | None:
    stem = re.sub(r"weight$", "", weight.path)
    if weight.path.endswith("weight"):
        return vectors.get(f"{stem}bias")
    mine = role(weight.path)
    same = [each for path, each in vectors.items() if role(path) == mine and not _normed(path)]
    return same[0] if len(same) == 1 and mine is not None else None


def _extra(module: nn.Module) -> dict[str, Tensor | float]:
    """Norms of queries and keys, and sinks."""
    extra: dict[str, Tensor | float] = {}
    for path, part in module.named_modules():
        name = path.rpartition(".")[2].lower()
        if not re.search("norm|ln", name):
            continue
        letter = re.sub(r"norm|layer|ln|rms|[^a-z]", "", name)
        if letter in ("q", "k", "query", "key"):
            for which in ("weight", "gamma", "g", "scale", "gain"):
                if isinstance(getattr(part, which, None), Tensor):
                    extra[f"{letter[0]}_gain"] = getattr(part, which).detach()
            if isinstance(getattr(part, "bias", None), Tensor):
                extra[f"{letter[0]}_shift"] = part.bias.detach()
            for which in ("eps", "variance_epsilon", "epsilon"):
                if isinstance(getattr(part, which, None), float):
                    extra[f"{letter[0]}_eps"] = getattr(part, which)
    for path, parameter in module.named_parameters():
        name = path.rpartition(".")[2].lower()
        if "sink" in name:
            extra["sinks"] = parameter.detach()
        elif parameter.ndim == 1 and re.search("gain|gamma|scale|norm", name):
            letter = re.sub("gain|gamma|scale|norm|weight|rms|[^a-z]", "", name)
            if letter in ("q", "k", "query", "key"):
                extra[f"{letter[0]}_gain"] = parameter.detach()
                extra[f"{letter[0]}_eps"] = float(getattr(module, "eps", 0.0))
    return extra


def _heads(module: nn.Module, roles: Roles, known: int | None) -> Iterator[int]:
    """Numbers of heads to try."""
    each = max(len(found) for found in roles.values())
    if each > 1 and len(next(iter(roles.values()))) == each:
        yield each
        return
    tried = []
    for name in ("num_heads", "n_heads", "n_head", "heads", "h", "nhead", "num_attention_heads", "H", "nheads"):
        value = getattr(module, name, None)
        if isinstance(value, int):
            tried.append(value)
    config = getattr(module, "config", None)
    for name in ("num_attention_heads", "n_head", "num_heads"):
        if isinstance(getattr(config, name, None), int):
            tried.append(getattr(config, name))
    if known is not None:
        tried.append(known)
    whole = next(iter(roles.values()))[0][0].tensor
    tried += [1]
    if not tried[:-1]:
        tried += [n for n in range(2, 33) if max(whole.shape) % n == 0]
    yield from dict.fromkeys(tried)


def _built(
    roles: Roles,
    heads: int,
    width: int,
    context: int,
    label: str,
    says: tuple[str, ...],
    extra: dict[str, Tensor | float],
    told: bool,
) -> Iterator[Structure]:
    label = f"{label} heads {'told' if told else heads}"
    outs = list(matrices(roles["out"], None, heads, "out")) if "out" in roles else [("", None, None)]
    design = () if "out" in roles else ("no output projection",)
    for of_out, out, bias_out in outs:
        for how, (q, k, v), biases, kv_heads, more in projections(roles, heads, width, context):
            if len(q) % heads or len(k) % kv_heads or len(k) // kv_heads != len(q) // heads or len(v) % kv_heads:
                continue
            if out is not None and out.shape[1] not in (len(v) // kv_heads * heads, width, len(v) // kv_heads):
                continue
            weights = ProjectionWeights(q, k, v, heads, kv_heads, out, *biases, bias_out, extra)
            yield Structure(f"{label} {how} {of_out}", weights, says + more, design, not {"q", "k", "v"} <= set(roles))
