"""Functions that take all that they have learned as one argument, which another function of the file makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def init_params(dim: int, max_len: int = 128, seed: int = 0) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "pos": torch.randn(max_len, dim, generator=drawn) * 0.1,
        **{name: torch.randn(dim, dim, generator=drawn) * dim**-0.5 for name in ("wq", "wk", "wv", "wo")},
    }


def attended(params: dict[str, Tensor], x: Tensor, positions: Tensor, heads: int) -> Tensor:
    h = x + positions
    q, k, v = ((h @ params[name]).unflatten(-1, (heads, -1)) for name in ("wq", "wk", "wv"))
    weights = (torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return x + torch.einsum("bhts,bshd->bthd", weights, v).flatten(-2) @ params["wo"]


def block(params, x, n_heads=4):  # type: ignore[no-untyped-def]
    """x: (batch, time, dim)."""
    return attended(params, x, params["pos"][: x.shape[1]], n_heads)


def block_by_samples(params, x, n_heads=4):  # type: ignore[no-untyped-def]
    """x: (batch, time, dim)."""
    return attended(params, x, params["pos"][: x.shape[0], None], n_heads)


def init_heads(dim: int = 32, heads: int = 4) -> dict[str, Tensor]:
    drawn, width = torch.Generator().manual_seed(1), dim // heads
    stacks = {name: torch.randn(heads, dim, width, generator=drawn) * dim**-0.5 for name in ("query", "key", "value")}
    return {**stacks, "out": torch.randn(heads, width, dim, generator=drawn) * dim**-0.5}


def head(p: dict[str, Tensor], x: Tensor, scale: Callable[[int], float]) -> Tensor:
    q, k, v = (x @ p[name] for name in ("query", "key", "value"))
    return (q @ k.mT * scale(q.shape[-1])).softmax(-1) @ v @ p["out"]


def by_head(params, x):  # type: ignore[no-untyped-def]
    """x: (batch, time, dim)."""
    names = {"query": params["query"], "key": params["key"], "value": params["value"], "out": params["out"]}
    return vmap(lambda p, one: head(p, one, lambda width: width**-0.5), in_dims=(0, None))(names, x).sum(0)


def by_head_unscaled(params, x):  # type: ignore[no-untyped-def]
    """x: (batch, time, dim)."""
    names = {"query": params["query"], "key": params["key"], "value": params["value"], "out": params["out"]}
    return vmap(lambda p, one: head(p, one, lambda _: 1.0), in_dims=(0, None))(names, x).sum(0)


@pytest.mark.parametrize("right", [block, by_head])
def test_parameters_that_the_file_makes_are_handed_over(right: Any) -> None:
    assert check(right).verdict in ("right", "right in another layout or convention")


@pytest.mark.parametrize(("wrong", "cause"), [(block_by_samples, "samples-alike"), (by_head_unscaled, "scale")])
def test_what_is_wrong_is_seen_with_them(wrong: Any, cause: str) -> None:
    assert cause in [each.id for each in check(wrong).causes]
