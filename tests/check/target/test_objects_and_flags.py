"""Flags, options, objects of the same file, edges of a graph and arrays are given as the file itself tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import numpy as N
import pytest
import torch
import torch.nn.functional as F
from target_calls import Packed, attention, first
from torch import Tensor, nn

from property_cases import joined, split
from regard.check.properties.analyze import analyze


def weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


class OfHeads(Packed):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)

    def parts(self, x: Tensor) -> list[Tensor]:
        return [split(each, self.heads) for each in self.qkv(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        return joined(attention(*self.parts(x)))


# Configs of calls. ----------------------------------------------------------------------------------------------------


@dataclass
class WindowConfig:
    """sliding_window: number of tokens that a query attends to, the current token included."""

    num_attention_heads: int = 4
    sliding_window: int = 3


DEFAULTS = WindowConfig()


def in_its_window(q: Tensor, k: Tensor, v: Tensor, config: WindowConfig, before: int) -> Tensor:
    """Queries see some keys before their own."""
    assert (q.shape[2], k.shape[2]) == (config.num_attention_heads,) * 2
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().triu(-before)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~keep, -torch.inf).softmax(-1), v)


def of_a_config(q: Tensor, k: Tensor, v: Tensor, config: WindowConfig = DEFAULTS) -> Tensor:
    return in_its_window(q, k, v, config, config.sliding_window - 1)


def of_a_config_that_is_needed(q: Tensor, k: Tensor, v: Tensor, config: WindowConfig) -> Tensor:
    return in_its_window(q, k, v, config, config.sliding_window - 1)


def of_one_key_more(q: Tensor, k: Tensor, v: Tensor, config: WindowConfig = DEFAULTS) -> Tensor:
    return in_its_window(q, k, v, config, config.sliding_window)


def test_an_object_of_a_class_of_configs_is_made_for_a_call() -> None:
    for function in (of_a_config, of_a_config_that_is_needed):
        call = first(function)
        heads = call.arguments["config"].num_attention_heads
        assert [call.arguments[name].shape[2] for name in "qkv"] == [heads] * 3
        assert analyze(call, masks=True).violations == []
        assert call.guessed == []


class Unmade:
    def __init__(self, tokens: Any) -> None:
        raise RuntimeError(tokens)


def of_what_cannot_be_made(q: Tensor, k: Tensor, v: Tensor, kind: Unmade) -> Tensor:
    return attention(q, k, v)


def test_what_cannot_be_made_is_not_given() -> None:
    assert first(of_what_cannot_be_made).arguments["kind"] is None


def test_the_documentation_of_a_config_says_what_its_window_is() -> None:
    (found,) = analyze(first(of_one_key_more), masks=True).violations
    assert found.property == "window-as-documented"


# Weights of an object. ------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    w_qkv: Tensor
    w_out: Tensor


def of_its_weights(x: Tensor, weights: Weights) -> Tensor:
    q, k, v = torch.einsum("bnm,thmd->tbhnd", x, weights.w_qkv)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / weights.w_out.shape[1] ** 0.5
    return torch.einsum("bhij,bhjd,hdm->bim", scores.softmax(-1), v, weights.w_out)


def of_their_root(x: Tensor, weights: Weights) -> Tensor:
    q, k, v = torch.einsum("bnm,thmd->tbhnd", x, weights.w_qkv)
    return torch.einsum("bhij,bhjd,hdm->bim", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v, weights.w_out)


def test_matrices_may_be_read_from_the_fields_of_an_object() -> None:
    call = first(of_its_weights)
    _, heads, width, d_head = call.arguments["weights.w_qkv"].shape
    assert call.arguments["weights.w_out"].shape == (heads, d_head, width)
    assert analyze(call).violations == []
    assert {each.property for each in analyze(first(of_their_root)).violations} == {"scale"}


# Flags and options. ---------------------------------------------------------------------------------------------------


class ToldWhenItTrains(OfHeads):
    def forward(self, x: Tensor, is_training: Any) -> Tensor:
        q, k, v = self.parts(x)
        return joined(F.dropout(weights(q, k), 0.5, is_training) @ v)


class MadeForTraining(OfHeads):
    def __init__(self, dim: int, heads: int, train: Any) -> None:
        super().__init__(dim, heads)
        self.drop = nn.Dropout(0.5) if train else nn.Identity()


class OfAFlag(OfHeads):
    def __init__(self, dim: int, heads: int, loud: Any) -> None:
        super().__init__(dim, heads)
        self.loud = loud

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        return joined(attention(q * 3.0 if self.loud else q, k, v))


class OfAKind(OfHeads):
    def __init__(self, dim: int, heads: int, kind: Any) -> None:
        super().__init__(dim, heads)
        if kind not in ("full", "strided"):
            raise ValueError(kind)
        self.kind = kind


class OfOptions(OfHeads):
    """Its config is of no class: what its fields are is told by what is done with them."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg.n_embd, cfg.n_head)
        self.sloped, self.places = cfg.use_alibi, cfg.places
        if self.places != "learned" and cfg.shifted:
            raise ValueError(self.places)
        self.loud = getattr(cfg, "loud", True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        return joined(attention(q, k, v if not self.sloped else 2 * v))


@pytest.mark.parametrize("kind", [ToldWhenItTrains, MadeForTraining, OfAFlag, OfAKind, OfOptions])
def test_flags_are_off_and_texts_are_those_that_the_code_compares_with(kind: type) -> None:
    call = first(kind)
    told = {**call.arguments, **vars(call.target)}
    wanted = {"is_training": False, "loud": kind is OfOptions, "kind": "full", "sloped": False, "places": "learned"}
    assert {name: told[name] for name in wanted if name in told} == {n: wanted[n] for n in wanted if n in told}
    assert not any(isinstance(each, nn.Dropout) for each in call.target.modules())


# Objects. -------------------------------------------------------------------------------------------------------------


class TurnTable(nn.Module):
    """Rotary positions of a head."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** -(torch.arange(0, self.dim, 2) / self.dim)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)


class RotaryTable(TurnTable):
    pass


class TurnedByItsName(OfHeads):
    def __init__(self, dim: int, heads: int, rotary: Any) -> None:
        super().__init__(dim, heads)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        return joined(attention(self.rotary(q), self.rotary(k), v))


class TurnedByItsClass(TurnedByItsName):
    def __init__(self, dim: int, heads: int, which: TurnTable) -> None:
        super().__init__(dim, heads, which)


class TurnedByTheCall(OfHeads):
    def forward(self, x: Tensor, rotary: Any) -> Tensor:
        q, k, v = self.parts(x)
        return joined(attention(rotary(q), rotary(k), v))


@pytest.mark.parametrize(
    ("kind", "made"), [(TurnedByItsName, RotaryTable), (TurnedByItsClass, TurnTable), (TurnedByTheCall, TurnTable)]
)
def test_an_object_of_a_class_of_the_same_file_is_made(kind: type, made: type) -> None:
    call = first(kind)
    given = call.arguments.get("rotary") or call.target.rotary
    assert isinstance(given, made)
    assert given.dim == call.sizes["d_head"]


def pooled_by_a_layer(x: Tensor, fc: Any) -> Tensor:
    return (fc(x).softmax(1) * x).sum(1)


def pooled_by_a_vector(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).softmax(1) * x).sum(1)


@pytest.mark.parametrize(("function", "outputs"), [(pooled_by_a_layer, 1), (pooled_by_a_vector, 1)])
def test_what_scores_tokens_may_be_handed_over(function: Callable[..., Tensor], outputs: int) -> None:
    given = list(first(function).arguments.values())[1]
    assert (given.out_features if isinstance(given, nn.Linear) else given.shape[-1]) == outputs


# Graphs and arrays. ---------------------------------------------------------------------------------------------------


class OfAGraph(OfHeads):
    def __init__(self, dim: int, heads: int, num_nodes: int, adj: Tensor) -> None:
        super().__init__(dim, heads)
        self.places, self.adj = nn.Parameter(torch.zeros(num_nodes, num_nodes)), adj

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        scores = (q @ k.mT / q.shape[-1] ** 0.5 + self.places).masked_fill(self.adj == 0, -torch.inf)
        return joined(scores.softmax(-1) @ v)


def test_a_graph_has_as_many_nodes_as_there_are_tokens_and_every_edge() -> None:
    call = first(OfAGraph)
    tokens = call.arguments["x"].shape[1]
    assert call.target.places.shape == call.target.adj.shape == (tokens, tokens)
    assert bool(call.target.adj.all())


def by_exponentials(scores: Any) -> Any:
    exponentials = N.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def with_the_whole_name(q: Any, k: Any, v: Any) -> Any:
    return by_exponentials(numpy.matmul(q, k.swapaxes(-1, -2)) / numpy.sqrt(q.shape[-1])) @ v


def with_another_name(q: Any, k: Any, v: Any) -> Any:
    return N.matmul(by_exponentials(N.matmul(q, k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5), v)


def with_a_function_beside_it(q: Any, k: Any, v: Any) -> Any:
    return by_exponentials(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v


@pytest.mark.parametrize("function", [with_the_whole_name, with_another_name, with_a_function_beside_it])
def test_numpy_is_known_by_whatever_name(function: Callable[..., Any]) -> None:
    assert first(function).arrays
