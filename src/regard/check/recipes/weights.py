"""What recipes choose from the masked scores to the weighted sum of the values."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.recipes.state import State

__all__ = ["after", "product", "softmax"]


def softmax(state: State, choice: str) -> State:
    """Weights of the masked scores."""
    masked = state.masked
    empty = (masked == -torch.inf).all(-1, keepdim=True)
    kept = masked.masked_fill(empty, 0.0)
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
        weights = _with_sink(masked, torch.zeros_like(masked[..., :1]))
    elif choice == "sinks":
        sinks = state.case.extras["sinks"]
        assert isinstance(sinks, Tensor)
        weights = _with_sink(masked, sinks.reshape(-1)[None, :, None, None].expand(*masked.shape[:-1], 1))
    elif choice == "float32":
        weights = kept.float().softmax(-1).to(kept.dtype)
    else:
        raise ValueError(choice)
    if choice not in ("queries", "heads", "batch", "missing", "exp", "log"):
        weights = weights.masked_fill(empty, 0.0)
    return state.plus(weights=weights)


def _with_sink(masked: Tensor, sink: Tensor) -> Tensor:
    """The softmax with a further score that carries no value."""
    return torch.cat((masked, sink), -1).softmax(-1)[..., :-1]


def after(state: State, choice: str) -> State:
    """What happens to the weights between the softmax and the values."""
    weights, may, bias = state.weights, state.may, state.case.bias
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
    return state.plus(weights=weights * state.q.shape[-1] ** -0.5)


def product(state: State, choice: str) -> State:
    """What is read with the weights."""
    weights, v, may, q = state.weights, state.v, state.may, state.q
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
    batch = state.case.batch_size
    if len(output) != batch:  # read as one sequence
        output = output.reshape(output.shape[1], batch, -1, output.shape[-1]).transpose(0, 1)
    return state.plus(weights=weights, output=output, last=output)
