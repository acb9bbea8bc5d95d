"""How finely a page keeps queries and keys: no weight moves by more than the bound, and the page knows by how much."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import MAX_INT16, quantize_int16
from regard.views.html.quantization import ERROR_BOUNDS, MAX_WEIGHT_ERROR, MapQuantization

RECIPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "group": st.sampled_from([1, 2, 4]),
        "size": st.sampled_from([0.01, 0.5, 1.0, 3.0]),
        "scale": st.sampled_from([None, 0.05, 1.0, -0.6, 0.0]),
        "softcap": st.sampled_from([None, 1.0, 20.0]),
        "sinks": st.booleans(),
        "bias": st.booleans(),
        "mask": st.sampled_from([None, mask.causal(), mask.window(5)]),
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    }
)


def made(recipe):
    """The map of a recipe: 4 heads, 40 queries, 48 keys."""
    draws = torch.Generator().manual_seed(recipe["seed"])

    def some(size, *shape):
        return (size * torch.randn(*shape, generator=draws)).to(recipe["dtype"])

    return AttentionMap(
        some(2 * recipe["size"], 1, 4, 40, 8),
        some(recipe["size"], 1, 4 // recipe["group"], 48, 8),
        sinks=some(1, 4) if recipe["sinks"] else None,
        bias=some(2, 1, 4, 40, 48) if recipe["bias"] else None,
        **{name: recipe[name] for name in ("mask", "scale", "softcap")},
    )


def steps_of(m, q, k):
    """By the definition, in float64."""
    bias, sinks = (None if t is None else t.double() for t in (m.bias, m.sinks))
    return regard.steps(q.double(), k.double(), k.double(), m.mask, **{**m.score_options, "bias": bias, "sinks": sinks})


def kept(quantization, bound):
    """The queries and keys that a page holds: its integers times their steps."""
    m, steps = quantization.m, quantization.steps(bound)

    def rounded(t, steps):
        integers = [torch.from_numpy(quantize_int16(head, float(step))) for head, step in zip(t[0], steps, strict=True)]
        assert all(int(head.int().abs().max()) <= MAX_INT16 for head in integers)
        return (torch.stack(integers).double() * steps[:, None, None])[None]

    return rounded(m.q, steps.repeat_interleave(quantization.group)), rounded(m.k, steps)


def largest_error(quantization, bound):
    m = quantization.m
    found, exact = steps_of(m, *kept(quantization, bound)).weights, steps_of(m, m.q, m.k).weights
    return float((found - exact).abs().max())


@given(recipe=RECIPES, known=st.booleans())
def test_what_is_kept_is_within_the_bound_and_the_page_knows_it(recipe, known):
    m = made(recipe)
    quantization = MapQuantization(m, m[0].float() if known else None)
    largest = torch.maximum(m.q[0].abs().amax((1, 2)).view(-1, quantization.group).amax(1), m.k[0].abs().amax((1, 2)))
    steps = torch.full((len(largest),), torch.inf, dtype=torch.float64)
    for bound in reversed(ERROR_BOUNDS):
        error, coarser = quantization.fit(bound), steps
        steps = quantization.steps(bound).clone()
        assert bool((steps <= coarser).all())
        # Of what has as many steps as 16 bits have, a weight may be farther off.
        assert error <= bound or bool((steps <= largest.double() / MAX_INT16 * (1 + 1e-9)).any())
        assert largest_error(quantization, bound) == pytest.approx(error, rel=0.03, abs=2e-6)
    lse = steps_of(m, *kept(quantization, MAX_WEIGHT_ERROR)).masked.logsumexp(-1)
    if m.sinks is not None:
        lse = torch.logaddexp(lse, m.sinks.double()[:, None])
    torch.testing.assert_close(quantization.lse(MAX_WEIGHT_ERROR), lse[0], rtol=1e-4, atol=1e-4)


def test_scores_of_thousands_are_kept_with_all_sixteen_bits_and_it_is_said():
    q, k = 300 * torch.randn(1, 2, 30, 8), 300 * torch.randn(1, 2, 15, 8)
    k = torch.cat([k, k + 0.01 * torch.randn(k.shape)], 2)  # keys that a query hardly tells apart
    quantization = MapQuantization(AttentionMap(q, k))
    error = quantization.fit(MAX_WEIGHT_ERROR)
    largest = torch.maximum(q.abs().amax((0, 2, 3)), k.abs().amax((0, 2, 3))).double()
    torch.testing.assert_close(quantization.steps(MAX_WEIGHT_ERROR), largest / MAX_INT16)
    assert MAX_WEIGHT_ERROR < largest_error(quantization, MAX_WEIGHT_ERROR) == pytest.approx(error, rel=0.05)


@pytest.mark.more
def test_of_a_large_map_some_rows_tell():
    """The others may be farther off than these, so the page says more."""
    m = AttentionMap(2 * torch.randn(1, 4, 1100, 8), 2 * torch.randn(1, 2, 1100, 8), mask=mask.causal())
    quantization = MapQuantization(m)
    error = quantization.fit(MAX_WEIGHT_ERROR)
    assert 0.2 * MAX_WEIGHT_ERROR < largest_error(quantization, MAX_WEIGHT_ERROR) < 0.9 * error < MAX_WEIGHT_ERROR


def test_values_have_a_step_that_their_integers_hold():
    q, k, v = torch.randn(3, 1, 1, 100, 2)
    v[0, 0, 1, 1] = 1e6
    for values in (v, torch.zeros_like(v)):
        quantization = MapQuantization(AttentionMap(q, k, values))
        for bound in ERROR_BOUNDS:
            step = quantization.value_step(0, bound)
            assert step > 0
            torch.testing.assert_close(torch.from_numpy(quantize_int16(values, step)) * step, values, atol=step, rtol=0)
