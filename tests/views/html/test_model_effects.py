"""Effects that the page's own model computes, against `regard.effect` with the same weights in 8 bits."""

from functools import cache

import pytest
import torch

import regard
from regard.views.html.effects import effect_facts
from regard.views.html.facts import PageTexts
from views.html.page_runs import page_run, shape_of
from weights import LOAN

TEXT = "It's a bank."
SAME_LENGTH = "We had a new boat!"
OVER = ("heads", "layers", "tokens")


@pytest.fixture(scope="session")
def facts_of(node, page_encoder):
    """A function from the options of `effects` to what it yields."""

    @cache
    def call(over, *, text=TEXT, metric="cosine", ablation="zero", second=None, source=None, **options):
        run = page_run(text, page_encoder.model)
        named = {"over": over, "metric": metric, "ablation": ablation, "tokens": run.tokens, **shape_of(run.recording)}
        texts = {name: given and page_encoder.ids(given) for name, given in (("second", second), ("source", source))}
        return node("effectsOf", {"model": page_encoder.name, "ids": run.ids, "options": named, **texts, **options})

    return call


def pythons(model, over, text=TEXT, metric=None, **options):
    """`EffectFacts` of the same by `regard.effect`."""
    metric = metric or regard.metrics.cosine()
    effects = regard.effect(model.model, text, metric, over=over, method="exact", progress=False, **options)
    heads = {path: (n, range(12)) for n, path in enumerate(effects.paths)}
    return effect_facts(effects, heads, PageTexts())


def close(ours, theirs):
    """Whether two lists of parts are the same, each number within 1e-4."""
    assert len(ours) == len(theirs)
    for part, other in zip(ours, theirs, strict=True):
        assert part == pytest.approx(other, abs=1e-4)
    return True


@pytest.mark.parametrize("over", OVER)
def test_effects_are_those_of_regard_effect(facts_of, page_encoder, over):
    last = facts_of(over)[-1]
    expected = pythons(page_encoder, over)
    assert close(last["sofar"]["parts"], expected["parts"])
    assert max(abs(part["effect"]) for part in expected["parts"]) > 1e-3
    others = {"parts": [], "summary": "", "baseline": 0}
    assert {**last["sofar"], **others} == {**expected, **others}
    assert last["sofar"]["baseline"] == 0  # the model as it is has not moved


@pytest.mark.parametrize("over", OVER)
def test_the_sentence_is_pythons(facts_of, page_encoder, over):
    ours, theirs = (facts["summary"].split() for facts in (facts_of(over)[-1]["sofar"], pythons(page_encoder, over)))
    # Word for word; numbers of three digits may differ in the last one.
    assert len(ours) == len(theirs)
    for word, other in zip(ours, theirs, strict=True):
        numbers = [_number(each) for each in (word, other)]
        assert word == other if None in numbers else numbers[0] == pytest.approx(numbers[1], rel=0.011)


def _number(word):
    try:
        return float(word.strip("();.,"))
    except ValueError:
        return None


@pytest.mark.parametrize("digits", [2, 3])
def test_numbers_of_the_sentence_are_written_as_python_writes_them(node, digits):
    numbers = [0.0, 1.0, 0.5, -0.25, 99.96, 100.0, 999.6, 123456.0, 1e-4, 9.996e-5, 1.5e-5, -2e-10, 0.1 + 0.2, 3e20]
    answer = node("shortNumbers", {"numbers": numbers, "digits": digits})
    assert answer == [f"{number:.{digits}g}" for number in numbers]


def test_the_similarity_with_a_second_text_is_a_metric(facts_of, page_encoder):
    with torch.no_grad():
        second = page_encoder.model.model(torch.tensor([page_encoder.ids(LOAN)]))[0].mean(0)

    def similarity(output):
        return torch.cosine_similarity(output[0].mean(0), second, dim=0)

    last = facts_of("layers", metric="similarity", second=LOAN)[-1]["sofar"]
    expected = pythons(page_encoder, "layers", metric=similarity)
    assert last["metric"] == "similarity with the second text"
    assert last["baseline"] == pytest.approx(expected["baseline"], abs=1e-4)
    assert close([part["effect"] for part in last["parts"]], [part["effect"] for part in expected["parts"]])
    assert " of 0." in last["summary"]


@pytest.mark.parametrize(("ablation", "source"), [("mean", None), ("mean", LOAN), ("resample", SAME_LENGTH)])
def test_heads_are_replaced_by_their_mean_or_by_those_of_another_text(facts_of, page_encoder, ablation, source):
    last = facts_of("layers", ablation=ablation, source=source)[-1]["sofar"]
    expected = pythons(page_encoder, "layers", ablation=ablation, source=source)
    assert last["ablation"] == expected["ablation"]
    assert close(last["parts"], expected["parts"])


def test_results_grow_part_by_part(facts_of):
    found = facts_of("layers")
    assert [(each["done"], each["total"]) for each in found] == [(n, 6) for n in range(1, 7)]
    for each in found:
        assert [part["attention"] for part in each["sofar"]["parts"]] == list(range(each["done"]))
        assert each["sofar"]["num_parts"] == each["done"]


def test_effects_may_be_ended_on_their_way(facts_of):
    assert [each["done"] for each in facts_of("heads", until=3)] == [1, 2, 3]


def test_a_token_alone_is_hidden_from_nobody(facts_of):
    """[CLS] and [SEP] see one another; what is between them, nobody needs."""
    parts = facts_of("tokens", text="")[-1]["sofar"]["parts"]
    assert [part["name"] for part in parts] == ["'[CLS]'@0", "'[SEP]'@1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": "edges"}, 'effects over "edges": the model in this page has those over "heads"'),
        ({"over": "heads", "metric": "kl"}, 'the metric "kl": it is "cosine" or "similarity"'),
        ({"over": "heads", "metric": "similarity"}, "compares two texts, and there is one: give a second text"),
        ({"over": "heads", "ablation": "half"}, 'the ablation "half": it is "zero", "mean" or "resample"'),
        ({"over": "heads", "ablation": "resample"}, "takes the outputs of another text: give a source text"),
        ({"over": "heads", "ablation": "resample", "source": LOAN}, "the source has 16 tokens, the text 8: give a"),
        ({"over": "heads", "source": LOAN}, 'the ablation "zero" takes no source text: leave it out'),
    ],
)
def test_what_it_does_not_have_is_refused_by_name(facts_of, options, message):
    with pytest.raises(AssertionError) as error:
        facts_of(**options)
    assert message in str(error.value)
