"""Any attention that fits together: as a plain specification, as tensors, and how far rounding may move its result."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from masks import MaskSpec, broadcastable, build, specs
from regard.attention.bias import PositionBias
from regard.attention.positions import ALiBi, T5Relative

HALF = (torch.bfloat16, torch.float16)


@dataclass
class KernelLimits:
    """From how many tokens on the kernels for long sequences are used, and in what steps; set here alone."""

    max_dense_pairs: int = 2**20
    tile_rows: int = 256
    tile_columns: int = 64
    max_packed_tokens: int = 8192
    max_bias_pairs: int = 2**18
    chunk_scores: int = 2**20
    max_merged_rows: int = 2048

    @contextmanager
    def apply(self) -> Iterator[None]:
        modules = {
            "max_dense_pairs": "plan",
            "chunk_scores": "kernels.chunked",
            "max_merged_rows": "kernels.row_groups",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, limit in asdict(self).items():
                module = import_module(f"regard.attention.{modules.get(name, 'kernels.schedule')}")
                patch.setattr(module, name.upper(), limit)
            yield


DEFAULT_LIMITS = KernelLimits()
SMALL_LIMITS = KernelLimits(0, 16, 8, 24, 100, 2**9, 20)
"""Every kernel does with a few dozen tokens what it does with thousands: several tiles, several chunks of rows."""
LIMITS = {"small limits": SMALL_LIMITS, "default limits": DEFAULT_LIMITS}


@dataclass
class AttentionCase:
    lead: list[int]
    heads: tuple[int, int] | None  # query heads and key heads; None for (tokens, width)
    queries: int
    keys: int
    d_key: int
    d_value: int
    layouts: list[str]
    mask: MaskSpec | None
    bias: tuple[Any, ...] | None  # ("tensor", shape, learned, share of -inf), ("ALiBi",) or ("T5Relative", learned)
    scale: float | None
    softcap: float | None
    sinks: str | None  # None, "fixed" or "learned"
    dtype: torch.dtype
    limits: KernelLimits
    seed: int

    def make(self) -> Attention:
        """The tensors and the mask of this case."""
        generator = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)

        def tensor(heads: list[int], tokens: int, width: int, layout: str) -> Tensor:
            if layout == "every other":
                return randn(*self.lead, *heads, tokens, 2 * width)[..., ::2]
            if layout == "tokens first" and heads:
                return randn(*self.lead, tokens, *heads, width).transpose(-3, -2)
            return randn(*self.lead, *heads, tokens, width)

        heads, kv_heads = self.heads or (1, 1)
        q_axes, kv_axes = ([heads], [kv_heads]) if self.heads else ([], [])
        options = {
            "bias": self._bias(heads, randn, generator),
            "sinks": self.sinks and randn(heads).requires_grad_(self.sinks == "learned"),
            "scale": self.scale,
            "softcap": self.softcap,
        }
        return Attention(
            tensor(q_axes, self.queries, self.d_key, self.layouts[0]).requires_grad_(),
            tensor(kv_axes, self.keys, self.d_key, self.layouts[1]).requires_grad_(),
            tensor(kv_axes, self.keys, self.d_value, self.layouts[2]).requires_grad_(),
            None if self.mask is None else build(self.mask),
            {name: option for name, option in options.items() if option is not None},
        )

    def _bias(self, heads: int, randn: Any, generator: torch.Generator) -> Tensor | PositionBias | None:
        match self.bias:
            case None:
                return None
            case ("tensor", shape, learned, share_blocked):
                t = randn(*shape)
                t[torch.rand(shape, generator=generator) < share_blocked] = -torch.inf
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
        """The tensors that need a gradient, by name."""
        tensors = {"q": self.q, "k": self.k, "v": self.v, **self.options}
        if isinstance(self.options.get("bias"), PositionBias):
            tensors.update(self.options["bias"].named_parameters())
        return {name: t for name, t in tensors.items() if isinstance(t, Tensor) and t.requires_grad}

    def in_float64(self) -> Attention:
        """The same numbers."""

        def to_float64(option: Any) -> Any:
            if isinstance(option, Tensor):
                return option.detach().double().requires_grad_(option.requires_grad)
            if isinstance(option, PositionBias):
                if list(option.parameters()):
                    return copy.deepcopy(option).double()
                # What is not learned may be calculated anew in float64; its numbers as rounded are the ones to keep.
                table = option.dense(self.q.shape[-2], self.k.shape[-2]).double()
                return table if self.q.ndim > 2 else table[0]
            return option

        options = {name: to_float64(option) for name, option in self.options.items()}
        return replace(self, q=to_float64(self.q), k=to_float64(self.k), v=to_float64(self.v), options=options)

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


def assert_is_the_definition(attention: Attention) -> regard.Plan:
    """The output and every gradient are the definition's in float64 but for rounding; the plan of what ran."""
    plan, output, dtype = attention.plan(), attention.attend(), attention.q.dtype
    cotangent = torch.arange(output.numel()).cos().reshape(output.shape).to(dtype)
    results = {"output": output, **attention.gradients(output, cotangent)}

    exact = attention.in_float64()
    steps = exact.steps()
    expected = {"output": steps.output, **exact.gradients(steps.output, cotangent.double())}
    bounds = _rounding_bounds(exact, steps.weights.detach(), dtype, cotangent.double().abs())

    for name, result in results.items():
        assert (result.shape, result.dtype) == (expected[name].shape, dtype), (plan, name)
        # Twice: the result is rounded as well. Below the smallest normal number there are fewer digits.
        bound = 2 * bounds[name] + torch.finfo(dtype).tiny
        error = (result.double() - expected[name]).abs()
        ratio = (error / bound).max() if error.numel() else 0.0
        assert bool((error <= bound).all()), f"{plan}: {name} is off by {ratio:.3g} times what rounding explains"
    return plan


def _rounding_bounds(exact: Attention, weights: Tensor, dtype: torch.dtype, cotangent: Tensor) -> dict[str, Tensor]:
    """How far the output and each gradient may lie from the definition's where they are computed in a dtype.

    Every product and every weight is off by an eps of itself and no more; a weight also by the error of its exponent,
    which is computed in float32 at least. Errors of terms add up in magnitude, so that no cancellation makes the bound
    small.
    """
    eps = torch.finfo(dtype).eps
    score_eps = min(eps, torch.finfo(torch.float32).eps)
    q, k, v = (t.detach().abs().requires_grad_() for t in (exact.q, exact.k, exact.v))
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    keys, values = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))

    scale = exact.options.get("scale")
    scores = q @ keys.transpose(-2, -1) * abs(q.shape[-1] ** -0.5 if scale is None else scale)
    bias, sinks = exact.options.get("bias"), exact.options.get("sinks")
    if isinstance(bias, PositionBias):
        bias = bias.dense(q.shape[-2], k.shape[-2])
        bias = bias if q.ndim > 2 else bias[0]
    bias = torch.zeros_like(scores) if bias is None else bias.expand(scores.shape)
    sink_sizes = 0.0 if sinks is None else sinks.detach().abs()[:, None, None]
    exponent = scores.detach() + bias.detach().abs().nan_to_num(posinf=0.0) + exact.options.get("softcap", 0.0)
    exponent = exponent + sink_sizes
    # A log-sum-exp is as large as the largest score and the logarithm of the number of keys.
    of_lse = (weights * exponent).sum(-1, keepdim=True) + sink_sizes + math.log(max(1, k.shape[-2]))
    weight_error = weights * (eps + score_eps * (exponent + of_lse))

    output = weight_error @ values
    of_weights = cotangent @ values.detach().transpose(-2, -1)
    mean, mean_error = ((t * of_weights).sum(-1, keepdim=True) for t in (weights, weight_error))
    of_scores = weight_error * (of_weights + mean) + weights * mean_error
    total = (scores * of_scores).sum() + (bias.nan_to_num(neginf=0.0) * of_scores).sum() + (output * cotangent).sum()
    if sinks is not None:
        sink = (1 - weights.sum(-1, keepdim=True)).clamp(min=0.0)  # rounding alone can make it negative
        total = total + (sinks[:, None, None] * sink * mean_error).sum()
    leaves = {**exact.leaves, "q": q, "k": k, "v": v}
    parts = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    return {"output": output.detach(), **dict(zip(leaves, parts, strict=True))}


class OperatorTrace(TorchDispatchMode):
    """What ran: the names of PyTorch's operators, what the fused kernel was given, and the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.fused: list[dict[str, Any]] = []
        self.max_bytes = 0

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
                self.max_bytes = max(self.max_bytes, t.untyped_storage().nbytes())
        return result


@st.composite
def cases(draw: st.DrawFn, *, plain: bool) -> AttentionCase:
    """Any attention that fits together; a plain one has the shapes of attend's early exit and no option but a mask."""
    empty = draw(st.sampled_from([[]] * 9 + [[0]]))
    tokens = st.sampled_from([*empty, 1, 1, *range(1, 13)]) | st.integers(13, 40) | st.sampled_from([64, 65, 100, 150])
    width = st.integers(1, 9)
    queries, keys = draw(st.just(1) | tokens if plain else tokens), draw(tokens)
    if draw(st.booleans()) and not (plain and queries == 1):
        queries = keys
    small = max(queries, keys) <= 40
    batch = st.sampled_from([*empty, 1, 2, 3] if small else [1, 2])
    lead = draw(st.lists(batch, min_size=1 if plain else 0, max_size=3 if small and not plain else 1))
    kv_heads = draw(st.integers(1, 2))
    heads = (kv_heads * draw(st.integers(1, 3)), kv_heads) if lead or draw(st.booleans()) else None
    scores = [*lead, *([heads[0]] if heads else []), queries, keys]
    d_key = draw(width)
    mask_sizes = lead[-1] if lead else 1, heads[0] if heads else 1, queries, keys
    depth = draw(st.sampled_from([None, None, 0] if plain else [None, None, 0, 4, 4]))
    masks = st.none() | _usual_masks(*mask_sizes) if depth is None else specs(*mask_sizes, depth=depth)
    # What only `chunked` does: drawn by itself, or nearly every case would have some of it.
    chunked = not plain and draw(st.sampled_from([False, False, True]))
    learned = st.booleans() if chunked else st.just(False)
    bias_tensor = st.tuples(st.just("tensor"), broadcastable(scores), learned, st.sampled_from([0.0, 0.0, 0.3, 1.0]))
    position_bias = st.just(("ALiBi",)) | st.tuples(st.just("T5Relative"), learned)
    layout = st.sampled_from(["contiguous", "tokens first", *([] if plain else ["every other"])])

    def seldom(option: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() if plain else st.none() | st.none() | st.none() | option

    return AttentionCase(
        lead=lead,
        heads=heads,
        queries=queries,
        keys=keys,
        d_key=d_key,
        d_value=draw(st.just(d_key) if plain else st.just(d_key) | st.sampled_from([*empty, *range(1, 10)])),
        layouts=[draw(layout), draw(layout), draw(layout)],
        mask=draw(masks),
        bias=draw(seldom(bias_tensor | position_bias)),
        scale=draw(seldom(st.just(0.0) | st.floats(-1, 2) if chunked else st.floats(0.01, 2))),
        softcap=draw(seldom(st.floats(0.1, 50))) if chunked else None,
        sinks=draw(seldom(st.sampled_from(["fixed", "learned"]))) if heads else None,
        dtype=draw(st.sampled_from([torch.float32, torch.float64, *HALF])),
        limits=draw(st.sampled_from([SMALL_LIMITS, DEFAULT_LIMITS])),
        seed=draw(st.integers(0, 2**32)),
    )


def _usual_masks(batch: int, heads: int, queries: int, keys: int) -> st.SearchStrategy[MaskSpec]:
    """What the kernels are made for, which is rare among masks of any kind."""
    band, packed = (
        specs(batch, heads, queries, keys, kinds=kinds, depth=0)
        for kinds in (("causal", "window"), ("documents", "pairs"))
    )
    return band | packed | st.tuples(st.just("&"), packed, band)
