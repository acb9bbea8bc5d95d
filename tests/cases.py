"""Any attention that fits together: as plain facts, as tensors, and how far rounding alone may move its result.

The facts read well when a test fails, and a strategy that draws them runs none of the code under test.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from masks import MaskSpec, build
from regard.attention.bias import PositionBias
from regard.attention.positions import ALiBi, T5Relative

KERNELS = {"fused", "dense", "bands", "packed", "tiles", "chunked"}

HALF = (torch.bfloat16, torch.float16)


@dataclass
class Sizes:
    """From how many tokens on the kernels for long sequences are used, and in what steps they work."""

    dense: int = 2**20
    tile_rows: int = 256
    tile_columns: int = 64
    together: int = 8192
    pairs: int = 2**18
    scores: int = 2**20

    @contextmanager
    def apply(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            # By its module's name: regard.attention.plan is the function.
            patch.setattr(import_module("regard.attention.plan"), "MAX_DENSE_PAIRS", self.dense)
            schedule = import_module("regard.attention.kernels.schedule")
            patch.setattr(schedule, "TILE_ROWS", self.tile_rows)
            patch.setattr(schedule, "TILE_COLUMNS", self.tile_columns)
            patch.setattr(schedule, "MAX_PACKED_TOKENS", self.together)
            patch.setattr(schedule, "MAX_BIAS_PAIRS", self.pairs)
            patch.setattr(import_module("regard.attention.kernels.chunked"), "CHUNK_SCORES", self.scores)
            yield


LONG = Sizes()
SHORT = Sizes(dense=0, tile_rows=16, tile_columns=8, together=24, pairs=100, scores=2**9)
"""Every kernel does with a few dozen tokens what it does with thousands: several tiles, several strips of rows."""


@dataclass
class Case:
    lead: list[int]
    heads: tuple[int, int] | None
    """Query heads and key heads; None for (tokens, width)."""
    queries: int
    keys: int
    d_key: int
    d_value: int
    layouts: list[str]
    mask: MaskSpec | None
    bias: tuple[Any, ...] | None
    """("tensor", shape, learned, share of -inf), ("ALiBi",) or ("T5Relative", learned)."""
    scale: float | None
    softcap: float | None
    sinks: str | None
    """None, "fixed" or "learned"."""
    dtype: torch.dtype
    sizes: Sizes
    seed: int

    def make(self) -> Attention:
        """The tensors and the mask of this case."""
        coins = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=coins, dtype=torch.float64).to(self.dtype)

        def tensor(heads: list[int], tokens: int, width: int, layout: str) -> Tensor:
            if layout == "every other":
                return randn(*self.lead, *heads, tokens, 2 * width)[..., ::2]
            if layout == "tokens first" and heads:
                return randn(*self.lead, tokens, *heads, width).transpose(-3, -2)
            return randn(*self.lead, *heads, tokens, width)

        heads, kv_heads = self.heads or (1, 1)
        q_axes, kv_axes = ([heads], [kv_heads]) if self.heads else ([], [])
        options: dict[str, Any] = {}
        if self.bias is not None:
            options["bias"] = self._bias(heads, randn, coins)
        if self.sinks is not None:
            options["sinks"] = randn(heads).requires_grad_(self.sinks == "learned")
        if self.scale is not None:
            options["scale"] = self.scale
        if self.softcap is not None:
            options["softcap"] = self.softcap
        return Attention(
            tensor(q_axes, self.queries, self.d_key, self.layouts[0]).requires_grad_(),
            tensor(kv_axes, self.keys, self.d_key, self.layouts[1]).requires_grad_(),
            tensor(kv_axes, self.keys, self.d_value, self.layouts[2]).requires_grad_(),
            None if self.mask is None else build(self.mask),
            options,
        )

    def _bias(self, heads: int, randn: Any, coins: torch.Generator) -> Tensor | PositionBias:
        match self.bias:
            case ("tensor", shape, learned, holes):
                t = randn(*shape)
                t[torch.rand(shape, generator=coins) < holes] = -torch.inf
                return t.requires_grad_(learned)
            case ("ALiBi",):
                return ALiBi(heads).to(self.dtype)
            case ("T5Relative", learned):
                bias = T5Relative(heads, num_buckets=8, max_distance=20).to(self.dtype)
                with torch.no_grad():
                    bias.weight.copy_(randn(*bias.weight.shape))
                return bias.requires_grad_(learned)
        raise AssertionError(self.bias)


@dataclass
class Attention:
    """What `regard.attend` is called with."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: regard.mask.Mask | None
    options: dict[str, Any]

    @property
    def leaves(self) -> dict[str, Tensor]:
        """What wants a gradient, by name."""
        bias = self.options.get("bias")
        given = {"q": self.q, "k": self.k, "v": self.v, "bias": bias, "sinks": self.options.get("sinks")}
        if isinstance(bias, PositionBias):
            given = {**given, **dict(bias.named_parameters())}
        return {name: t for name, t in given.items() if isinstance(t, Tensor) and t.requires_grad}

    def in_float64(self) -> Attention:
        """The same numbers."""

        def wide(option: Any) -> Any:
            if isinstance(option, Tensor):
                return option.detach().double().requires_grad_(option.requires_grad)
            if isinstance(option, PositionBias):
                if list(option.parameters()):
                    return copy.deepcopy(option).double()
                # What is not learned may be calculated anew in float64; its numbers as rounded are the ones to keep.
                table = option.dense(self.q.shape[-2], self.k.shape[-2]).double()
                return table if self.q.ndim > 2 else table[0]
            return option

        options = {name: wide(option) for name, option in self.options.items()}
        return replace(self, q=wide(self.q), k=wide(self.k), v=wide(self.v), options=options)

    def plan(self) -> regard.Plan:
        return regard.plan(self.q, self.k, self.v, self.mask, **self.options)

    def attend(self) -> Tensor:
        return regard.attend(self.q, self.k, self.v, self.mask, **self.options)

    def steps(self) -> regard.Steps:
        return regard.steps(self.q, self.k, self.v, self.mask, **self.options)

    def gradients(self, output: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
        leaves = self.leaves
        parts = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
        return dict(zip(leaves, parts, strict=True))

    def rounding(self, cotangent: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """How far numbers of this dtype may lie from the definition's: the output, and each gradient by its name.

        Every product and every weight is off by an eps of itself and no more; a weight also by what its exponent is
        off, which is computed in float32 at least. Errors of terms add up in magnitude, so that no cancellation makes
        the bound small.
        """
        exact = self.in_float64()
        eps = torch.finfo(self.q.dtype).eps
        of_scores = min(eps, torch.finfo(torch.float32).eps)
        weights = exact.steps().weights.detach()
        q, k, v = (t.detach().abs().requires_grad_() for t in (exact.q, exact.k, exact.v))
        groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
        keys, values = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))

        scale = self.options.get("scale")
        scores = q @ keys.transpose(-2, -1) * abs(q.shape[-1] ** -0.5 if scale is None else scale)
        bias = exact.options.get("bias")
        if isinstance(bias, PositionBias):
            bias = bias.dense(q.shape[-2], k.shape[-2])
            bias = bias if q.ndim > 2 else bias[0]
        added = torch.zeros_like(scores) if bias is None else bias.expand(scores.shape)
        exponent = scores.detach() + added.detach().abs().nan_to_num(posinf=0.0) + self.options.get("softcap", 0.0)
        sinks = exact.options.get("sinks")
        if sinks is not None:
            exponent = exponent + sinks.detach().abs()[:, None, None]
        mean = (weights * exponent).sum(-1, keepdim=True)
        if sinks is not None:
            mean = mean + sinks.detach().abs()[:, None, None]
        # A log-sum-exp is as large as the largest score and the logarithm of the number of keys.
        moved = weights * (eps + of_scores * (exponent + mean + math.log(max(1, k.shape[-2]))))

        output = moved @ values
        cotangent = cotangent.double().abs()
        each = cotangent @ values.detach().transpose(-2, -1)
        of_each = moved * (each + (weights * each).sum(-1, keepdim=True)) + weights * (moved * each).sum(
            -1, keepdim=True
        )
        leaves = {
            "q": q,
            "k": k,
            "v": v,
            **{name: t for name, t in exact.leaves.items() if name not in ("q", "k", "v")},
        }
        grown = (scores * of_each).sum() + (added.nan_to_num(neginf=0.0) * of_each).sum() + (output * cotangent).sum()
        if sinks is not None:
            sink = (1 - weights.sum(-1, keepdim=True)).clamp(min=0.0)  # rounding alone can take it below
            of_sink = sink * (moved * each).sum(-1, keepdim=True)
            grown = grown + (sinks[:, None, None] * of_sink).sum()
        parts = torch.autograd.grad(grown, list(leaves.values()), materialize_grads=True)
        return output.detach(), dict(zip(leaves, parts, strict=True))


def assert_is_the_definition(attention: Attention) -> regard.Plan:
    """The output and every gradient are the definition's in float64 but for rounding; the plan of what ran."""
    plan = attention.plan()
    output = attention.attend()
    dtype = attention.q.dtype
    cotangent = torch.arange(output.numel()).cos().reshape(output.shape).to(dtype)
    gradients = attention.gradients(output, cotangent)

    exact = attention.in_float64()
    expected = exact.steps().output
    expected_gradients = exact.gradients(expected, cotangent.double())
    of_output, of_gradients = attention.rounding(cotangent)

    for name, ours, definitions, rounding in [
        ("output", output, expected, of_output),
        *((name, gradients[name], expected_gradients[name], of_gradients[name]) for name in gradients),
    ]:
        assert ours.shape == definitions.shape, (plan, name)
        assert ours.dtype == dtype, (plan, name)
        # Twice: the result is rounded as well. Below the smallest normal number there are fewer digits.
        within = 2 * rounding + torch.finfo(dtype).tiny
        error = (ours.double() - definitions).abs()
        times = (error / within).max() if error.numel() else 0.0
        assert bool((error <= within).all()), f"{plan}: {name} is off by {times:.3g} times what rounding explains"
    return plan


class OperatorTrace(TorchDispatchMode):
    """What ran: the names of PyTorch's operators, what the fused kernel was given, and the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.fused: list[dict[str, Any]] = []
        self.largest = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        name = operator.name().split(".")[0]
        self.operators.add(name)
        if name == "aten::_scaled_dot_product_flash_attention_for_cpu":
            names = [argument.name for argument in operator._schema.arguments]
            self.fused.append({**dict(zip(names, args, strict=False)), **kwargs})
        for t in tree_leaves(result):
            if isinstance(t, Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return result


def peak_bytes(compute: Callable[[], object]) -> int:
    """How much more memory PyTorch holds at once while this runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        compute()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


# What hypothesis draws.


@st.composite
def cases(draw: st.DrawFn, *, depth: int = 4) -> Case:
    plain = draw(st.booleans())  # the shapes and layouts of the early exit of attend, with no option but the mask
    nothing = draw(st.sampled_from([[]] * 9 + [[0]]))
    tokens = (
        st.sampled_from([*nothing, 1, 1, *range(1, 13)]) | st.integers(13, 40) | st.sampled_from([64, 65, 100, 150])
    )
    width = st.integers(1, 9)
    queries, keys = draw(st.just(1) | tokens if plain else tokens), draw(tokens)
    if draw(st.booleans()) and not (plain and queries == 1):
        queries = keys
    small = max(queries, keys) <= 40
    batch = st.sampled_from([*nothing, 1, 2, 3] if small else [1, 2])
    lead = draw(st.lists(batch, min_size=1 if plain else 0, max_size=3 if small and not plain else 1))
    kv_heads = draw(st.integers(1, 2))
    heads = (kv_heads * draw(st.integers(1, 3)), kv_heads) if lead or draw(st.booleans()) else None
    scores = [*lead, *([heads[0]] if heads else []), queries, keys]
    d_key = draw(width)
    masks = expressions(lead[-1] if lead else 1, heads[0] if heads else 1, queries, keys, 0 if plain else depth)
    # What only `chunked` does: drawn by itself, or nearly every case would have some of it.
    beyond = not plain and draw(st.sampled_from([False, False, True]))
    learned = st.booleans() if beyond else st.just(False)
    a_tensor = st.tuples(st.just("tensor"), _broadcastable(scores), learned, st.sampled_from([0.0, 0.0, 0.3, 1.0]))
    by_position = st.just(("ALiBi",)) | st.tuples(st.just("T5Relative"), learned)
    layout = st.sampled_from(["contiguous", "tokens first", *([] if plain else ["every other"])])
    seldom = (lambda option: st.none()) if plain else _seldom

    return Case(
        lead=lead,
        heads=heads,
        queries=queries,
        keys=keys,
        d_key=d_key,
        d_value=draw(st.just(d_key) if plain else st.just(d_key) | st.sampled_from([*nothing, *range(1, 10)])),
        layouts=[draw(layout), draw(layout), draw(layout)],
        mask=draw(st.none() | masks | masks | masks),
        bias=draw(seldom(a_tensor | by_position)),
        scale=draw(seldom(st.just(0.0) | st.floats(-1, 2) if beyond else st.floats(0.01, 2))),
        softcap=draw(seldom(st.floats(0.1, 50))) if beyond else None,
        sinks=draw(seldom(st.sampled_from(["fixed", "learned"]))) if heads else None,
        dtype=draw(st.sampled_from([torch.float32, torch.float64, *HALF])),
        sizes=draw(st.sampled_from([SHORT, SHORT, LONG])),
        seed=draw(st.integers(0, 2**32)),
    )


def expressions(batch: int, heads: int, queries: int, keys: int, depth: int) -> st.SearchStrategy[MaskSpec]:
    """Expressions of masks up to so deep, as `masks.build` reads them."""
    a_length, a_reach = st.integers(0, keys), st.integers(1, 9) | st.integers(1, max(1, keys + 1))
    offsets = st.none() | st.just(0) | st.integers(-3, 9) | st.integers(-queries, keys)

    def ids(tokens: int) -> st.SearchStrategy[list[Any]]:
        # Ids that repeat make documents that do not lie in one piece; the others are of about one length.
        mixed = st.lists(st.integers(-1, 5), min_size=1, max_size=4)
        lying = st.integers(2, 12).flatmap(lambda n: st.permutations(range(n)))
        row = (mixed | lying).map(lambda some: [some[j * len(some) // tokens] for j in range(tokens)])
        return row | each_row(row) if batch else row

    def each_row(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=batch, max_size=batch)

    per_row_and_head = st.tuples(st.sampled_from([1, batch]), st.sampled_from([1, heads])).flatmap(
        lambda shape: st.lists(
            st.lists(st.integers(1, 4), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
        )
    )
    a_tensor = st.tuples(_broadcastable([batch, heads, queries, keys], least=2), st.integers(0, 99))
    causal = st.tuples(st.just("causal"), offsets)
    window = st.tuples(st.just("window"), a_reach, st.just(0) | a_reach, offsets)
    documents = st.tuples(st.just("documents"), ids(keys))
    pairs = st.tuples(st.just("pairs"), ids(queries), ids(keys))
    leaf = st.one_of(
        causal,
        window,
        st.tuples(st.just("padding"), each_row(a_length)),
        documents,
        pairs,
        st.tuples(st.just("prefix"), a_length | each_row(a_length)),
        st.tuples(st.just("where"), per_row_and_head if batch else st.just([[2]]), offsets),
        a_tensor.map(lambda drawn: ("allowed", *drawn)),
        a_tensor.map(lambda drawn: ("blocked", *drawn)),
    )
    expression = leaf
    for _ in range(depth):
        expression = st.one_of(
            leaf,
            st.tuples(st.just("~"), expression),
            st.tuples(st.sampled_from("&|"), expression, expression),
        )
    # What the kernels are made for is rare among expressions of any kind.
    usual = st.one_of(causal, window, documents, pairs, st.tuples(st.just("&"), documents | pairs, causal | window))
    return st.one_of(usual, leaf, expression, expression)


def _broadcastable(shape: list[int], least: int = 0) -> st.SearchStrategy[list[int]]:
    """Shapes that broadcast to this one: axes left out at the front, and axes of size 1."""
    return st.integers(0, len(shape) - least).flatmap(
        lambda skipped: st.tuples(*[st.sampled_from([1, n]) for n in shape[skipped:]]).map(list)
    )


def _seldom(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.none() | st.none() | strategy
