"""What recipes choose between the projections and the softmax: the mask, the scores, their scale, a bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import ALiBi
from regard.check.recipes.state import State

__all__ = ["bias", "fill", "scale", "scores", "seen"]


def seen(state: State, choice: str) -> State:
    """Who may attend, as it is understood."""
    may = state.case.may
    if may is None:
        if choice != "given":
            raise ValueError("no mask")
        return state
    q, k = state.q, state.k
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
    elif choice == "strict":
        understood = whole & ~torch.eye(queries, keys, dtype=torch.bool)
    elif choice == "ahead":
        understood = whole | torch.ones(queries, keys, dtype=torch.bool).triu(1).tril(1)
    elif choice == "first-sample":
        understood = may[:1]
    elif choice in ("tiled", "interleaved"):
        if len(may) == 1:
            raise ValueError("one sample")
        sample, head = torch.arange(samples)[:, None], torch.arange(heads)[None]
        at = (sample * heads + head) % samples if choice == "tiled" else (head * samples + sample) // heads
        understood = whole[:, 0][at]
    elif choice in ("first-head", "last-head"):
        understood = torch.ones(len(may), heads, queries, keys, dtype=torch.bool)
        understood[:, 0 if choice == "first-head" else heads - 1] = whole[:, 0]
    elif choice == "first-aligned":
        understood = torch.ones(queries, keys, dtype=torch.bool).tril()[None, None]
    else:
        raise ValueError(choice)
    return state.plus(may=understood)


def scores(state: State, choice: str) -> State:
    """Products of queries and keys."""
    q, k, v, may = state.q, state.k, state.v, state.may
    if choice == "zeroed":  # padded keys and values are zero, and are attended to all the same
        if may is None or may.shape[-2] != 1:
            raise ValueError("no padding")
        keep = may.transpose(-2, -1).to(k.dtype)
        return state.plus(k=k * keep, v=v * keep, scores=q @ (k * keep).transpose(-2, -1), may=None)
    products = {
        "qk": lambda: q @ k.transpose(-2, -1),
        "kq": lambda: k @ q.transpose(-2, -1),
        "reshaped": lambda: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
        "negated": lambda: -(q @ k.transpose(-2, -1)),
    }[choice]()
    return state.plus(scores=products)


def scale(state: State, choice: str | float | Tensor) -> State:
    """What the scores are multiplied by."""
    q, k, v = state.q, state.k, state.v
    width, heads = q.shape[-1], q.shape[-3]
    if state.case.weights is not None:
        heads = state.case.weights.heads
    if choice == "floor":
        return state.plus(scaled=torch.floor(state.scores / width**0.5), scaling=width**-0.5)
    numbers = {
        "key": width**-0.5,
        "none": 1.0,
        "d": 1 / width,
        "d-model": (heads * width) ** -0.5,
        "d-value": v.shape[-1] ** -0.5,
        "keys": k.shape[-2] ** -0.5,
        "queries": q.shape[-2] ** -0.5,
        "heads": heads**-0.5,
        "batch": state.case.batch_size**-0.5,
        "multiplied": width**0.5,
        "fourth-root": width**-0.25,
        "half": (width / 2) ** -0.5,
        "float32": 1 / float(torch.tensor(width**0.5)),
        "float32-inverse": float(torch.tensor(width**-0.5)),
    }
    number = numbers[choice] if isinstance(choice, str) else choice
    scaled = state.scores * number
    cap = state.case.extra.get("softcap")
    if cap is not None:
        scaled = float(cap) * torch.tanh(scaled / float(cap))
    return state.plus(scaled=scaled, scaling=float(number) if not isinstance(number, Tensor) else 1.0)


def bias(state: State, choice: str | tuple[str, Any]) -> State:
    """What is added to the scaled scores: the call's bias, alone or beside one by distance or measured numbers."""
    scaled, given = state.scaled, state.case.bias
    own = _own_bias(state, choice)
    if own is not None:
        return state.plus(biased=own if given is None else own + given)
    if given is None:
        if choice != "added":
            raise ValueError("no bias")
        return state.plus(biased=scaled)
    if choice == "before-scale":
        return state.plus(biased=(state.scores + given) * state.scaling)
    return state.plus(biased=scaled + given if choice == "added" else scaled)


def _own_bias(state: State, choice: str | tuple[str, Any]) -> Tensor | None:
    """The scaled scores with what code adds that no call hands over; None where it adds nothing."""
    scaled = state.scaled
    if isinstance(choice, tuple):
        kind, number = choice
        capped: Tensor = number * torch.tanh(scaled / number) if kind == "softcap" else scaled + number
        return capped
    if choice == "alibi":
        heads = scaled.shape[1]
        return scaled + ALiBi(heads).dense(scaled.shape[-2], scaled.shape[-1], device=scaled.device).to(scaled.dtype)
    if choice == "learned":
        learned = state.case.weights.extra["bias"] if state.case.weights else None
        assert isinstance(learned, Tensor)
        return scaled + learned[..., : scaled.shape[-2], : scaled.shape[-1]]
    return None


def fill(state: State, choice: str | float | tuple[str, float]) -> State:
    """What blocked scores become."""
    biased, may = state.biased, state.may
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
