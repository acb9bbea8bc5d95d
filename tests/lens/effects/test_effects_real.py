"""SmolLM2 on indirect objects (Wang et al. 2022): the figures that were measured from outside, without regard."""

import pytest
import torch

import regard
from lens.effects.toy_decoder import without_head
from regard import metrics
from weights import smollm2

MARY = "When Mary and John went to the store, John gave a drink to"
METRIC = metrics.logit_difference("Mary", "John")
pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def heads():
    return regard.effect(smollm2(), MARY, METRIC, method="both", top=270)


def test_what_is_looked_at_is_not_what_matters(heads):
    assert heads.values.shape == (1, 30, 9)
    assert float(heads.baseline) == pytest.approx(6.12, abs=0.01)
    strongest = heads.top(1)[0]
    assert (strongest.name, round(strongest.effect, 2), round(strongest.looked_at, 2)) == ("23.3", 3.04, 0.05)
    assert heads.correlation() == pytest.approx(-0.09, abs=0.005)
    hardest = heads.looked_at[0].flatten().argmax()
    assert divmod(int(hardest), 9) == (24, 4)
    assert float(heads.looked_at[0, 24, 4]) == pytest.approx(0.81, abs=0.005)
    assert float(heads.values[0, 24, 4]) < 0  # it hurts the answer


def test_the_sentence_that_sums_it_up(heads):
    assert (
        "Over 270 heads, attention from the last token to ' Mary' and effect correlate at -0.09; the head that looks "
        "hardest, 24.4 (0.81), adds -0.723 to the metric; the head that matters most, 23.3, adds 3.04 of 6.12 (it "
        "gives 0.05)."
    ) in str(heads)


def test_one_backward_pass_ranks_the_heads_well(heads):
    assert heads.correlation("estimates", rank=True) > 0.8
    assert heads.correlation("estimates") > 0.8


def test_a_head_s_effect_is_that_of_a_hook_at_the_output_projection(heads):
    model = smollm2().model
    ids = torch.tensor([smollm2().encode(MARY).ids])
    mary, john = (smollm2().encode_continuation(f" {name}")[0] for name in ("Mary", "John"))
    for layer, head in ((23, 3), (24, 4), (0, 8)):
        logits = without_head(model, f"{heads.paths[layer]}.out_proj", head, 64, ids, logits_to_keep=1)[0, -1]
        without = float(logits[mary] - logits[john])
        assert float(heads.values[0, layer, head]) == pytest.approx(float(heads.baseline) - without, abs=1e-3)


def test_the_exact_ranking_is_the_most_faithful(heads):
    rankings = {"exact": heads.values, "gradient": heads.estimates, "attention": heads.looked_at}
    result = regard.faithfulness(smollm2(), MARY, METRIC, rankings, fractions=(0.01, 0.05))
    assert result.comprehensiveness["exact"] > result.comprehensiveness["attention"] + 1
    assert result.comprehensiveness["gradient"] > result.comprehensiveness["attention"]
