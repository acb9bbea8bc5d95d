"""Which parameter of a module plays which role: what can be told by names and shapes, to be proved by numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor, nn

from regard.check.names import role
from regard.check.recipe import ProjectionWeights

__all__ = ["Structure", "redraw", "structures"]


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


def redraw(module: nn.Module, seed: int) -> None:
    """New random parameters, so that each has an effect: also those that begin as zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                continue
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:
                drawn = drawn * 1.2 * parameter.shape[-1] ** -0.5
            else:
                drawn = drawn * 0.3 + (
                    1.0 if "norm" in name or "ln" in name or "scale" in name or "temp" in name else 0.0
                )
            parameter.copy_(drawn)


@dataclass(frozen=True, eq=False)
class _Found:
    path: str
    tensor: Tensor
    stored: str
    """"out-in" (torch.nn.Linear), "in-out" (Conv1D), or "raw"."""


def _found(module: nn.Module) -> Iterator[_Found]:
    for path, parameter in module.named_parameters():
        owner = module.get_submodule(path.rpartition(".")[0])
        stored = "raw"
        if isinstance(owner, nn.Linear) or (isinstance(owner, nn.MultiheadAttention) and "in_proj" in path):
            stored = "out-in"
        elif type(owner).__name__ == "Conv1D":
            stored = "in-out"
        elif isinstance(owner, nn.Conv1d | nn.Conv2d) and parameter.ndim > 1 and parameter[0, 0].numel() == 1:
            yield _Found(path, parameter.detach().flatten(1), "out-in")
            continue
        yield _Found(path, parameter.detach(), stored)


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
    for label, roles, says in _read(found, width):
        for number in _heads(module, roles, heads):
            for structure in _built(roles, number, width, context or width, label, says, extra, heads is not None):
                if structure.label not in seen:
                    seen.add(structure.label)
                    yield structure


Roles = dict[str, list[tuple[_Found, _Found | None]]]
"""For each role the weights that play it, one for each head where heads have their own, with their biases."""


def _read(found: list[_Found], width: int) -> Iterator[tuple[str, Roles, tuple[str, ...]]]:
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


def _is_bias(found: _Found) -> bool:
    """Whether two axes are those of a bias by head: (heads, width)."""
    name = found.path.rpartition(".")[2].lower()
    return found.tensor.ndim == 2 and (
        name.endswith("bias") or re.fullmatch("b_?(q|k|v|o|query|key|value|out)", name) is not None
    )


def _bias(weight: _Found, vectors: Mapping[str, _Found]) -> _Found | None:
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
    outs = list(_matrices(roles["out"], None, heads, "out")) if "out" in roles else [("", None, None)]
    design = () if "out" in roles else ("no output projection",)
    for of_out, out, bias_out in outs:
        for how, (q, k, v), biases, kv_heads, more in _projections(roles, heads, width, context):
            if len(q) % heads or len(k) % kv_heads or len(k) // kv_heads != len(q) // heads or len(v) % kv_heads:
                continue
            if out is not None and out.shape[1] not in (len(v) // kv_heads * heads, width, len(v) // kv_heads):
                continue
            weights = ProjectionWeights(q, k, v, heads, kv_heads, out, *biases, bias_out, extra)
            yield Structure(f"{label} {how} {of_out}", weights, says + more, design, not {"q", "k", "v"} <= set(roles))


Read = tuple[str, Tensor, Tensor | None]


def _matrices(found: list[tuple[_Found, _Found | None]], into: int | None, heads: int, letter: str) -> Iterator[Read]:
    """A role's weight as (out, in), with its bias; both orientations where it cannot be told which is stored."""
    if len(found) > 1:
        if letter == "out":  # each head's output has its own: their sum is the concatenation, projected
            each = [next(_matrices([one], None, 1, letter)) for one in found]
            biases = [bias for _, _, bias in each if bias is not None]
            yield (
                "by head",
                torch.cat([matrix for _, matrix, _ in each], 1),
                sum(biases[1:], biases[0]) if biases else None,
            )
            return
        several = [list(_matrices([one], into, 1, letter)) for one in found]
        for which in zip(*several, strict=False):
            biases = [bias for _, _, bias in which]
            whole = None if any(bias is None for bias in biases) else torch.cat([b for b in biases if b is not None])
            yield which[0][0] + " by head", torch.cat([matrix for _, matrix, _ in which]), whole
        return
    (weight, bias) = found[0]
    tensor = weight.tensor
    flat = None if bias is None else bias.tensor.reshape(-1)
    if tensor.ndim == 3:
        yield from ((how, matrix, flat) for how, matrix in _by_head(tensor, into, heads, letter))
    elif weight.stored != "raw":
        yield weight.stored, tensor if weight.stored == "out-in" else tensor.t(), flat
    else:
        for how, matrix in (("in-out", tensor.t()), ("out-in", tensor)):
            if into is None or matrix.shape[1] == into:
                yield how, matrix, flat


def _by_head(tensor: Tensor, into: int | None, heads: int, letter: str) -> Iterator[tuple[str, Tensor]]:
    """(out, in) of weights that have an axis of their own for heads."""
    for at in range(3):
        if tensor.shape[at] != heads:
            continue
        rest = tensor.movedim(at, 0)
        for how, each in ((f"heads {at} in-out", rest.transpose(1, 2)), (f"heads {at} out-in", rest)):
            if letter == "out":  # each head's: (width, d_out) or (d_out, width)
                yield how, each.permute(1, 0, 2).reshape(each.shape[1], -1)
            elif into is None or each.shape[2] == into:
                yield how, each.reshape(-1, each.shape[2])


Three = tuple[Tensor, Tensor, Tensor]
Biases = tuple[Tensor | None, Tensor | None, Tensor | None]


def _projections(
    roles: Roles, heads: int, width: int, context: int
) -> Iterator[tuple[str, Three, Biases, int, tuple[str, ...]]]:
    """q, k and v with their biases and the number of key heads."""
    if {"q", "k", "v"} <= set(roles):
        for a, q, bq in _matrices(roles["q"], width, heads, "q"):
            for b, k, bk in _matrices(roles["k"], context, heads, "k"):
                for c, v, bv in _matrices(roles["v"], context, heads, "v"):
                    if (a == b == c) or q.shape != k.shape:
                        shared = heads if len(k) == len(q) else max(1, heads * len(k) // len(q))
                        yield f"{a}", (q, k, v), (bq, bk, bv), shared, ()
        return
    if {"q", "kv"} <= set(roles):
        for a, q, bq in _matrices(roles["q"], width, heads, "q"):
            for how, kv, bkv in _matrices(roles["kv"], context, heads, "kv"):
                for cut, says, (k, v) in _cut(kv, 2, heads):
                    biases = [None, None] if bkv is None else next(p for c, _, p in _cut(bkv, 2, heads) if c == cut)
                    yield f"{a} {how} {cut}", (q, k, v), (bq, biases[0], biases[1]), _shared(heads, q, k), says
        return
    for how, packed, bias in _matrices(roles["qkv"], width, heads, "qkv"):
        for cut, says, (q, k, v) in _cut(packed, 3, heads):
            biases = [None] * 3 if bias is None else next(p for c, _, p in _cut(bias, 3, heads) if c == cut)
            yield f"{how} {cut}", (q, k, v), (biases[0], biases[1], biases[2]), heads, says
        each = len(packed) - width
        if 0 < each < 2 * width and each % 2 == 0 and width % heads == 0 and each // 2 % (width // heads) == 0:
            sizes = [width, each // 2, each // 2]
            q, k, v = torch.split(packed, sizes)
            biases = [None] * 3 if bias is None else list(torch.split(bias, sizes))
            yield f"{how} groups", (q, k, v), (biases[0], biases[1], biases[2]), _shared(heads, q, k), ()


def _shared(heads: int, q: Tensor, k: Tensor) -> int:
    return max(1, heads * len(k) // len(q))


def _cut(packed: Tensor, parts: int, heads: int) -> Iterator[tuple[str, tuple[str, ...], list[Tensor]]]:
    """Packed rows in as many parts: one after the other, by head, or by channel."""
    if len(packed) % parts:
        return
    said = "thirds: q, k and v" if parts == 3 else "halves: k and v"
    yield "thirds", (f"packed in {said}, one after the other",), list(packed.chunk(parts))
    if len(packed) % (parts * heads) == 0 and heads > 1:
        by_head = packed.reshape(heads, parts, -1, *packed.shape[1:])
        names = "q, k and v" if parts == 3 else "k and v"
        says = f"packed by head: {names} of each head are next to each other (GPT-NeoX)"
        yield "by head", (says,), [by_head[:, n].reshape(-1, *packed.shape[1:]) for n in range(parts)]
    by_channel = packed.reshape(-1, parts, *packed.shape[1:])
    says = f"packed by channel: the {parts} numbers of a channel are next to each other"
    yield "by channel", (says,), [by_channel[:, n] for n in range(parts)]
    if len(packed) % (parts * heads) == 0 and heads > 1:
        last = packed.reshape(heads, -1, parts, *packed.shape[1:])
        says = "packed by head and channel"
        yield "by head and channel", (says,), [last[:, :, n].reshape(-1, *packed.shape[1:]) for n in range(parts)]
