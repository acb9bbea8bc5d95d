"""Gradients through edited attention are those of the same attention by hand."""

from __future__ import annotations

import copy

import pytest
import torch

import regard
from lens.interventions.architectures import EAGER, LIMITS, architecture, sites
from lens.interventions.by_hand import Edit
from lens.interventions.edits import KINDS, NEEDS_SCORES
from lens.interventions.written_out import layer_sites, written_out
from lens.watching import output_tensors


def gradients(model, output):
    """Of every parameter, for one loss of the first output."""
    first = next(output_tensors(output))
    weights = torch.randn(first.shape, generator=torch.Generator().manual_seed(3), dtype=first.dtype)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad((first * weights).sum(), parameters, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def assert_same_gradients(got, expected, limit):
    largest = max(t.abs().max() for t in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        difference = (got[name] - gradient).abs().max() / largest
        assert difference <= limit, f"{name}: relative difference {difference:.1e}"


NAMES = ["llama", "t5", "bert", "mistral", "falcon", *EAGER]
FAST = {(name, kind) for name in ("gpt_oss", "t5") for kind in ("block", "patch values", "mean")}
FAST |= {("llama", kind) for kind in KINDS}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if (name, kind) in FAST else pytest.mark.more)
        for name in NAMES
        for kind in KINDS
        if not (name in EAGER and kind in NEEDS_SCORES)
    ],
)
def test_gradients_of_models_of_transformers(name, kind):
    this = architecture(name)
    inputs = this.inputs("even")
    for site in sites(name, "even"):
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = gradients(this.model, this.model(**inputs))
        expected = gradients(this.by_hand.model, this.by_hand(*edits, **inputs))
        assert_same_gradients(got, expected, 10 * LIMITS[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["regard Decoder", pytest.param("nn.TransformerEncoder", marks=pytest.mark.more)])
def test_gradients_of_layers(name, kind):
    this = written_out(name)
    inputs = this.make_inputs(0)
    for site in layer_sites(name):
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = gradients(this.model, this.model(**inputs))
        assert_same_gradients(got, gradients(this.model, this.by_hand(*edits, **inputs)[0]), 1e-9)


def test_backward_through_activation_checkpointing_computes_the_edited_attention_again():
    this = architecture("llama")
    model, inputs = copy.deepcopy(this.model).train(), this.inputs("left")
    model.activation_checkpointing_enable()
    with regard.intervene(model) as edit:
        edit["layers.0.self_attn"].heads[1].ablate("zero")
        edit["layers.1.self_attn"].block(keys=[6])
        first = next(output_tensors(model(**inputs, use_cache=False)))
        first.square().sum().backward()
    edits = Edit("layers.0.self_attn", heads=[1], zero=True), Edit("layers.1.self_attn", blocked=(None, [6]))
    parameters = dict(this.by_hand.model.named_parameters())
    loss = next(output_tensors(this.by_hand(*edits, **inputs))).square().sum()
    expected = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    assert_same_gradients({name: p.grad for name, p in model.named_parameters()}, expected, 1e-9)
