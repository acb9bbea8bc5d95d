"""Gradients through edited attention are those of the same attention by hand."""

from __future__ import annotations

import pytest
import torch

import regard
from lens.interventions.architectures import architecture, sites
from lens.interventions.edits import KINDS, NEEDS_SCORES
from lens.interventions.written_out import layer_sites, written_out
from lens.watching import output_tensors

LIMIT = 1e-9


def gradients(model, output):
    """Of every parameter, for one loss of the first output."""
    first = next(output_tensors(output))
    weights = torch.randn(first.shape, generator=torch.Generator().manual_seed(3), dtype=first.dtype)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad((first * weights).sum(), parameters, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def assert_same_gradients(got, expected):
    largest = max(t.abs().max() for t in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        difference = (got[name] - gradient).abs().max() / largest
        assert difference <= LIMIT, f"{name}: relative difference {difference:.1e}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["llama", "t5", *(pytest.param(n, marks=pytest.mark.more) for n in ("bert", "mistral", "gpt_oss", "falcon"))],
)
def test_gradients_of_models_of_transformers(name, kind):
    if name == "gpt_oss" and kind in NEEDS_SCORES:
        pytest.skip("the scores of eager attention are not known")
    this = architecture(name)
    inputs = this.inputs("even")
    for site in sites(name, "even"):
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = gradients(this.model, this.model(**inputs))
        assert_same_gradients(got, gradients(this.by_hand.model, this.by_hand(*edits, **inputs)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["regard Decoder", *(pytest.param(n, marks=pytest.mark.more) for n in ("nn.TransformerEncoder",))],
)
def test_gradients_of_layers(name, kind):
    this = written_out(name)
    inputs = this.make_inputs(0)
    for site in layer_sites(name):
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = gradients(this.model, this.model(**inputs))
        assert_same_gradients(got, gradients(this.model, this.by_hand(*edits, **inputs)[0]))
