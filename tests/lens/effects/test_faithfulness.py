"""Comprehensiveness and sufficiency of rankings, by hand."""

import pytest
import torch

import regard
from lens.effects.toy_decoder import HEADS, LAYERS, TOKENS, ToyDecoder, by_hand, difference, texts
from regard import metrics

METRIC = metrics.logit_difference(3, 5)
SCORES = torch.tensor([[0.3, 0.9, 0.1], [0.8, 0.2, 0.7]])
ORDER = [(0, 1), (1, 0), (1, 2), (0, 0), (1, 1), (0, 2)]


def without(ids, heads):
    """How far the metric falls without some heads."""

    def replace(layer, outputs):
        outputs = outputs.clone()
        outputs[[head for at, head in heads if at == layer]] = 0
        return outputs

    return difference(by_hand(ToyDecoder(), ids)) - difference(by_hand(ToyDecoder(), ids, replace=replace))


def test_the_top_heads_are_removed_together_or_left_alone():
    result = regard.faithfulness(ToyDecoder(), texts(), METRIC, {"mine": SCORES}, fractions=(0.01, 0.5, 1.0))
    for n, top in enumerate((1, 3, 6)):
        removed = sum(without(ids, ORDER[:top]) for ids in texts()) / 2
        kept = sum(without(ids, ORDER[top:]) for ids in texts()) / 2
        assert float(result.removed["mine"][n]) == pytest.approx(removed, abs=1e-10)
        assert float(result.kept["mine"][n]) == pytest.approx(kept, abs=1e-10)
    assert float(result.kept["mine"][2]) == 0.0
    assert result.comprehensiveness["mine"] == pytest.approx(float(result.removed["mine"].mean()))
    assert result.sufficiency["mine"] == pytest.approx(float(result.kept["mine"].mean()))


def test_each_text_may_have_a_ranking_of_its_own():
    both = torch.stack([SCORES, -SCORES])
    result = regard.faithfulness(ToyDecoder(), texts(), METRIC, {"mine": both}, fractions=[0.5])
    first, second = texts()
    expected = (without(first, ORDER[:3]) + without(second, ORDER[:-4:-1])) / 2
    assert float(result.removed["mine"][0]) == pytest.approx(expected, abs=1e-10)


def test_tokens_are_hidden_together():
    result = regard.faithfulness(
        ToyDecoder(), texts(1), METRIC, {"first": -torch.arange(TOKENS).double()}, "tokens", fractions=[0.34]
    )
    blocked = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    blocked[:, :2] = True
    blocked.fill_diagonal_(False)
    ids = texts()[0]
    expected = difference(by_hand(ToyDecoder(), ids)) - difference(
        by_hand(ToyDecoder(), ids, blocked=lambda _: blocked)
    )
    assert float(result.removed["first"][0]) == pytest.approx(expected, abs=1e-10)
    assert result.ablation == "block"


def test_what_has_no_score_comes_last():
    scores = SCORES.clone()
    scores[0, 1] = torch.nan
    result = regard.faithfulness(ToyDecoder(), texts(1), METRIC, {"mine": scores}, fractions=[0.2])
    assert float(result.removed["mine"][0]) == pytest.approx(without(texts()[0], [(1, 0)]), abs=1e-10)


def test_exact_effects_are_more_comprehensive_than_their_reverse():
    effects = regard.effect(ToyDecoder(), texts(), METRIC)
    rankings = {"exact": effects.values, "reverse": -effects.values, "attention": effects.looked_at}
    result = regard.faithfulness(ToyDecoder(), texts(), METRIC, rankings)
    assert result.comprehensiveness["exact"] > result.comprehensiveness["reverse"]
    assert result.sufficiency["exact"] < result.sufficiency["reverse"]
    lines = str(result).splitlines()
    assert "Ablation: zero" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == list(rankings)
    assert all(len(line) == len(lines[1]) for line in lines[2:])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"rankings": {}}, ValueError, "rankings={} holds none"),
        (
            {"rankings": {"a": torch.zeros(3, 2)}},
            ValueError,
            r"'a'\] has the shape \(3, 2\), and \(2, 3\) or \(2, 2, 3\)",
        ),
        ({"rankings": {"a": [1.0]}}, TypeError, r"rankings\['a'\] must be a tensor of scores; got list"),
        ({"over": "edges"}, ValueError, 'rankings are of "heads" or "tokens"'),
        ({"over": "tokens", "ablation": "mean"}, ValueError, "blocks attention and replaces nothing"),
        ({"fractions": [0.0]}, ValueError, "shares of a ranking above 0 and up to 1"),
        ({"fractions": []}, ValueError, "shares of a ranking above 0 and up to 1"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_is_no_ranking_is_refused(change, error, says):
    arguments = {"rankings": {"a": torch.zeros(LAYERS, HEADS)}} | change
    with pytest.raises(error, match=says):
        regard.faithfulness(ToyDecoder(), texts(), METRIC, **arguments)
