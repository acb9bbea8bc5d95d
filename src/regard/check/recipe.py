"""Attention with a choice at every step: what the definition does, and what it is mistaken for.

A recipe is one choice for each slot of `SLOTS`, in the order they are computed. The first choice of every slot is the
definition's; the others are layouts, designs or mistakes. Slots before a mistake are computed once for all recipes that
share them, so that thousands of pairs of mistakes cost little more than their last steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import ALiBi, Rotary

__all__ = ["NAMES", "SLOTS", "Case", "Choices", "Kitchen", "ProjectionWeights", "State", "definition"]

Choices = Mapping[str, Any]
"""For each slot that is not the definition's, its choice: a word, or a number that was measured."""


@dataclass(frozen=True, eq=False)
class ProjectionWeights:
    """The parameters of a module by their role, as `torch.nn.Linear` stores them: (out, in)."""

    q: Tensor
    k: Tensor
    v: Tensor
    heads: int
    kv_heads: int
    out: Tensor | None = None
    bias_q: Tensor | None = None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None
    bias_out: Tensor | None = None
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)
    """What designs bring along: norms of queries and keys, sinks, a bias by distance, a soft-cap."""


@dataclass(frozen=True, eq=False)
class Case:
    """The input of one call, in the definition's own layout."""

    q: Tensor | None = None
    """(batch, heads, queries, d_key); k and v likewise. For functions."""
    k: Tensor | None = None
    v: Tensor | None = None
    x: Tensor | None = None
    """(batch, queries, d_model). For modules, with context and their weights."""
    context: Tensor | None = None
    """What keys are made of, if not x: (batch, keys, d_model)."""
    values: Tensor | None = None
    """What values are made of, if not the context: (batch, keys, d_model)."""
    weights: ProjectionWeights | None = None
    may: Tensor | None = None
    """(batch or 1, 1, queries, keys), True = may attend."""
    bias: Tensor | None = None
    """Added to the scaled scores."""
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class State:
    """Everything computed so far."""

    case: Case
    x: Tensor | None = None
    context: Tensor | None = None
    values: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    may: Tensor | None = None
    scores: Tensor | None = None
    scaled: Tensor | None = None
    biased: Tensor | None = None
    masked: Tensor | None = None
    weights: Tensor | None = None
    output: Tensor | None = None
    heads: Tensor | None = None
    projected: Tensor | None = None
    scaling: float = 1.0
    """What the scores were multiplied by."""
    last: Tensor | None = None
    """What the call returns."""

    def plus(self, **found: Any) -> State:
        """The same with more computed. Thousands are made: `dataclasses.replace` would take longer than the tensors."""
        made = object.__new__(State)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(found)
        return made


NAMES = ("q", "k", "v", "scores", "scaled", "biased", "masked", "weights", "output", "heads", "projected")
"""The steps in their order, as `regard.steps` names them."""


class Kitchen:
    """Computes recipes on one case; what they share is computed once."""

    def __init__(self, case: Case) -> None:
        start = State(case, x=case.x, context=case.context, values=case.values, q=case.q, k=case.k, v=case.v)
        self._kept: dict[tuple[Any, ...], State | None] = {(): start}

    def state(self, choices: Choices) -> State | None:
        """Every step of a recipe; None where its shapes do not fit."""
        return self._state(tuple(choices.get(slot, first) for slot, first in FIRST.items()))

    def _state(self, chosen: tuple[Any, ...]) -> State | None:
        if chosen not in self._kept:
            before = self._state(chosen[:-1])
            try:
                self._kept[chosen] = before and STEPS[len(chosen) - 1](before, chosen[-1])
            except (RuntimeError, IndexError, ValueError, KeyError, AssertionError):
                self._kept[chosen] = None
        return self._kept[chosen]

    def fresh(self, choices: Choices, slot: str) -> State | None:
        """Every step of a recipe, nothing kept from a slot on: for numbers that are only tried, or have gradients."""
        chosen = tuple(choices.get(name, first) for name, first in FIRST.items())
        at = list(FIRST).index(slot)
        state = self._state(chosen[:at])
        try:
            for step, choice in zip(STEPS[at:], chosen[at:], strict=True):
                state = state and step(state, choice)
        except (RuntimeError, IndexError, ValueError, KeyError, AssertionError):
            return None
        return state


def definition(case: Case) -> State:
    """What the definition computes."""
    state = Kitchen(case).state({})
    assert state is not None
    return state


# Each slot below: a function of the state and the choice. ---------------------------------------------------------


def _sources(state: State, choice: str) -> State:
    """Which sequence queries, keys and values are made of."""
    x, context = state.x, state.context if state.context is not None else state.x
    values = state.values if state.values is not None else context
    if choice == "given":
        return state.plus(context=context, values=values)
    if state.context is None:  # of one sequence nothing can be taken from the wrong one
        return state.plus(context=context, values=values)
    read = {
        "k-x": (x, x, values),
        "v-x": (x, context, x),
        "kv-x": (x, x, x),
        "q-context": (context, context, values),
        "swapped": (context, x, x),
    }
    x, context, values = read[choice]
    return state.plus(x=x, context=context, values=values)


def _linear(state: State, choice: str) -> State:
    """q, k and v from x: by which weights, how, with or without biases."""
    if state.x is None:
        if choice != "qkv":
            raise ValueError("nothing is projected")
        return state
    weights = state.case.weights
    assert weights is not None
    kinds, _, how = choice.partition(" ")
    made = []
    for source, wanted, kind in zip((state.x, state.context, state.values), "qkv", kinds, strict=True):
        assert source is not None
        if kind == "-":
            made.append(source)
            continue
        matrix = getattr(weights, kind.lower())
        bias = None if how == "no-bias" else getattr(weights, f"bias_{kind.lower()}")
        if how == "no-bias" and getattr(weights, f"bias_{wanted}") is None:
            raise ValueError("no bias")
        matrix = matrix.t() if kind.isupper() else matrix
        made.append(torch.nn.functional.linear(source, matrix, bias))
    q, k, v = made
    return state.plus(q=q, k=k, v=v)


def _split(state: State, choice: str) -> State:
    """(batch, tokens, heads * width) to (batch, heads, tokens, width)."""
    if state.x is None:
        if choice != "heads":
            raise ValueError("nothing is split")
        return state
    weights = state.case.weights
    assert weights is not None
    made = []
    for tensor, heads in ((state.q, weights.heads), (state.k, weights.kv_heads), (state.v, weights.kv_heads)):
        assert tensor is not None
        batch, tokens, width = tensor.shape
        if width % heads:
            raise ValueError("heads do not divide the width")
        if heads == 1 and choice != "heads":
            raise ValueError("one head")
        if choice == "heads":
            made.append(tensor.reshape(batch, tokens, heads, -1).transpose(1, 2))
        elif choice == "view":
            made.append(tensor.reshape(batch, heads, tokens, -1))
        elif choice == "channels":  # heads stand beside one another in each channel
            made.append(tensor.reshape(batch, tokens, -1, heads).permute(0, 3, 1, 2))
        elif choice == "tokens":  # heads attend to one another: they take the place of the tokens
            made.append(tensor.reshape(batch, tokens, heads, -1))
        else:  # columns of a view with tokens last
            made.append(tensor.transpose(1, 2).reshape(batch, heads, tokens, -1))
    q, k, v = made
    return state.plus(q=q, k=k, v=v)


def _rounds(state: State, choice: str) -> State:
    """Norms of queries and keys, and positions turned into them."""
    q, k, v = state.q, state.k, state.v
    assert q is not None
    assert k is not None
    assert v is not None
    extra = {**state.case.extra, **(state.case.weights.extra if state.case.weights else {})}
    for part in choice.split("+"):
        if part == "plain":
            continue
        if part == "l2":
            q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
        elif part in ("rms", "layer"):
            q, k = (_normed(each, part, extra, name) for each, name in ((q, "q"), (k, "k")))
        else:
            kind, _, pairs = part.partition("-")
            for letter in {"q": "q", "v": "qkv"}.get(kind, "qk"):
                tensor = {"q": q, "k": k, "v": v}[letter]
                if kind == "given":
                    tensor = _turned_by(tensor, extra["cos"], extra["sin"])
                else:
                    tensor = Rotary(tensor.shape[-1], interleaved=pairs == "pairs")(tensor)
                q, k, v = (tensor if name == letter else each for name, each in (("q", q), ("k", k), ("v", v)))
    return state.plus(q=q, k=k, v=v)


def _turned_by(tensor: Tensor, cos: Any, sin: Any) -> Tensor:
    half = tensor.shape[-1] // 2
    turned: Tensor = tensor * cos + torch.cat((-tensor[..., half:], tensor[..., :half]), -1) * sin
    return turned


def _normed(tensor: Tensor, kind: str, extra: Mapping[str, Any], name: str) -> Tensor:
    gain, shift = extra.get(f"{name}_gain"), extra.get(f"{name}_shift")
    eps = float(extra.get(f"{name}_eps", 0.0))
    if kind == "layer":
        return torch.nn.functional.layer_norm(tensor, tensor.shape[-1:], gain, shift, eps)
    normed = tensor * (tensor.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return normed if gain is None else normed * gain


def _roles(state: State, choice: str) -> State:
    """What is taken for queries, keys and values."""
    read = {"q": state.q, "k": state.k, "v": state.v}
    q, k, v = (read[letter] for letter in choice)
    return state.plus(q=q, k=k, v=v)


def _groups(state: State, choice: str) -> State:
    """Key and value heads that each serve several query heads, and batches that are read as one."""
    q, k, v = state.q, state.k, state.v
    assert q is not None
    assert k is not None
    assert v is not None
    few, many = k.shape[-3], q.shape[-3]
    if choice == "one-sequence":
        q, k, v = (each.transpose(0, 1).reshape(1, each.shape[1], -1, each.shape[-1]) for each in (q, k, v))
        return state.plus(q=q, k=k, v=v)
    if choice in ("first-head", "last-head"):
        at = 0 if choice == "first-head" else -1
        q, k, v = (each[:, at, None].expand_as(each) for each in (q, k, v))
        return state.plus(q=q, k=k, v=v)
    if few == many and choice == "beside":
        return state
    if few == many and choice == "tiled":
        raise ValueError("no groups")
    if many % few:
        raise ValueError("heads do not fit")
    if choice == "beside":
        k, v = (each.repeat_interleave(many // few, -3) for each in (k, v))
    elif choice == "tiled":
        k, v = (each.repeat(1, many // few, 1, 1) for each in (k, v))
    else:
        k, v = (each[:, :1].expand(-1, many, -1, -1) for each in (k, v))
    return state.plus(k=k, v=v)


def _seen(state: State, choice: str) -> State:
    """Who may attend, as it is understood."""
    may = state.case.may
    if may is None:
        if choice != "given":
            raise ValueError("no mask")
        return state.plus(may=None)
    q, k = state.q, state.k
    assert q is not None
    assert k is not None
    samples, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    whole = may.expand(may.shape[0], may.shape[1], queries, keys)
    if choice == "given":
        understood: Tensor | None = may
    elif choice == "none":
        understood = None
    elif choice == "inverted":
        understood = ~may
    elif choice == "transposed":
        understood = whole.transpose(-2, -1)
    elif choice == "inverted-transposed":
        understood = ~whole.transpose(-2, -1)
    elif choice == "strict":
        understood = whole & ~torch.eye(queries, keys, dtype=torch.bool)
    elif choice == "ahead":
        understood = whole | torch.ones(queries, keys, dtype=torch.bool).triu(1).tril(1)
    elif choice == "first-sample":
        understood = may[:1]
    elif choice in ("tiled", "interleaved"):
        each = torch.arange(samples)[:, None], torch.arange(heads)[None]
        at = (each[0] * heads + each[1]) % samples if choice == "tiled" else (each[1] * samples + each[0]) // heads
        understood = whole[:, 0][at] if len(may) > 1 else None
        if understood is None:
            raise ValueError("one sample")
    elif choice in ("first-head", "last-head"):
        understood = torch.ones(len(may), heads, queries, keys, dtype=torch.bool)
        understood[:, 0 if choice == "first-head" else heads - 1] = whole[:, 0]
    elif choice == "first-aligned":
        understood = torch.ones(queries, keys, dtype=torch.bool).tril()[None, None]
    else:
        raise ValueError(choice)
    return state.plus(may=understood)


def _scores(state: State, choice: str) -> State:
    q, k, v, may = state.q, state.k, state.v, state.may
    assert q is not None
    assert k is not None
    assert v is not None
    if choice == "zeroed":  # padded keys and values are zero, and are attended to all the same
        if may is None or may.shape[-2] != 1:
            raise ValueError("no padding")
        keep = may.transpose(-2, -1).to(k.dtype)
        return state.plus(k=k * keep, v=v * keep, scores=q @ (k * keep).transpose(-2, -1), may=None)
    scores = {
        "qk": lambda: q @ k.transpose(-2, -1),
        "kq": lambda: k @ q.transpose(-2, -1),
        "reshaped": lambda: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
        "negated": lambda: -(q @ k.transpose(-2, -1)),
    }[choice]()
    return state.plus(scores=scores)


def _scale(state: State, choice: str | float | Tensor) -> State:
    """What the scores are multiplied by."""
    q, k, v, scores = state.q, state.k, state.v, state.scores
    assert q is not None
    assert k is not None
    assert v is not None
    assert scores is not None
    width, heads = q.shape[-1], q.shape[-3]
    if state.case.weights is not None:
        heads = state.case.weights.heads
    batch = state.case.q if state.case.q is not None else state.x
    assert batch is not None
    if choice == "floor":
        return state.plus(scaled=torch.floor(scores / width**0.5), scaling=width**-0.5)
    numbers = {
        "key": width**-0.5,
        "none": 1.0,
        "d": 1 / width,
        "d-model": (heads * width) ** -0.5,
        "d-value": v.shape[-1] ** -0.5,
        "keys": k.shape[-2] ** -0.5,
        "queries": q.shape[-2] ** -0.5,
        "heads": heads**-0.5,
        "batch": len(batch) ** -0.5,
        "multiplied": width**0.5,
        "fourth-root": width**-0.25,
        "half": (width / 2) ** -0.5,
        "d-times-model": 1 / (heads * width),
        "float32": 1 / float(torch.tensor(width**0.5)),
        "float32-inverse": float(torch.tensor(width**-0.5)),
    }
    number = numbers[choice] if isinstance(choice, str) else choice
    cap = state.case.extra.get("softcap")
    scaled = scores * number
    if cap is not None:
        scaled = float(cap) * torch.tanh(scaled / float(cap))
    return state.plus(scaled=scaled, scaling=float(number) if not isinstance(number, Tensor) else 1.0)


def _bias(state: State, choice: str | tuple[str, Any]) -> State:
    scaled, scores, bias = state.scaled, state.scores, state.case.bias
    assert scaled is not None
    assert scores is not None
    if isinstance(choice, tuple):  # numbers that were measured
        kind, number = choice
        capped = kind == "softcap"
        return state.plus(biased=number * torch.tanh(scaled / number) if capped else scaled + number)
    if choice == "alibi":
        heads = scaled.shape[1]
        dense = ALiBi(heads).dense(scaled.shape[-2], scaled.shape[-1], device=scaled.device).to(scaled.dtype)
        return state.plus(biased=scaled + dense)
    if choice == "learned":
        extra = state.case.weights.extra["bias"] if state.case.weights else None
        assert isinstance(extra, Tensor)
        return state.plus(biased=scaled + extra[..., : scaled.shape[-2], : scaled.shape[-1]])
    if bias is None:
        if choice != "added":
            raise ValueError("no bias")
        return state.plus(biased=scaled)
    if choice == "before-scale":
        return state.plus(biased=(scores + bias) * state.scaling)
    return state.plus(biased=scaled + bias if choice == "added" else scaled)


def _fill(state: State, choice: str | float | tuple[str, float]) -> State:
    """What blocked scores become."""
    biased, may = state.biased, state.may
    assert biased is not None
    if may is None:
        if choice != "inf":
            raise ValueError("no mask")
        return state.plus(masked=biased)
    if choice == "inf":
        return state.plus(masked=biased.masked_fill(~may, -torch.inf))
    if choice == "after":
        return state.plus(masked=biased)
    if choice == "added-may":
        return state.plus(masked=biased + may.to(biased.dtype))
    if choice == "added-blocked":
        return state.plus(masked=biased + (~may).to(biased.dtype))
    if isinstance(choice, tuple):  # a number that is added, rather than put in their place
        return state.plus(masked=biased + choice[1] * (~may).to(biased.dtype))
    return state.plus(masked=biased.masked_fill(~may, float(choice)))


def _softmax(state: State, choice: str) -> State:
    masked = state.masked
    assert masked is not None
    empty = (masked == -torch.inf).all(-1, keepdim=True)
    kept = masked.masked_fill(empty, 0.0)
    extra = {**state.case.extra, **(state.case.weights.extra if state.case.weights else {})}
    if choice == "keys":
        weights = kept.softmax(-1)
    elif choice == "queries":
        weights = masked.softmax(-2).nan_to_num(0.0)
    elif choice == "heads":
        if masked.shape[1] == 1:
            raise ValueError("one head")
        weights = masked.softmax(1).nan_to_num(0.0)
    elif choice == "batch":
        weights = masked.softmax(0).nan_to_num(0.0)
    elif choice == "all":
        weights = masked.flatten(-2).softmax(-1).reshape(masked.shape)
    elif choice == "everything":
        weights = masked.flatten().softmax(-1).reshape(masked.shape)
    elif choice == "missing":
        weights = masked.masked_fill(masked == -torch.inf, 0.0)
    elif choice == "twice":
        weights = kept.softmax(-1).softmax(-1)
    elif choice == "log":
        weights = masked.log_softmax(-1)
    elif choice == "exp":
        weights = masked.exp()
    elif choice == "exp-max":
        weights = (kept - kept.amax(-1, keepdim=True)).exp()
    elif choice == "l1":
        weights = masked / masked.sum(-1, keepdim=True)
    elif choice == "sigmoid":
        weights = masked.sigmoid()
    elif choice == "plus-one":
        weights = torch.cat((masked, torch.zeros_like(masked[..., :1])), -1).softmax(-1)[..., :-1]
    elif choice == "sinks":
        sinks = extra["sinks"]
        assert isinstance(sinks, Tensor)
        sink = sinks.reshape(-1)[None, :, None, None].expand(*masked.shape[:-1], 1)
        weights = torch.cat((masked, sink), -1).softmax(-1)[..., :-1]
    elif choice == "float32":
        weights = kept.float().softmax(-1).to(kept.dtype)
    else:
        raise ValueError(choice)
    if choice not in ("queries", "heads", "batch", "missing", "exp", "log"):
        weights = weights.masked_fill(empty, 0.0)
    return state.plus(weights=weights)


def _after(state: State, choice: str) -> State:
    """What happens to the weights between the softmax and the values."""
    weights, may, bias = state.weights, state.may, state.case.bias
    assert weights is not None
    if choice == "nothing":
        return state
    if choice == "mask":
        if may is None:
            raise ValueError("no mask")
        return state.plus(weights=weights * may)
    if choice == "bias":
        if bias is None:
            raise ValueError("no bias")
        return state.plus(weights=weights + bias)
    q = state.q
    assert q is not None
    return state.plus(weights=weights * q.shape[-1] ** -0.5)


def _product(state: State, choice: str) -> State:
    weights, v, may, q = state.weights, state.v, state.may, state.q
    assert weights is not None
    assert v is not None
    assert q is not None
    if choice == "v":
        output = v
    elif choice == "transposed":
        output = weights.transpose(-2, -1) @ v
    elif choice == "mean":
        even = torch.ones(*q.shape[:-1], v.shape[-2], dtype=v.dtype)
        even = even if may is None else even * may
        weights = even / even.sum(-1, keepdim=True)
        output = weights @ v
    else:
        output = weights @ v
    batch = state.case.q if state.case.q is not None else state.x
    assert batch is not None
    if len(output) != len(batch):  # read as one sequence
        output = output.reshape(output.shape[1], len(batch), -1, output.shape[-1]).transpose(0, 1)
    return state.plus(weights=weights, output=output, last=output)


def _merge(state: State, choice: str) -> State:
    output = state.output
    assert output is not None
    if state.x is None:
        if choice != "beside":
            raise ValueError("nothing is merged")
        return state
    batch, heads, queries, _width = output.shape
    if heads == 1 and choice != "beside":
        raise ValueError("one head")
    made = {
        "beside": lambda: output.transpose(1, 2).reshape(batch, queries, -1),
        "no-transpose": lambda: output.reshape(batch, queries, -1),
        "tokens": lambda: output.reshape(batch, heads, -1),
        "channels": lambda: output.permute(0, 2, 3, 1).reshape(batch, queries, -1),
        "heads-first": lambda: output.transpose(0, 1).reshape(batch, queries, -1),
        "sum": lambda: output.sum(1),
        "mean": lambda: output.mean(1),
        "sum-tiled": lambda: output.sum(1).repeat(1, 1, heads),
        "mean-tiled": lambda: output.mean(1).repeat(1, 1, heads),
        "first": lambda: output[:, :1].expand_as(output).transpose(1, 2).reshape(batch, queries, -1),
        "last": lambda: output[:, -1:].expand_as(output).transpose(1, 2).reshape(batch, queries, -1),
    }[choice]()
    return state.plus(heads=made, last=made)


def _out(state: State, choice: str) -> State:
    if state.heads is None:
        if choice != "linear":
            raise ValueError("nothing is projected")
        return state
    weights = state.case.weights
    assert weights is not None
    if weights.out is None:
        if choice != "linear":
            raise ValueError("no output projection")
        return state
    if choice == "none":
        return state.plus(projected=state.heads)
    linear = torch.nn.functional.linear
    matrix = weights.out.t() if choice == "untransposed" else weights.out
    bias = None if choice == "no-bias" else weights.bias_out
    if choice == "no-bias" and weights.bias_out is None:
        raise ValueError("no bias")
    projected = linear(state.heads, matrix, bias)
    if choice == "twice":
        projected = linear(projected, matrix, bias)
    elif choice == "and-input":
        assert state.x is not None
        projected = projected + state.x
    return state.plus(projected=projected, last=projected)


SLOTS: dict[str, Callable[[State, Any], State]] = {
    "sources": _sources,
    "linear": _linear,
    "split": _split,
    "rounds": _rounds,
    "roles": _roles,
    "groups": _groups,
    "seen": _seen,
    "scores": _scores,
    "scale": _scale,
    "bias": _bias,
    "fill": _fill,
    "softmax": _softmax,
    "after": _after,
    "product": _product,
    "merge": _merge,
    "out": _out,
}
STEPS = list(SLOTS.values())
FIRST: dict[str, str] = {
    "sources": "given",
    "linear": "qkv",
    "split": "heads",
    "rounds": "plain",
    "roles": "qkv",
    "groups": "beside",
    "seen": "given",
    "scores": "qk",
    "scale": "key",
    "bias": "added",
    "fill": "inf",
    "softmax": "keys",
    "after": "nothing",
    "product": "weights",
    "merge": "beside",
    "out": "linear",
}
"""The definition's choice for each slot."""
