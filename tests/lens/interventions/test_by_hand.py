"""The oracles themselves: without an edit, attention by hand gives the numbers of the model as it comes."""

import pytest
import torch

import regard
from lens.interventions.architectures import ARCHITECTURES, LIMITS, architecture, cheap_first
from lens.interventions.comparing import assert_same
from lens.interventions.written_out import CHEAP_LAYERS, MODELS, written_out

LAYERS = [pytest.param(name, marks=() if name in CHEAP_LAYERS else pytest.mark.more) for name in MODELS]

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize("name", cheap_first(ARCHITECTURES))
def test_without_an_edit_a_model_of_transformers_has_its_own_numbers_and_paths(name):
    this = architecture(name)
    for padding in ARCHITECTURES[name].paddings:
        inputs = this.inputs(padding)
        with torch.no_grad(), regard.watch(this.model) as recording:
            expected = this.model(**inputs)
        assert_same(this.by_hand(**inputs), expected, LIMITS[name])
        assert list(this.by_hand.attended(**inputs)) == list(recording)


@pytest.mark.parametrize("name", LAYERS)
def test_without_an_edit_a_model_that_is_written_out_has_its_own_numbers_and_paths(name):
    this = written_out(name)
    inputs = this.make_inputs(0)
    with torch.no_grad(), regard.watch(this.model) as recording:
        expected = this.model(**inputs)
        got, attended = this.by_hand(**inputs)
    assert_same(got, expected, 1e-10)
    assert sorted(attended) == sorted(recording)
