"""Effects over HTTP: those of `regard.effect`, with progress, refused by name where they make no sense."""

from __future__ import annotations

import json

import pytest

import regard
from regard.pretrained import Pretrained
from regard.server.effect_answers import PROGRESS_SECONDS, answer_effects
from regard.server.limits import Limits
from regard.server.pretrained_model import PretrainedModel
from regard.server.questions import read_effect_question
from regard.server.queueing import Task, TaskCancelledError
from server.live_client import effect_question, post
from weights import LOAN, RIVER, minilm

TEXT = "the river bank"
OTHER = "the loan, bank"


def parts(answer):
    return {part["name"]: part["effect"] for part in answer["parts"]}


@pytest.mark.parametrize("over", ["heads", "layers", "tokens"])
def test_effects_are_those_of_regard_effect(decoder_server, small_decoder, over):
    answer = post(decoder_server, "effects", effect_question(TEXT, over=over)).answer
    expected = regard.effect(small_decoder, TEXT, regard.metrics.kl(), over, method="exact", progress=False)
    assert answer["num_parts"] == expected.values.numel()
    assert sorted(parts(answer).values()) == pytest.approx(sorted(expected.values.flatten().tolist()), rel=1e-4)
    assert answer["baseline"] == 0


def test_effects_over_edges_are_of_every_token_and_layer(decoder_server):
    answer = post(decoder_server, "effects", effect_question(TEXT, over="edges")).answer
    assert answer["num_parts"] == 3 * 5


def test_the_parts_name_their_places_in_the_facts(decoder_server):
    answer = post(decoder_server, "effects", effect_question(TEXT)).answer
    assert [(part["attention"], part["head"]) for part in answer["parts"]] == [
        (a, h) for a in range(3) for h in range(6)
    ]


@pytest.mark.more
def test_tokens_of_a_metric_are_looked_up(smollm2_server):
    question = effect_question("Mary and John went to", over="tokens", metric="logit_difference", tokens=["the", "a"])
    answer = post(smollm2_server, "effects", question).answer
    assert answer["metric"] == "logit_difference('the', 'a')"
    assert len(answer["parts"]) == answer["num_parts"] == 5


def test_similarity_of_two_texts_is_a_metric(minilm_server):
    answer = post(minilm_server, "effects", effect_question(RIVER, LOAN, over="layers", metric="similarity")).answer
    vectors = minilm().embed([RIVER, LOAN])
    assert answer["baseline"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    assert len(answer["parts"]) == 6


def test_outputs_of_another_sentence_take_the_place_of_a_heads(decoder_server, small_decoder):
    question = effect_question(TEXT, ablation="resample", source="the man")
    answer = post(decoder_server, "effects", question).answer
    expected = regard.effect(
        small_decoder,
        TEXT,
        regard.metrics.kl(),
        ablation="resample",
        source=["the man"],
        method="exact",
        progress=False,
    )
    assert sorted(parts(answer).values()) == pytest.approx(
        sorted(expected.values.flatten().tolist()), rel=1e-4, abs=1e-9
    )


def test_their_mean_too(decoder_server):
    assert post(decoder_server, "effects", effect_question(TEXT, ablation="mean", source=OTHER)).names[-1] == "answer"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"metric": "cosine"}, "metric"),
        ({"over": "tokens", "ablation": "mean"}, "ablation"),
        ({"over": "edges", "ablation": "mean", "source": OTHER}, "ablation"),
        ({"source": OTHER}, "source"),
        ({"ablation": "resample"}, "source"),
        ({"ablation": "resample", "source": "the man bank"}, "source"),
        ({"ablation": "resample", "source": ""}, "source"),
        ({"metric": "log_prob", "tokens": ["the river of no return"]}, "tokens"),
        ({"texts": [" "]}, "texts[0]"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_name(decoder_server, changes, name):
    assert post(decoder_server, "effects", effect_question(TEXT, **{"texts": [TEXT], **changes})).error["name"] == name


def test_similarity_needs_two_texts(minilm_server):
    assert post(minilm_server, "effects", effect_question(RIVER, metric="similarity")).error["name"] == "texts"


def asked(pretrained: Pretrained, emit, **changes) -> tuple[PretrainedModel, object, Limits, Task]:
    """What the computing thread gets."""
    limits = Limits()
    question = read_effect_question(effect_question(TEXT, **changes), limits)
    task = Task(lambda task: None, emit, lambda: None)
    return PretrainedModel(pretrained, limits, (), None), question, limits, task


def test_effects_grow_while_they_are_computed(small_decoder, monkeypatch):
    """A forward pass has few rows here, as it has of long texts; progress is told after each."""
    monkeypatch.setattr("regard.server.effect_answers.TOKENS_PER_FORWARD", 20)
    monkeypatch.setattr("regard.server.effect_answers.PROGRESS_SECONDS", 0.0)
    events = []
    answer = answer_effects(
        *asked(small_decoder, lambda name, data: events.append((name, json.loads(json.dumps(data)))))
    )
    done = [data["done"] for _, data in events]
    assert done == sorted(set(done))
    assert len(done) >= 3
    assert {data["total"] for _, data in events} == {18}
    for _, data in events:
        known = [part for part in data["sofar"]["parts"] if part["effect"] is not None]
        assert len(known) == data["done"]
        assert parts(data["sofar"]).items() <= parts(answer).items()
    assert PROGRESS_SECONDS > 0


def test_a_cancelled_question_stops_after_the_forward_pass_that_runs(small_decoder, monkeypatch):
    monkeypatch.setattr("regard.server.effect_answers.TOKENS_PER_FORWARD", 20)
    monkeypatch.setattr("regard.server.effect_answers.PROGRESS_SECONDS", 0.0)
    arguments = asked(small_decoder, lambda name, data: setattr(arguments[-1], "cancelled", True))
    with pytest.raises(TaskCancelledError):
        answer_effects(*arguments)
