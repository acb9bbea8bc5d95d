"""The calls that are found for a target, and a target."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.check.target import Invocation, invocations


def first(target: Any, inputs: Any = None, **args: Any) -> Invocation:
    """The likeliest call."""
    return next(invocations(target, args=args, inputs=inputs))


def axes(call: Invocation) -> list[tuple[str, int | None, tuple[int, ...], int | None]]:
    """Role, batch, tokens and heads of each stream."""
    return [(each.role, each.batch_axis, each.token_axes, each.head_axis) for each in call.streams]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class Packed(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return attention(q, k, v).transpose(1, 2).flatten(2)
