"""Attention written out, with edits: what `regard.intervene` is held against.

`attention` is the definition, and shares no code with regard. `ByHand` runs a model of transformers on it, by the
interface that transformers has for attention of others; `on_functional` runs any model whose modules call
``F.scaled_dot_product_attention``, ``flex_attention`` or `regard.attend`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from regard.attention import multihead

IMPLEMENTATION = "by_hand"


@dataclass(frozen=True, eq=False)
class Edit:
    """What is done to one attention. Heads, batch rows, queries and keys are positions; None stands for all."""

    path: str
    heads: Sequence[int] | None = None
    batch: Sequence[int] | None = None
    zero: bool = False
    """The output is zero."""
    mean: bool = False
    """The output is its mean over the batch and the queries of the call."""
    constant: Tensor | None = None
    """The output is this in every row: (heads, width), for all heads of the model."""
    output: Tensor | None = None
    """The output is this: (batch, heads, queries, width); so with the following four."""
    weights: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    rows: Sequence[int] | None = None
    """The queries whose scores or output are changed."""
    blocked: tuple[Sequence[int] | None, Sequence[int]] | None = None
    """Queries and keys between which there is no attention."""
    allowed: Tensor | None = None
    """Beside the model's own mask: True where attention is allowed, (queries, keys)."""
    factor: float | None = None
    """Of the scores, before soft-cap, bias and mask."""
    bias: Tensor | None = None
    """Added to the scores."""
    scores: dict[int, float] | None = None
    """What the products of queries and keys are, by key."""
    temperature: float | None = None
    """By which the softmax's input is divided."""

    def applies_to(self, t: Tensor) -> Tensor:
        """Which part of a tensor (batch, heads, rows, ...) this is about: (batch, heads, rows, 1)."""
        batch, heads, rows = (
            _among(chosen, count) for chosen, count in zip((self.batch, self.heads, self.rows), t.shape, strict=False)
        )
        return (batch[:, None, None] & heads[:, None] & rows)[..., None]

    def replace(self, t: Tensor, new: Tensor | float | None) -> Tensor:
        """A tensor with the part that this is about taken from another one."""
        return t if new is None else torch.where(self.applies_to(t), new, t)


def _among(chosen: Sequence[int] | None, count: int) -> Tensor:
    """Which of so many positions are chosen; negative ones count from the end."""
    among = torch.full((count,), chosen is None)
    among[list(chosen or [])] = True
    return among


@dataclass(frozen=True)
class Attended:
    """The tensors of one call, each (batch, heads, ..., ...) with keys and values of every query head."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    output: Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edits: Sequence[Edit] = (),
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal: bool = False,
) -> Attended:
    """Attention by its definition in float64, one step a line; a row without keys is zero.

    Args:
        q: queries, (batch, heads, queries, width).
        k: keys; fewer heads are shared by groups of query heads.
        v: values.
        edits: what is changed.
        scale: of the scores; by default one over the root of the width.
        mask: True where attention is allowed, or numbers that are added to the scores.
        bias: added to the scores.
        softcap: the bound of the scores, by a hyperbolic tangent.
        sinks: a score without a value for each head.
        causal: no query attends to later keys; the first query stands at the first key.
    """
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    for edit in edits:
        q, k, v = edit.replace(q, edit.q), edit.replace(k, edit.k), edit.replace(v, edit.v)
    scores = q @ k.mT
    for edit in edits:
        for key, score in (edit.scores or {}).items():
            scores = edit.replace(scores, scores.index_fill(-1, torch.tensor(key), score))
    scores = scores * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    for edit in edits:
        scores = edit.replace(scores, None if edit.factor is None else scores * edit.factor)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    additive = [t for t in (bias, mask) if t is not None and t.dtype != torch.bool]
    for t in additive:
        scores = scores + t
    for edit in edits:
        scores = edit.replace(scores, None if edit.bias is None else scores + edit.bias)
    scores = scores.masked_fill(~_allowed(scores, mask, causal, edits), -math.inf)
    temperature = torch.ones_like(scores[..., :1])
    for edit in edits:
        temperature = edit.replace(temperature, edit.temperature)
    sinks = None if sinks is None else sinks.double().view(1, -1, 1, 1) / temperature
    weights = _softmax(scores / temperature, sinks)
    for edit in edits:
        weights = edit.replace(weights, edit.weights)
    output = weights @ v
    return Attended(q, k, v, weights, _edited_output(output, edits))


def _allowed(scores: Tensor, mask: Tensor | None, causal: bool, edits: Sequence[Edit]) -> Tensor:
    queries, keys = scores.shape[-2:]
    allowed = torch.ones(scores.shape, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    if causal:
        allowed = allowed & (torch.arange(queries)[:, None] >= torch.arange(keys))
    for edit in edits:
        allowed = edit.replace(allowed, None if edit.allowed is None else allowed & edit.allowed)
        if edit.blocked is not None:
            pairs = _among(edit.blocked[0], queries)[:, None] & _among(edit.blocked[1], keys)
            allowed = edit.replace(allowed, allowed & ~pairs)
    return allowed


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    largest = scores.detach().amax(-1, keepdim=True)
    if sinks is not None:
        largest = torch.maximum(largest, sinks.detach())
    largest = largest.clamp(min=-1e300)  # of a row without keys
    exponentials = (scores - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - largest).exp()
    return exponentials / torch.where(total == 0, 1.0, total)


def _edited_output(output: Tensor, edits: Sequence[Edit]) -> Tensor:
    for edit in edits:
        if edit.zero:
            output = edit.replace(output, torch.zeros_like(output))
        if edit.mean:
            output = edit.replace(output, output.mean((0, 2), keepdim=True).expand_as(output))
        if edit.constant is not None:
            output = edit.replace(output, edit.constant[:, None].expand_as(output))
        output = edit.replace(output, edit.output)
    return output


class Calls:
    """Computes the attentions of a model by hand, edited, and keeps the tensors of each."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = edits
        self.calls: dict[str, list[Attended]] = {}

    def compute(self, path: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The output of the attention at a path, in the type of its values."""
        attended = attention(q, k, v, [edit for edit in self.edits if edit.path == path], **options)
        self.calls.setdefault(path, []).append(attended)
        return attended.output.to(v.dtype)


class ByHand:
    """A copy of a model of transformers with attention written out, and edited.

    Args:
        model: a model of transformers.
        methods: for models whose attention transformers lets nobody replace, by the name of their attention's class:
            the method that computes it, and that method written anew.
        functional: the model's modules call a function of attention themselves, not by transformers' interface.
    """

    def __init__(
        self,
        model: nn.Module,
        methods: dict[str, tuple[str, Callable[..., Any]]] | None = None,
        *,
        functional: bool = False,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.done = Calls([])
        self.functional = functional
        if functional:
            return
        if methods is None:
            self.model.set_attn_implementation(IMPLEMENTATION)
        for path, module in self.model.named_modules():
            module.__dict__["by_hand"] = self, path
            name, function = (methods or {}).get(type(module).__name__, ("", None))
            if function is not None:
                module.__dict__[name] = function.__get__(module)

    def __call__(self, *edits: Edit, **inputs: Any) -> Any:
        """The model's output under edits; ``done.calls`` then has the tensors of each attention."""
        if self.functional:
            with on_functional(self.model, *edits) as self.done:
                return self.model(**inputs)
        self.done = Calls(edits)
        return self.model(**inputs)

    def generate(self, *edits: Edit, **options: Any) -> Any:
        """A generation under edits."""
        self.done = Calls(edits)
        return self.model.generate(**options)

    def attended(self, *edits: Edit, **inputs: Any) -> dict[str, Attended]:
        """The tensors of the only call of each attention."""
        with torch.no_grad():
            self(*edits, **inputs)
        return {path: call for path, (call,) in self.done.calls.items()}


def compute(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The output of a module's attention, (batch, heads, queries, width), under the edits of its model."""
    oracle, path = module.by_hand
    return oracle.done.compute(path, q, k, v, **options)


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls. Its masks are boolean, and windows and padding stand in them."""
    causal = attention_mask is None and bool(module.is_causal if is_causal is None else is_causal)
    options = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "bias": position_bias}
    return compute(module, query, key, value, mask=attention_mask, causal=causal, **options).transpose(1, 2), None


def _whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of transformers, also where its fused kernels need none."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


AttentionInterface.register(IMPLEMENTATION, _interface)
AttentionMaskInterface.register(IMPLEMENTATION, _whole_mask)


@contextmanager
def on_functional(model: nn.Module, *edits: Edit) -> Iterator[Calls]:
    """Every function of attention that a model calls inside this block is computed by hand."""
    done, paths = Calls(edits), [""]

    def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        assert dropout_p == 0.0
        return done.compute(paths[-1], query, key, value, mask=attn_mask, causal=is_causal, scale=scale)

    def flex_attention(q, k, v, *, block_mask, enable_gqa):
        allowed = block_mask.mask_mod(None, None, torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2]))
        return done.compute(paths[-1], q, k, v, mask=allowed)

    def attend(q, k, v, mask=None, *, dropout, **options):
        assert dropout == 0.0
        allowed = None if mask is None else mask.dense(q.shape[2], k.shape[2])
        return done.compute(paths[-1], q, k, v, mask=allowed, **options)

    def leave(*_: Any) -> None:
        paths.pop()

    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, path=path: paths.append(path)))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "scaled_dot_product_attention", sdpa)
        patch.setattr(flex, "flex_attention", flex_attention)
        patch.setattr(multihead, "attend", attend)
        patch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
        try:
            yield done
        finally:
            for hook in hooks:
                hook.remove()
