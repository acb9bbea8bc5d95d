"""What recipes choose after the weighted sums: how heads are joined, and the output projection."""

from __future__ import annotations

import torch

from regard.check.recipes.state import State

__all__ = ["merge", "out"]


def merge(state: State, choice: str) -> State:
    """(batch, heads, tokens, width) to (batch, tokens, heads * width)."""
    output = state.output
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


def out(state: State, choice: str) -> State:
    """The output projection of the joined heads."""
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
    matrix = weights.out.t() if choice == "untransposed" else weights.out
    projected = torch.nn.functional.linear(state.heads, matrix, weights.bias_out)
    if choice == "twice":
        projected = torch.nn.functional.linear(projected, matrix, weights.bias_out)
    elif choice == "and-input":
        assert state.x is not None
        projected = projected + state.x
    return state.plus(projected=projected, last=projected)
