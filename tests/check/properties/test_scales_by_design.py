"""A scale that is learned, handed over or made up for is a design; a wrong root is a mistake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import drawn, joined, of_module, split
from regard.check.properties.analysis import analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream, invocations

X = drawn(2, 4, 8, seed=0)


class Scaled(nn.Module):
    """Attention whose scores are multiplied by what a subclass says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT * self.factor()).softmax(-1) @ v)

    def factor(self) -> Any:
        return 1.0


class Learned(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.2).log())

    def factor(self) -> Tensor:
        return self.temperature.exp()


class NeverLearned(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4**-0.5), requires_grad=False)

    def factor(self) -> Tensor:
        return self.scale


class OfAnArgument(Scaled):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def factor(self) -> float:
        return self.scale


class OfAConfig(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(attention_multiplier=0.1, embedding_multiplier=1.0)

    def factor(self) -> float:
        return self.config.attention_multiplier


class OfTheModel(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.scale = SimpleNamespace(embedding_multiplier=8**-0.5), 8**-0.5

    def factor(self) -> float:
        return self.scale


class NonLocal(nn.Module):
    """SAGAN's, of pictures; its output is times gamma."""

    def __init__(self, gamma: Any) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(8, width, 1) for width in (4, 4, 8))
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x).flatten(2).mT @ self.key(x).flatten(2)).softmax(-1)
        return x + self.gamma * (self.value(x).flatten(2) @ weights.mT).view_as(x)


def scale_of(call: Invocation) -> Finding:
    torch.manual_seed(0)
    (found,) = [each for each in analyze(call).findings if each.step == "scale"]
    return found


@pytest.mark.parametrize(
    ("module", "kind", "property"),
    [
        (Learned(), "design", "learned-scale"),
        (OfAnArgument(0.1), "design", "scale-handed-over"),
        (OfAConfig(), "design", "scale-handed-over"),
        (OfAnArgument(), "violation", "scale"),
        (OfTheModel(), "violation", "scale"),
        (Scaled(), "violation", "scale"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_a_scale_is_a_design_where_somebody_chose_it(module: nn.Module, kind: str, property: str) -> None:
    found = scale_of(tokens_call(module.double(), X))
    assert (found.kind, found.property) == (kind, property)


def test_a_number_that_never_learns_stays_the_scale_that_it_is() -> None:
    assert scale_of(of_module(NeverLearned)).kind == "holds"


def test_the_message_names_the_argument() -> None:
    assert scale_of(tokens_call(OfAnArgument(0.1).double(), X)).message == "scores are times 0.1, as scale = 0.1 says"


@pytest.mark.parametrize(("gamma", "kind"), [(nn.Parameter(torch.tensor(0.5)), "design"), (0.5, "violation")])
def test_a_learned_gate_makes_up_for_the_scale_of_pictures(gamma: Any, kind: str) -> None:
    call = tokens_call(NonLocal(gamma).double(), drawn(2, 8, 2, 3, seed=1))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert scale_of(call).kind == kind


class MadeFor(nn.Module):
    """Scaled by the root of a number that it was made with, whatever it is called with."""

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        vars(self).update(numbers)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        (of_scale, *_) = (each for each in vars(self).values() if isinstance(each, int) and each > 1)
        return (query @ key.mT / of_scale**0.5).softmax(-1) @ value


@pytest.mark.parametrize(
    ("numbers", "axes", "kind"),
    [
        ({"dim_k": 24}, (2, 5), "holds"),
        ({"dim_k": 24}, (2, 3, 5), "holds"),
        ({"d_model": 24}, (2, 5), "holds"),
        ({"d_model": 24}, (2, 3, 5), "violation"),
        ({"dim_k": 24, "n_heads": 3}, (2, 3, 5), "violation"),
    ],
)
def test_a_number_that_may_be_the_width_it_was_made_for_is_the_scale(
    numbers: dict[str, int], axes: tuple[int, ...], kind: str
) -> None:
    inputs = {name: drawn(*axes, 8, seed=seed) for seed, name in enumerate(("query", "key", "value"))}
    assert scale_of(next(invocations(MadeFor(**numbers), args={}, inputs=inputs))).kind == kind


MATRIX = drawn(8, 8, seed=2) * 8**-0.5


def general(dec: Tensor, enc: Tensor) -> Tensor:
    """Luong's: states attend to states."""
    return (dec @ MATRIX @ enc.mT).softmax(-1) @ enc


def with_projected_values(dec: Tensor, enc: Tensor) -> Tensor:
    return (dec @ MATRIX @ enc.mT).softmax(-1) @ (enc @ MATRIX)


def with_projected_keys_as_well(dec: Tensor, enc: Tensor) -> Tensor:
    return (dec @ MATRIX @ (enc @ MATRIX).mT).softmax(-1) @ enc


@pytest.mark.parametrize(
    ("function", "kind"),
    [(general, "design"), (with_projected_values, "violation"), (with_projected_keys_as_well, "violation")],
)
def test_states_of_a_decoder_attend_to_those_of_an_encoder_without_a_scale(function: Any, kind: str) -> None:
    inputs = {"dec": X, "enc": drawn(2, 5, 8, seed=3)}
    assert scale_of(next(invocations(function, args={}, inputs=inputs))).kind == kind
