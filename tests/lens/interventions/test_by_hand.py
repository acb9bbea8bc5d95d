"""The oracles themselves: without an edit, attention by hand gives the numbers of the model as it comes."""

import pytest
import torch

import regard
from lens.interventions.architectures import ARCHITECTURES, LIMITS, architecture, cheap_first
from lens.interventions.comparing import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize("name", cheap_first(ARCHITECTURES))
def test_without_an_edit_a_model_has_its_own_numbers_and_paths(name):
    this = architecture(name)
    for padding in ARCHITECTURES[name].paddings:
        inputs = this.inputs(padding)
        with torch.no_grad(), regard.watch(this.model) as recording:
            expected = this.model(**inputs)
        assert_same(this.by_hand(**inputs), expected, LIMITS[name])
        assert list(this.by_hand.attended(**inputs)) == list(recording)
