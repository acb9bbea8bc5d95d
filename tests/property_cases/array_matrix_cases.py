"""Classes of numpy: a matrix that is drawn when the object is made, and that no line reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from property_cases import Case
from regard.check.target import Invocation, invocations


def of_arrays(kind: Any) -> Invocation:
    """A call of an object of a class of numpy."""
    return next(invocations(kind, args={"d_model": 8}))


class Projected:
    """Attention in one head, with a matrix each for queries, keys and values."""

    def __init__(self, d_model: int) -> None:
        draw = np.random.default_rng(0).standard_normal
        self.d_model = d_model
        self.w_query = draw((d_model, d_model)) / d_model**0.5
        self.w_key = draw((d_model, d_model)) / d_model**0.5
        self.w_value = draw((d_model, d_model)) / d_model**0.5

    def values(self, x: np.ndarray) -> np.ndarray:
        return x @ self.w_value

    def forward(self, x: np.ndarray) -> np.ndarray:
        scores = (x @ self.w_query) @ np.swapaxes(x @ self.w_key, -1, -2) / np.sqrt(self.d_model)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ self.values(x)


class ValuesOfTheKeys:
    """The same, whose values are made with the matrix of the keys."""

    def __init__(self, d_model: int) -> None:
        draw = np.random.default_rng(0).standard_normal
        self.d_model = d_model
        self.u_query = draw((d_model, d_model)) / d_model**0.5
        self.u_key = draw((d_model, d_model)) / d_model**0.5
        self.u_value = draw((d_model, d_model)) / d_model**0.5

    def forward(self, x: np.ndarray) -> np.ndarray:
        q, k, v = x @ self.u_query, x @ self.u_key, x @ self.u_key
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(self.d_model)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v


class Dense:
    """A layer."""

    def __init__(self, width: int) -> None:
        self.kernel = np.random.default_rng(width).standard_normal((width, width)) / width**0.5

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x @ self.kernel


class LayerNeverCalled:
    """Layers of queries, keys and values, and one of the output that is not called."""

    def __init__(self, d_model: int) -> None:
        self.d_model = d_model
        self.to_query, self.to_key, self.to_value = Dense(d_model), Dense(d_model), Dense(d_model)
        self.to_output = Dense(d_model)

    def forward(self, x: np.ndarray) -> np.ndarray:
        scores = self.to_query(x) @ np.swapaxes(self.to_key(x), -1, -2) / np.sqrt(self.d_model)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ self.to_value(x)


class SumsOfGradients(Projected):
    """Sums of gradients begin as zeros, and what a call leaves is kept for the way back."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.sum_query = np.zeros((d_model, d_model))
        self.grad_value = np.random.default_rng(1).standard_normal((d_model, d_model))


class ReadByName(Projected):
    """What reads its matrices puts their names together."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.m_value = np.random.default_rng(2).standard_normal((d_model, d_model)) / d_model**0.5

    def values(self, x: np.ndarray) -> np.ndarray:
        return x @ getattr(self, f"m_{'value'}") + x @ self.w_value


CASES = [
    Case("parameters-used", ValuesOfTheKeys, Projected, of_arrays, has_line=False),
    Case("parameters-used", LayerNeverCalled, SumsOfGradients, of_arrays, has_line=False),
]
