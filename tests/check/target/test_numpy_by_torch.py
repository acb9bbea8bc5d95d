"""Code that computes with numpy is run by PyTorch's functions of the same names, so that its steps are seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy import exp
from target_calls import first

from property_cases import drawn
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def softmax(scores: Any) -> Any:
    e = exp(scores - scores.max(axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softmax_of_lost_axes(scores: Any) -> Any:
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return e / e.sum(axis=-1)  # here


def by_heads(x: Any, w_qkv: Any, w_out: Any, n_head: int, normalize: Callable[[Any], Any] = softmax) -> Any:
    later = (1 - np.tri(len(x), dtype=x.dtype)) * -1e10
    heads = (np.split(each, n_head, axis=-1) for each in np.split(x @ w_qkv, 3, axis=-1))
    return (
        np.hstack([normalize(q @ k.T / np.sqrt(k.shape[-1]) + later) @ v for q, k, v in zip(*heads, strict=True)])
        @ w_out
    )


def test_a_packed_matrix_is_three_times_as_wide_and_the_steps_of_numpy_are_judged() -> None:
    call = first(by_heads)
    rows, columns = call.arguments["w_qkv"].shape
    assert (call.arrays, rows, columns) == (True, 12, 3 * len(call.arguments["w_out"]))
    analysis = analyze(call)
    held = {each.property for each in analysis.findings if each.kind == "holds"}
    assert (analysis.violations, analysis.missing) == ([], [])
    assert {"scale", "mask-pattern", "weights-sum-to-one", "projected-once"} <= held


def test_sums_that_lost_the_axis_of_keys_divide_the_weights_of_other_queries() -> None:
    (found,) = analyze(first(partial(by_heads, normalize=softmax_of_lost_axes))).violations
    assert found.property == "weights-sum-to-one"
    assert found.location is not None
    assert found.location.text.endswith("# here")


def with_drawn_matrices(x: Any, num_heads: int = 2, normalize: Callable[[Any], Any] = softmax) -> Any:
    """x: (n, d)"""
    numbers = np.random.RandomState(0)
    w_q, w_k, w_v = (numbers.randn(x.shape[1], x.shape[1]) for _ in range(3))
    q, k, v = ((x @ w).reshape(len(x), num_heads, -1).swapaxes(0, 1) for w in (w_q, w_k, w_v))
    read = normalize(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v
    return read.swapaxes(0, 1).reshape(x.shape) @ np.random.default_rng(1).normal(size=(x.shape[1], x.shape[1]))


def over_queries(scores: Any) -> Any:
    e = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def test_matrices_of_numpys_generators_are_those_of_pytorchs_arrays() -> None:
    analysis = analyze(first(with_drawn_matrices))
    assert (analysis.violations, analysis.missing) == ([], [])
    assert {"scale", "weights-sum-to-one"} <= {each.property for each in analysis.findings if each.kind == "holds"}
    violated = {
        each.property for each in analyze(first(partial(with_drawn_matrices, normalize=over_queries))).violations
    }
    assert violated == {"softmax-over-keys"}


def with_places_of_later_keys(x: Any, w_q: Any, w_k: Any, w_v: Any, causal: bool = False) -> Any:
    scores = (x @ w_q) @ (x @ w_k).T / np.sqrt(w_k.shape[-1])
    if causal:
        scores[np.triu_indices(len(x), k=1)] = -np.inf
    return softmax(scores) @ (x @ w_v)


def test_places_of_later_keys_are_pairs_of_a_row_and_a_column() -> None:
    found = check(with_places_of_later_keys)
    assert found.verdict.startswith("right"), found.text()
    held = {
        each.property for each in analyze(first(with_places_of_later_keys), masks=True).findings if each.kind == "holds"
    }
    assert "mask-flag" in held


class Dropping:
    """Drops numbers until it is told that training is over."""

    def __init__(self) -> None:
        self.training = True

    def __call__(self, x: Any) -> Any:
        return x * (np.random.default_rng().random(x.shape) >= 0.1).astype(x.dtype) if self.training else x


class OfLayers:
    """Its scale is a number of numpy's type, and one of its layers is trained."""

    def __init__(self, d_model: int) -> None:
        drawn = np.random.default_rng(0).normal(size=(3, d_model, d_model)) * d_model**-0.5
        self.w_q, self.w_k, self.w_v = drawn
        self.scale = 1.0 / np.sqrt(d_model)
        self.dropout = Dropping()

    def forward(self, x: Any) -> Any:
        assert isinstance(x, np.ndarray)
        scores = x @ self.w_q @ np.swapaxes(x @ self.w_k, -1, -2) * self.scale
        return self.dropout(softmax(scores)) @ (x @ self.w_v)


def test_numbers_of_numpy_are_kept_by_objects_and_layers_are_not_trained() -> None:
    analysis = analyze(first(OfLayers))
    assert (analysis.violations, analysis.missing, analysis.num_attentions) == ([], [], 1)


def of_x(function: Callable[..., Any]) -> Invocation:
    return Invocation(function, {"x": drawn(3, 4, seed=0)}, ["x"], [Stream("x", "x", None, (0,))], arrays=True)


def test_numpy_is_what_it_was_after_the_call() -> None:
    call = of_x(softmax).watched()
    (result,) = call.outputs(call.run())
    assert call.is_watched
    torch.testing.assert_close(result, drawn(3, 4, seed=0).softmax(-1))
    assert (np, exp) == (globals()["np"], np.exp)
    assert isinstance(np.zeros(1), np.ndarray)


def by_places_between(x: Any) -> Any:
    return x + np.interp(0.5, [0.0, 1.0], [0.0, 1.0])


def test_what_pytorch_has_not_is_computed_by_numpy() -> None:
    call = of_x(by_places_between)
    assert call.watched() is call


class Projected:
    def __init__(self, width: int) -> None:
        self.weight = np.random.randn(width, width) * width**-0.5

    def forward(self, x: Any) -> Any:
        return np.matmul(x, self.weight)


class OfIds:
    """A model whose parts keep arrays of their own."""

    earlier = True

    def __init__(self, vocab_size: int, d_model: int) -> None:
        self.table, self.width = np.random.randn(vocab_size, d_model), d_model
        self.parts = [Projected(d_model) for _ in range(3)]

    def forward(self, x: Any) -> Any:
        # x: (batch, seq_len)
        tokens = self.table[x]
        q, k, v = (part.forward(tokens) for part in self.parts)
        scores = np.matmul(q, k.transpose(0, 2, 1)) / np.sqrt(self.width)
        allowed = np.tril(np.ones((x.shape[1], x.shape[1])))
        scores = np.where((allowed if self.earlier else allowed.T) == 0, -1e9, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.matmul(weights / weights.sum(axis=-1, keepdims=True), v)


class OfLaterIds(OfIds):
    earlier = False


def test_arrays_that_the_parts_of_a_model_keep_are_pytorch_s_as_well() -> None:
    call = first(OfIds)
    assert call.arrays
    assert call.streams[0].role == "ids"
    assert call.watched() is not call
    assert check(OfIds).verdict in ("right", "right in another layout or convention")
    assert {each.id for each in check(OfLaterIds).causes} == {"mask-pattern"}


class Part:
    """Its objects are called, and hand all on."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)  # type: ignore[attr-defined]


class Dropout(Part):
    def __init__(self, p: float) -> None:
        self.p = p

    def forward(self, x: Any, training: bool = True) -> Any:
        return x * (np.random.rand(*x.shape) > self.p) / (1 - self.p) if training else x


class OfIds(Part):
    def __init__(self, width: int = 8, p: float = 0.1) -> None:
        self.table, self.dropout = drawn(11, width, seed=1).numpy(), Dropout(p)

    def embed(self, ids: Any) -> Any:
        return self.table[ids]

    def forward(self, x: Any, training: bool = True) -> Any:
        x = self.embed(x)
        return x + self.dropped(softmax(x @ x.swapaxes(-2, -1) / np.sqrt(x.shape[-1])) @ x, training)

    def dropped(self, x: Any, training: bool) -> Any:
        return self.dropout(x, training)


class OfIdsThatForgets(OfIds):
    def dropped(self, x: Any, training: bool) -> Any:
        return self.dropout(x)


def test_an_object_that_hands_all_on_to_its_method_is_called_with_ids_and_told_that_nothing_is_trained() -> None:
    call = first(OfIds)
    assert (call.arguments["training"], call.streams[0].role) == (False, "ids")
    assert check(OfIds).verdict in ("right", "right in another layout or convention")


def test_dropout_of_numpy_that_is_not_told_that_nothing_is_trained_stays_on() -> None:
    report = check(OfIdsThatForgets)
    assert report.verdict == "wrong"
    assert "dropout stays on with training=False" in str(report)


def rounded(x: Any, w_q: Any, w_k: Any, w_v: Any) -> Any:
    """Queries and keys are rounded to float32."""
    q, k = ((x @ each).astype(np.float32) for each in (w_q, w_k))
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(k.shape[-1])) @ (x @ w_v)


def test_the_steps_of_numbers_that_numpy_rounds_are_judged() -> None:
    analysis = analyze(first(rounded).watched())
    assert analysis.num_attentions == 1
    assert "scale" in {each.property for each in analysis.findings if each.kind == "holds"}
