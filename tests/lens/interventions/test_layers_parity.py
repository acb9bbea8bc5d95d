"""Every kind of edit in PyTorch's own layers, FlexAttention and `regard.transformer`, against their definitions."""

from __future__ import annotations

import pytest
import torch

import regard
from lens.interventions.comparing import assert_same, largest_difference
from lens.interventions.edits import KINDS
from lens.interventions.written_out import CHEAP_LAYERS, MODELS, layer_sites, written_out

MIN_EFFECT = 1e-4
"""By how much an edit has to change the output at least, so that it can be seen to be right."""

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if name in CHEAP_LAYERS else pytest.mark.more)
        for name in MODELS
        for kind in KINDS
    ],
)
def test_an_edited_model_gives_the_numbers_of_the_edited_model_by_hand(name, kind):
    this = written_out(name)
    inputs = this.make_inputs(0)
    for site in layer_sites(name):
        with torch.no_grad():
            with regard.intervene(this.model) as edit:
                edits = KINDS[kind](edit[site.path], site)
                got = this.model(**inputs)
            expected, _ = this.by_hand(*edits, **inputs)
            assert largest_difference(this.model(**inputs), expected) > MIN_EFFECT
        assert_same(got, expected, 1e-10)
