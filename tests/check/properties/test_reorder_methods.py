"""Methods and functions that reorder what is kept of beams: keys and values, in whatever form they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from property_cases import WIDTH, joined, of_module, split
from regard.check.properties.analyze import analyze


class Attends(nn.Module):
    """Attention that hands out its keys and its values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v), (k, v)


class NamedAlone(Attends):
    @staticmethod
    def reorder_cache(cache: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
        return {**cache, "k": cache["k"].index_select(0, beam_idx)}


class ValuesInPlace(Attends):
    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        incremental_state["prev_value"] = incremental_state["prev_value"][new_order]


class FirstOfEachPair(Attends):
    @staticmethod
    def _reorder_cache(past_key_values: tuple[Any, ...], beam_idx: Tensor) -> tuple[Any, ...]:
        return tuple((layer[0].index_select(0, beam_idx), layer[1]) for layer in past_key_values)


class FirstOfAList(Attends):
    def reorder_state(self, state: list[Tensor], order: Tensor) -> list[Tensor]:
        state[0] = state[0][order]
        return state


class TokensFirst(Attends):
    def reorder_cache(self, cache: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
        k, v = cache["keys"], cache["values"]
        assert k.shape[1] == len(beam_idx)
        return {"keys": k.index_select(1, beam_idx), "values": v}


class Both(Attends):
    @staticmethod
    def reorder_cache(past: list[Tensor], beam_idx: Tensor) -> list[Tensor]:
        return [each.index_select(0, beam_idx) for each in past]


class TokensFirstOfBoth(Attends):
    def reorder_cache(self, cache: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
        return {name: each.index_select(1, beam_idx) for name, each in cache.items()}


class StateAndEncoded(Attends):
    """What is encoded is shared by all beams of a text."""

    def reorder_state(self, state: tuple[Tensor, Tensor], order: Tensor) -> tuple[Tensor, Tensor]:
        hidden, encoded = state
        return hidden.index_select(0, order), encoded


class HandsOutNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attends()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]

    def reorder_state(self, state: tuple[Tensor, Tensor], order: Tensor) -> tuple[Tensor, Tensor]:
        return state[0].index_select(0, order), state[1]


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (NamedAlone, "values"),
        (ValuesInPlace, "keys"),
        (FirstOfEachPair, "values"),
        (FirstOfAList, "values"),
        (TokensFirst, "values"),
    ],
)
def test_keys_or_values_alone_are_reordered(kind: type[nn.Module], left: str) -> None:
    (found,) = analyze(of_module(kind)).violations
    assert found.property == "cache-beams"
    assert found.message.endswith(f"and leaves the {left} in the old one")


@pytest.mark.parametrize("kind", [Both, TokensFirstOfBoth, StateAndEncoded, HandsOutNone])
def test_both_are_reordered_or_the_second_is_something_else(kind: type[nn.Module]) -> None:
    assert analyze(of_module(kind)).violations == []


def values_as_they_were(past: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
    return {"past_key": past["past_key"][beam_idx], "past_value": past["past_value"].clone()}


def test_a_function_beside_the_module_is_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyze(of_module(Attends)).violations == []
    monkeypatch.setitem(globals(), "reorder_past", values_as_they_were)
    assert [each.property for each in analyze(of_module(Attends)).violations] == ["cache-beams"]


class Shelf:
    """Of each layer."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.keys = [each[beam_idx] for each in self.keys]
        self.values = [each[beam_idx] for each in self.values]


class ShelfOfKeys(Shelf):
    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.keys = [each[beam_idx] for each in self.keys]


class Keeps(Attends):
    def __init__(self) -> None:
        super().__init__()
        self.k_cache: Tensor | None = None
        self.v_cache: Tensor | None = None

    def reorder_cache(self, order: Tensor) -> None:
        if self.k_cache is not None and self.v_cache is not None:
            self.k_cache, self.v_cache = self.k_cache[order], self.v_cache[order]


class KeepsValuesAlone(Keeps):
    def reorder_cache(self, order: Tensor) -> None:
        if self.v_cache is not None:
            self.v_cache = self.v_cache[order]


def test_an_object_that_keeps_both_reorders_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyze(of_module(Attends)).violations == []
    assert analyze(of_module(Keeps)).violations == []
    (found,) = analyze(of_module(KeepsValuesAlone)).violations
    assert (
        found.message
        == "KeepsValuesAlone.reorder_cache() puts v_cache into the new order and leaves k_cache in the old one"
    )
    monkeypatch.setitem(globals(), "ShelfOfKeys", ShelfOfKeysOutside)
    (found,) = analyze(of_module(Attends)).violations
    assert found.message == "ShelfOfKeys.reorder_cache() puts keys into the new order and leaves values in the old one"


ShelfOfKeysOutside = ShelfOfKeys
del ShelfOfKeys
