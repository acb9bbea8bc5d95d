"""Every kind of edit in models of transformers: the numbers are those of the same model with attention by hand."""

from __future__ import annotations

import pytest
import torch

import regard
from lens.interventions.architectures import ARCHITECTURES, EAGER, LIMITS, architecture, sites
from lens.interventions.comparing import assert_same, largest_difference
from lens.interventions.edits import KINDS, NEEDS_SCORES

CHEAP = {"llama", "gpt2", "bert", "t5", "gpt_oss"}
"""Architectures of the fast tier: grouped heads, one projection for all, padding, cross-attention, eager with sinks."""
MIN_EFFECT = 1e-4
"""By how much an edit has to change the output at least, so that it can be seen to be right."""


def architectures_by_kind():
    """Every architecture with every kind of edit; the cheap ones in the fast tier."""
    return [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if name in CHEAP else pytest.mark.more)
        for name in ARCHITECTURES
        for kind in KINDS
    ]


@pytest.mark.parametrize(("name", "kind"), architectures_by_kind())
def test_an_edited_model_gives_the_numbers_of_the_edited_model_by_hand(name, kind):
    this, padding = architecture(name), ARCHITECTURES[name].paddings[-1]
    inputs = this.inputs(padding)
    if name in EAGER and kind in NEEDS_SCORES:
        pytest.skip("the scores of eager attention are not known")
    for site in sites(name, padding):
        with torch.no_grad():
            with regard.intervene(this.model) as edit:
                edits = KINDS[kind](edit[site.path], site)
                got = this.model(**inputs)
            expected = this.by_hand(*edits, **inputs)
            assert largest_difference(this.model(**inputs), expected) > MIN_EFFECT
        assert_same(got, expected, LIMITS[name])


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("kind", sorted(NEEDS_SCORES))
def test_eager_attention_refuses_what_needs_its_scores(name, kind):
    this = architecture(name)
    (site,) = sites(name, "even")
    with pytest.raises(ValueError, match=site.path), torch.no_grad(), regard.intervene(this.model) as edit:
        KINDS[kind](edit[site.path], site)
        this.model(**this.inputs("even"))
