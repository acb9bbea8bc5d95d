"""The table of an attention holds the definition's numbers, element by element, however it was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from attention_styles import STYLES, Style, tables

ROUNDING = 1e-11
OPAQUE_SOFTMAX = {"with_exponentials"}
"""Styles whose softmax is no operation of PyTorch's."""

FEW = {"with_baddbmm", "with_groups", "with_keys_first", "with_kernel", "with_mul_and_sum"}
"""In the fast tier."""


def drawn_case(sizes: tuple[int, ...], share: float, seed: int) -> tuple[Tensor, ...]:
    """Queries, keys, values and a mask in which every query may attend to a key."""
    batch, kv_heads, group, queries, keys, width, value_width = sizes
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    allowed = torch.rand(queries, keys, generator=generator) < share
    allowed[torch.arange(queries), torch.arange(queries) % keys] = True
    q, k = drawn(batch, kv_heads * group, queries, width), drawn(batch, kv_heads, keys, width)
    return q, k, drawn(batch, kv_heads, keys, value_width), allowed


CASES = st.builds(
    drawn_case,
    st.tuples(*(st.integers(low, high) for low, high in ((1, 3), (1, 3), (1, 3), (1, 5), (2, 6), (2, 5), (1, 4)))),
    st.sampled_from([0.2, 0.5, 1.1]),
    st.integers(0, 1 << 16),
)


def assert_holds_the_definition(style: Style, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> None:
    (table,) = tables(style.call(q, k, v, allowed))
    wanted = regard.steps(q, k, v, regard.mask.from_sdpa(allowed))

    def same(found: Tensor, numbers: Tensor) -> None:
        torch.testing.assert_close(found, numbers, rtol=ROUNDING, atol=ROUNDING)

    sample, head, query, key = table.query.sample, table.head, table.query.token, table.key.token
    of_key = k.shape[1] * head // q.shape[1]
    assert torch.equal(table.key.sample, sample)
    assert torch.equal(table.query.head, head)
    assert torch.equal(table.key.head, of_key)
    same(table.q_source, q[sample, head, query])
    same(table.k_source, k[sample, of_key, key])
    same(table.dense((table.q_source * table.k_source).sum(-1)), wanted.scores)
    same(table.dense(table.weight), wanted.weights)
    if style.attend.__name__ not in OPAQUE_SOFTMAX:
        same(table.dense(table.masked), wanted.masked)
        same(table.dense(table.softmax), wanted.weights)
        assert int(table.group.max()) + 1 == wanted.weights[..., 0].numel()

    values = table.values
    row = values.score
    assert bool((row >= 0).all())
    assert torch.equal(values.token, key[row])
    assert torch.equal(values.sample, sample[row])
    assert torch.equal(values.head, of_key[row])
    channels = v[sample[row], of_key[row], key[row]]
    assert bool((values.value[..., None] == channels).any(-1).all())
    if style.attend.__name__ not in OPAQUE_SOFTMAX:
        same((values.weight * values.value).sum(-1), values.result)
    owner = torch.stack([each[row[:, 0]] for each in (sample, head, query)])
    closest = (wanted.output[tuple(owner)] - values.result[:, None]).abs().amin(-1)
    assert float(closest.max()) < ROUNDING


@pytest.mark.parametrize(
    "style", [pytest.param(each, marks=[] if each in FEW else [pytest.mark.more]) for each in STYLES]
)
def test_the_table_holds_the_definition_s_numbers(style: str) -> None:
    assert_holds_the_definition(STYLES[style], *drawn_case((2, 1, 2, 2, 3, 2, 2), 0.5, 0))


@pytest.mark.more
@given(style=st.sampled_from(sorted(STYLES)), case=CASES)
def test_the_table_holds_the_definition_s_numbers_of_any_shape_and_mask(style: str, case: tuple[Tensor, ...]) -> None:
    assert_holds_the_definition(STYLES[style], *case)
