"""First-order estimates: what one backward pass says, and how it is told that some cannot be trusted."""

import pytest
import torch

import regard
from lens.effects.toy_decoder import HEADS, LAYERS, TOKENS, ToyDecoder, by_hand, texts
from regard import metrics

METRIC = metrics.logit_difference(3, 5)


@pytest.mark.parametrize(
    ("over", "options"),
    [
        *((over, {}) for over in ("heads", "layers", "tokens", "edges")),
        *(("heads", {"ablation": ablation}) for ablation in ("mean", "resample")),
        ("edges", {"keys": [[0, 2], [1, 3, 4], list(range(TOKENS))], "window": None}),
    ],
)
def test_small_changes_are_estimated_exactly(over, options):
    """Of a model whose attention changes so little that the metric is nearly linear in it."""
    model = ToyDecoder()
    with torch.no_grad():
        for layer in model.layers:
            layer.out.weight.mul_(1e-4)
    effects = regard.effect(model, texts(), METRIC, over, method="both", top=1000, **options)
    assert not effects.values.isnan().any()
    largest = float(effects.values.abs().max())
    torch.testing.assert_close(effects.estimates, effects.values, rtol=1e-2, atol=1e-3 * largest)


def test_a_head_s_estimate_is_gradient_times_output():
    """The gradient by a factor of each head's output, at 1, written out."""
    model, ids = ToyDecoder(), texts(1)
    factors = torch.ones(LAYERS, HEADS, 1, 1, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        logits = by_hand.__wrapped__(model, ids[0], replace=lambda layer, heads: heads * factors[layer])
        (expected,) = torch.autograd.grad(logits[-1, 3] - logits[-1, 5], factors)
    effects = regard.effect(model, ids, METRIC, method="gradient")
    torch.testing.assert_close(effects.estimates[0], expected[..., 0, 0], rtol=0, atol=1e-10)
    assert effects.values.isnan().all()


def test_long_texts_are_estimated_by_one_sum():
    """Which differs by the factors 1 / (1 - weight) alone: it is the gradient of the scores of a key."""
    tokens = 1025
    model, ids = ToyDecoder(positions=tokens), texts(1, tokens)
    effects = regard.effect(model, ids, METRIC, "tokens", method="gradient")
    shifts = torch.zeros(tokens, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        # A number is subtracted from the scores of each key, of all queries but its own.
        out = with_scores_shifted(model, ids[0], shifts * (1 - torch.eye(tokens)))
        (expected,) = torch.autograd.grad(out[-1, 3] - out[-1, 5], shifts)
    torch.testing.assert_close(effects.estimates[0], expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


def with_scores_shifted(model, ids, shifts):
    """The logits with numbers (queries, keys) added to the scores, in every layer."""
    x = model.token(ids) + model.position(torch.arange(len(ids)))
    for layer in model.layers:
        q, k, v = layer.split(x)
        scores = q @ k.mT / 2.0 + shifts  # the square root of the width, 4
        scores = scores.masked_fill(~torch.ones(len(ids), len(ids)).tril().bool(), -torch.inf)
        heads = scores.softmax(-1) @ v
        x = x + torch.tanh(layer.out(heads.transpose(0, 1).flatten(1)))
    return model.logits(x)


def test_both_computes_the_strongest_exactly():
    exact = regard.effect(ToyDecoder(), texts(), METRIC)
    effects = regard.effect(ToyDecoder(), texts(), METRIC, method="both", top=2)
    assert effects.method == "both"
    known = ~effects.values.isnan()
    assert known.sum() == 4  # two heads, each in two texts
    assert torch.equal(known[0], known[1])
    strongest = effects.estimates.mean(0).abs().flatten().topk(2).indices
    assert set(known[0].flatten().nonzero()[:, 0].tolist()) == set(strongest.tolist())
    torch.testing.assert_close(effects.values[known], exact.values[known])
    assert "rank correlation" in str(effects)


MANY = 300 // (LAYERS * HEADS) + 1
"""Texts with more parts than are computed exactly by default."""


@pytest.mark.parametrize(("count", "method"), [(MANY, "both"), (MANY - 1, "exact")])
def test_the_default_depends_on_the_number_of_parts_of_all_texts(count, method):
    assert regard.effect(ToyDecoder(), texts(count), METRIC).method == method


def test_where_softmax_saturates_the_reader_is_told():
    model = ToyDecoder()
    assert not regard.effect(model, texts(), METRIC, "edges", method="gradient").notes
    with torch.no_grad():
        for layer in model.layers:
            layer.q.weight.mul_(20)
    for over in ("tokens", "edges"):
        notes = regard.effect(model, texts(), METRIC, over, method="gradient").notes
        assert any("the softmax is saturated" in note and "unreliable" in note for note in notes)


def test_a_metric_without_gradient_is_computed_exactly_unless_the_gradient_was_asked_for():
    def likeliest(output):
        return int(output["logits"][0, -1].argmax())

    with pytest.raises(TypeError, match=r"likeliest has no gradient: .* or take method=\"exact\""):
        regard.effect(ToyDecoder(), texts(), likeliest, method="gradient")
    effects = regard.effect(ToyDecoder(), texts(MANY), likeliest)
    assert effects.method == "exact"
    assert not effects.values.isnan().any()
    assert effects.notes == ("likeliest has no gradient: every effect is computed exactly",)


@pytest.mark.parametrize("metric", [metrics.kl(), metrics.kl(None)])
def test_a_metric_at_its_minimum_has_no_estimate(metric):
    with pytest.raises(ValueError, match=r'its gradient is 0 there and estimates nothing: use method="exact"'):
        regard.effect(ToyDecoder(), texts(), metric, method="both")
    assert regard.effect(ToyDecoder(), texts(MANY), metric).method == "exact"


def test_gradients_flow_in_inference_mode_too():
    expected = regard.effect(ToyDecoder(), texts(), METRIC, method="gradient").estimates
    model = ToyDecoder()
    ids = texts()
    with torch.inference_mode():
        effects = regard.effect(model, ids, METRIC, method="gradient")
    torch.testing.assert_close(effects.estimates, expected)
