"""Gradients through edited attention are those of the same attention by hand."""

import pytest
import torch

import regard
from lens.interventions.architectures import EAGER, LIMITS, architecture, sites
from lens.interventions.edits import KINDS, NEEDS_SCORES
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


NAMES = ["llama", "t5", "bert", "mistral", "falcon", "regard Decoder", "nn.TransformerEncoder", *EAGER]
FAST = {(name, kind) for name in ("gpt_oss", "t5") for kind in ("block", "patch values", "mean")}
FAST |= {(name, kind) for name in ("llama", "regard Decoder") for kind in KINDS}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if (name, kind) in FAST else pytest.mark.more)
        for name in NAMES
        for kind in KINDS
        if not (name in EAGER and kind in NEEDS_SCORES)
    ],
)
def test_gradients_of_an_edited_model_are_those_of_the_edited_model_by_hand(name, kind):
    this = architecture(name)
    inputs = this.inputs("even")
    for site in sites(name, "even"):
        with regard.intervene(this.model) as edit:
            edits = KINDS[kind](edit[site.path], site)
            got = gradients(this.model, this.model(**inputs))
        expected = gradients(this.by_hand.model, this.by_hand(*edits, **inputs))
        assert_same_gradients(got, expected, 10 * LIMITS[name])
