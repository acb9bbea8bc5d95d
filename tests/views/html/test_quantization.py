"""How finely a page keeps queries and keys: no weight moves by more than the bound, and the page knows by how much."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import regard
from regard import mask
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import MAX_INT16, quantize_int16
from regard.views.html.quantization import ERROR_BOUNDS, MAX_WEIGHT_ERROR, MapQuantization

SIZES = {"heads": 4, "queries": 40, "keys": 48, "width": 8}

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
        "known": st.booleans(),
    }
)


def made(recipe):
    """The map of a recipe."""
    draws = torch.Generator().manual_seed(recipe["seed"])
    heads, queries, keys, width = SIZES.values()

    def some(*shape):
        return torch.randn(*shape, generator=draws)

    q, k = some(1, heads, queries, width), some(1, heads // recipe["group"], keys, width)
    return AttentionMap(
        (q * recipe["size"] * 2).to(recipe["dtype"]),
        (k * recipe["size"]).to(recipe["dtype"]),
        mask=recipe["mask"],
        scale=recipe["scale"],
        softcap=recipe["softcap"],
        sinks=some(heads).to(recipe["dtype"]) if recipe["sinks"] else None,
        bias=(2 * some(1, heads, queries, keys)).to(recipe["dtype"]) if recipe["bias"] else None,
    )


def weights(m, q, k):
    """By the definition, in float64; the lse of a soft-capped row, too."""
    bias = None if m.bias is None else m.bias.double()
    sinks = None if m.sinks is None else m.sinks.double()
    options = {"scale": m.scale, "softcap": m.softcap, "bias": bias, "sinks": sinks}
    return regard.steps(q, k, k, m.mask, **options)


def kept(quantization, bound):
    """The queries and keys that a page holds, in float64: its integers times their steps."""
    steps = quantization.steps(bound)
    m = quantization.m
    q = [quantize_int16(q, float(steps[head // quantization.group])) for head, q in enumerate(m.q[0].float())]
    k = [quantize_int16(k, float(step)) for k, step in zip(m.k[0].float(), steps, strict=True)]
    for integers in (*q, *k):
        assert abs(integers.astype(int)).max() <= MAX_INT16
    q, k = (torch.stack([torch.from_numpy(each).double() for each in both]) for both in (q, k))
    return (q * steps.repeat_interleave(quantization.group)[:, None, None])[None], (k * steps[:, None, None])[None]


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(recipe=RECIPES)
def test_what_is_kept_is_within_the_bound_and_the_page_knows_it(recipe):
    m = made(recipe)
    quantization = MapQuantization(m, m[0].float() if recipe["known"] else None)
    exact = weights(m, m.q.double(), m.k.double()).weights
    finest = torch.maximum(m.q[0].abs().amax((1, 2)).reshape(-1, quantization.group).amax(1), m.k[0].abs().amax((1, 2)))
    steps = None
    for bound in reversed(ERROR_BOUNDS):
        within = quantization.fit(bound)
        assert within == quantization.fit(bound)
        # Of what has as many steps as 16 bits have, a weight may be farther off.
        full = bool((quantization.steps(bound) <= finest.double() / MAX_INT16 * (1 + 1e-9)).any())
        assert within <= bound or full
        off = float((weights(m, *kept(quantization, bound)).weights - exact).abs().max())
        assert off == pytest.approx(within, rel=0.03, abs=2e-6)
        finer = quantization.steps(bound)
        assert steps is None or bool((finer <= steps).all())
        steps = finer.clone()


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(recipe=RECIPES)
def test_rows_have_the_norm_of_what_is_kept(recipe):
    m = made(recipe)
    quantization = MapQuantization(m)
    quantization.fit(MAX_WEIGHT_ERROR)
    steps = weights(m, *kept(quantization, MAX_WEIGHT_ERROR))
    lse = steps.masked.logsumexp(-1)
    if m.sinks is not None:
        lse = torch.logaddexp(lse, m.sinks.double()[:, None])
    torch.testing.assert_close(quantization.lse(MAX_WEIGHT_ERROR), lse[0], rtol=1e-4, atol=1e-4)


def test_scores_of_thousands_are_kept_with_all_sixteen_bits_and_it_is_said():
    q, k = 300 * torch.randn(1, 2, 30, 8), 300 * torch.randn(1, 2, 15, 8)
    k = torch.cat([k, k + 0.01 * torch.randn(k.shape)], 2)  # keys that a query hardly tells apart
    m = AttentionMap(q, k)
    quantization = MapQuantization(m)
    within = quantization.fit(MAX_WEIGHT_ERROR)
    largest = torch.maximum(q.abs().amax((0, 2, 3)), k.abs().amax((0, 2, 3))).double()
    torch.testing.assert_close(quantization.steps(MAX_WEIGHT_ERROR), largest / MAX_INT16)
    exact = weights(m, q.double(), k.double()).weights
    off = float((weights(m, *kept(quantization, MAX_WEIGHT_ERROR)).weights - exact).abs().max())
    assert off > MAX_WEIGHT_ERROR
    assert off == pytest.approx(within, rel=0.05)


def test_of_a_large_map_some_rows_tell(monkeypatch):
    """The others may be farther off than these, so the page says more."""
    from regard.views.html import quantization as module

    m = AttentionMap(2 * torch.randn(1, 4, 200, 16), 2 * torch.randn(1, 2, 200, 16), mask=mask.causal())
    monkeypatch.setattr(module, "VERIFIED_WEIGHTS", m.shape.numel() // 16)
    some = MapQuantization(m)
    within = some.fit(MAX_WEIGHT_ERROR)
    exact = weights(m, m.q.double(), m.k.double()).weights
    off = float((weights(m, *kept(some, MAX_WEIGHT_ERROR)).weights - exact).abs().max())
    assert 0.2 * MAX_WEIGHT_ERROR < off <= within <= MAX_WEIGHT_ERROR


def test_values_that_are_not_finite_are_none():
    q, k = torch.randn(1, 1, 4, 2), torch.randn(1, 1, 4, 2)
    for number in (torch.nan, torch.inf):
        v = torch.randn(1, 1, 4, 2)
        v[0, 0, 1, 1] = number
        assert MapQuantization(AttentionMap(q, k, v)).v is None
    assert MapQuantization(AttentionMap(q, k, torch.zeros(1, 1, 4, 2))).value_step(0, MAX_WEIGHT_ERROR) > 0
