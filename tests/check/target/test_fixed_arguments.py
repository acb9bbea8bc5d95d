"""Functions some of whose arguments are fixed: matrices, lists and dicts of them, which tell how wide tokens are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from target_calls import first
from torch import Tensor

from property_cases import drawn
from regard.check import check
from regard.check.target.fixed_arguments import fixed_matrices, handed_over_with, with_fixed, with_matrix
from regard.check.target.numpy_by_torch import is_array

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def several(count: int, *shape: int, seed: int) -> list[Any]:
    return [numbers(*shape, seed=seed + number) for number in range(count)]


def of_dicts(x: Any, into: dict[str, Any], out: dict[str, Any], n_head: int, do_mask: bool = False) -> Any:
    parts = np.split(x @ into["w"] + into["b"], 3, axis=-1)
    later = (1 - np.tri(len(x))) * -1e10 if do_mask else 0
    heads = zip(*(np.split(each, n_head, axis=-1) for each in parts), strict=True)
    read = [softmax(q @ k.T / np.sqrt(q.shape[-1]) + later) @ v for q, k, v in heads]
    return np.hstack(read) @ out["w"] + out["b"]


OF_DICTS = {
    "into": {"w": numbers(24, 72), "b": np.zeros(72)},
    "out": {"w": numbers(24, 24, seed=1), "b": np.zeros(24)},
    "n_head": 3,
}


def test_matrices_in_dicts_tell_the_width_and_are_arrays_where_tokens_are() -> None:
    call = first(of_dicts, **OF_DICTS)
    assert (call.arrays, call.arguments["x"].shape[-1]) == (True, 24)
    assert "into" not in call.arguments
    report = check(of_dicts, args=OF_DICTS)
    assert report.verdict == "right"
    assert any("do_mask=True" in each for each in str(report).splitlines())


def without_a_root(x: Any, into: dict[str, Any], out: dict[str, Any], n_head: int) -> Any:
    heads = zip(*(np.split(each, n_head, axis=-1) for each in np.split(x @ into["w"], 3, axis=-1)), strict=True)
    return np.hstack([softmax(q @ k.T / q.shape[-1]) @ v for q, k, v in heads]) @ out["w"]


def test_a_mistake_shows_through_large_matrices_as_well() -> None:
    assert {each.step for each in check(without_a_root, args=OF_DICTS).causes} == {"scaled"}


def by_tensors(x: Tensor, w_in: Tensor, w_out: Tensor) -> Tensor:
    """Stored as those of layers are: (outputs, inputs)."""
    q, k, v = (x @ w_in.T).chunk(3, -1)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v @ w_out.T


def test_tensors_are_fixed_in_float64_and_tokens_as_wide_as_most_of_them_are_on_one_side() -> None:
    args = {"w_in": torch.randn(60, 20), "w_out": torch.randn(20, 20)}
    assert first(by_tensors, **args).arguments["x"].shape[-1] == 20
    assert check(by_tensors, args=args).verdict == "right"


# Matrices of each head in lists. --------------------------------------------------------------------------------------


def crossed(xq: Any, xv: Any, w_qs: list[Any], w_ks: list[Any], w_vs: list[Any], w_p: Any) -> Any:
    read = []
    for w_q, w_k, w_v in zip(w_qs, w_ks, w_vs, strict=True):
        q, k = xq @ w_q, xv @ w_k
        read.append(softmax(q @ k.swapaxes(-2, -1) / np.sqrt(k.shape[-1])) @ (xv @ w_v))
    return np.concatenate(read, axis=-1) @ w_p


def keys_first(xq: Any, xv: Any, w_qs: list[Any], w_ks: list[Any], w_vs: list[Any], w_p: Any) -> Any:
    return crossed(xq, xv, w_ks, w_qs, w_vs, w_p)


def values_for_keys(xq: Any, xv: Any, w_qs: list[Any], w_ks: list[Any], w_vs: list[Any], w_p: Any) -> Any:
    return crossed(xq, xv, w_qs, w_vs, w_ks, w_p)


OF_LISTS = {
    "w_qs": several(2, 16, 8, seed=3),
    "w_ks": several(2, 16, 8, seed=5),
    "w_vs": several(2, 16, 8, seed=7),
    "w_p": numbers(16, 16, seed=9),
}


def test_lists_of_matrices_are_of_heads() -> None:
    assert check(crossed, args=OF_LISTS).verdict == "right"


@pytest.mark.parametrize("function", [keys_first, values_for_keys])
def test_matrices_of_one_thing_that_make_another_are_exchanged(function: Callable[..., Any]) -> None:
    assert {each.id for each in check(function, args=OF_LISTS).causes} == {"matrix-as-named"}


# The matrices themselves. ---------------------------------------------------------------------------------------------


def test_large_random_matrices_are_made_smaller_and_no_others() -> None:
    sines = np.sin(np.arange(6)[:, None] / 10 ** np.linspace(0, 2, 16))
    given = {"w": numbers(16, 16), "unit": np.eye(16), "sines": sines, "mask": np.triu(np.full((6, 6), -1e9), 1)}
    fixed = fixed_matrices(with_fixed(lambda x, w, unit, sines, mask: x, given))
    assert float(fixed["w"].std()) < 0.31
    assert all(np.array_equal(fixed[name].numpy(), given[name]) for name in ("unit", "sines", "mask"))


def test_one_matrix_is_another_one_and_all_take_the_form_of_the_call() -> None:
    function = with_fixed(lambda x, ws, n: (x, ws, n), {"ws": [numbers(4, 4), numbers(4, 4)], "n": 2})
    other = with_matrix(function, "ws.1", drawn(4, 4, seed=1))
    assert fixed_matrices(other)["ws.0"] is fixed_matrices(function)["ws.0"]
    assert torch.equal(fixed_matrices(other)["ws.1"], drawn(4, 4, seed=1))
    _, (_, matrix), number = handed_over_with(other, lambda each: [one.numpy() for one in each] if each != 2 else each)(
        0
    )
    assert (is_array(matrix), number) == (True, 2)
