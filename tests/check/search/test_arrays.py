"""Classes that keep their weights as arrays of numpy are judged by their outputs, as modules are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.subject import subject_of

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


class OfArrays:
    """Multi-head attention with what a backward pass needs."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.scale = 1 / np.sqrt(self.d_head)
        draw = np.random.default_rng(0).standard_normal
        self.W_q, self.W_k, self.W_v, self.W_o = (draw((d_model, d_model)) for _ in "qkvo")
        self.dW_q = np.zeros_like(self.W_q)

    def forward(self, x: Any) -> Any:
        q, k, v = (self.split(x @ each) for each in (self.W_q, self.W_k, self.W_v))
        self.weights = softmax(q @ k.swapaxes(-1, -2) * self.scale)
        return self.joined(self.weights @ v) @ self.W_o

    def split(self, x: Any) -> Any:
        return x.reshape(*x.shape[:2], self.n_heads, self.d_head).swapaxes(1, 2)

    def joined(self, heads: Any) -> Any:
        batch, _, tokens, _ = heads.shape
        return heads.swapaxes(1, 2).reshape(batch, tokens, -1)


class ScaledByTheModel(OfArrays):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.scale = 1 / np.sqrt(d_model)


class Layer:
    def __init__(self, d_in: int, d_out: int) -> None:
        self.params = {"W": np.random.default_rng(d_in).standard_normal((d_in, d_out)), "b": np.zeros(d_out)}

    def __call__(self, x: Any) -> Any:
        return x @ self.params["W"] + self.params["b"]


class OfLayers(OfArrays):
    """The same of parts that keep their arrays in dicts, of two sequences."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.query, self.key, self.value, self.out = (Layer(d_model, d_model) for _ in range(4))

    def forward(self, query: Any, key_value: Any) -> Any:
        q, k, v = (self.split(each) for each in (self.query(query), self.key(key_value), self.value(key_value)))
        return self.out(self.joined(softmax(q @ k.swapaxes(-1, -2) / np.sqrt(self.d_head)) @ v))


@pytest.mark.parametrize("kind", [OfArrays, OfLayers])
def test_arrays_are_the_parameters_of_a_right_attention(kind: type) -> None:
    found = conclude(kind, {}, UserSettings())
    assert found.verdict.startswith("right")
    assert not found.mistakes


def test_a_wrong_scale_is_named() -> None:
    (found,) = conclude(ScaledByTheModel, {}, UserSettings()).mistakes
    assert found.step == "scaled"


class KeepsAMask:
    """No weight: it is not drawn anew."""

    def __init__(self) -> None:
        self.mask = np.triu(np.full((16, 16), -np.inf), 1)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        tokens = q.shape[-2]
        return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + self.mask[:tokens, :tokens]) @ v


def test_an_array_that_is_no_weight_makes_no_module() -> None:
    assert subject_of(KeepsAMask, {}).function is not None
