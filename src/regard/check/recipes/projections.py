"""What recipes choose before the scores: sequences, weights, heads, norms and positions of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import Rotary
from regard.check.recipes.state import State

__all__ = ["groups", "linear", "roles", "rounds", "sources", "split"]


def sources(state: State, choice: str) -> State:
    """Which sequence queries, keys and values are made of."""
    if state.x is None and choice != "given":
        raise ValueError("nothing is made of a sequence")
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


def linear(state: State, choice: str) -> State:
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


def split(state: State, choice: str) -> State:
    """(batch, tokens, heads * width) to (batch, heads, tokens, width)."""
    if state.x is None:
        if choice != "heads":
            raise ValueError("nothing is split")
        return state
    weights = state.case.weights
    assert weights is not None
    made = []
    for tensor, heads in ((state.q, weights.heads), (state.k, weights.kv_heads), (state.v, weights.kv_heads)):
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


def rounds(state: State, choice: str) -> State:
    """Norms of queries and keys, and positions turned into them."""
    q, k = state.q, state.k
    extras = state.case.extras
    for part in choice.split("+"):
        if part == "plain":
            continue
        if part == "l2":
            q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
        elif part in ("rms", "layer"):
            q, k = (_normed(each, part, extras, name) for each, name in ((q, "q"), (k, "k")))
        elif part == "given-halves":
            q, k = (_rotated_by(each, extras["cos"], extras["sin"]) for each in (q, k))
        else:
            q, k = (Rotary(each.shape[-1], interleaved=part == "rotary-pairs")(each) for each in (q, k))
    return state.plus(q=q, k=k)


def _rotated_by(tensor: Tensor, cos: Any, sin: Any) -> Tensor:
    half = tensor.shape[-1] // 2
    rotated: Tensor = tensor * cos + torch.cat((-tensor[..., half:], tensor[..., :half]), -1) * sin
    return rotated


def _normed(tensor: Tensor, kind: str, extras: Mapping[str, Any], name: str) -> Tensor:
    gain, shift = extras.get(f"{name}_gain"), extras.get(f"{name}_shift")
    eps = float(extras.get(f"{name}_eps", 0.0))
    if kind == "layer":
        return torch.nn.functional.layer_norm(tensor, tensor.shape[-1:], gain, shift, eps)
    normed = tensor * (tensor.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return normed if gain is None else normed * gain


def roles(state: State, choice: str) -> State:
    """What is taken for queries, keys and values."""
    read = {"q": state.q, "k": state.k, "v": state.v}
    q, k, v = (read[letter] for letter in choice)
    return state.plus(q=q, k=k, v=v)


def groups(state: State, choice: str) -> State:
    """Key and value heads that each serve several query heads, and batches that are read as one."""
    q, k, v = state.q, state.k, state.v
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
