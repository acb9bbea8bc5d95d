"""Effects over HTTP: those of `regard.effect`, with progress, refused by name where they make no sense."""

import time

import pytest

import regard
from server.live_client import effect_question, open_socket, post, raw_post, wait_until
from weights import LOAN, RIVER, minilm

TEXT = "the river bank"
OTHER = "the loan, bank"
LONG = "the river bank " * 12


def parts(answer):
    return {part["name"]: part["effect"] for part in answer["parts"]}


@pytest.mark.parametrize(
    ("over", "ablation", "source"),
    [
        *((over, "zero", None) for over in ("heads", "layers", "tokens", "edges")),
        ("heads", "resample", "the man"),
        ("heads", "mean", OTHER),
    ],
)
def test_effects_are_those_of_regard_effect(decoder_server, small_decoder, over, ablation, source):
    question = effect_question(TEXT, over=over, ablation=ablation, source=source)
    answer = post(decoder_server, "effects", question).answer
    options = {"ablation": ablation, "source": source and [source], "method": "exact", "progress": False}
    expected = regard.effect(small_decoder, TEXT, regard.metrics.kl(), over, **options).values.flatten().tolist()
    assert answer["num_parts"] == len(expected)
    assert sorted(parts(answer).values()) == pytest.approx(sorted(expected), rel=1e-4, abs=1e-9)
    assert answer["baseline"] == 0


def test_the_parts_name_their_places_in_the_facts(decoder_server):
    answer = post(decoder_server, "effects", effect_question(TEXT)).answer
    places = [(part["attention"], part["head"]) for part in answer["parts"]]
    assert places == [(a, h) for a in range(3) for h in range(6)]


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


@pytest.fixture
def slow(small_decoder, serve):
    """A server whose model takes its time, and a list that grows with each forward pass."""
    passes = []
    with small_decoder.model.register_forward_pre_hook(lambda *_: passes.append(time.sleep(0.1))):
        yield serve(small_decoder), passes


def test_effects_grow_while_they_are_computed(slow):
    answered = post(slow[0], "effects", effect_question(LONG))
    progress = [data for name, data in answered.events if name == "progress"]
    done = [data["done"] for data in progress]
    assert done == sorted(set(done))
    assert len(done) >= 2
    assert {data["total"] for data in progress} == {18}
    for data in progress:
        known = [part for part in data["sofar"]["parts"] if part["effect"] is not None]
        assert len(known) == data["done"]
        assert parts(data["sofar"]).items() <= parts(answered.answer).items()


def test_where_the_client_leaves_no_further_forward_pass_is_run(slow):
    server, passes = slow
    with open_socket(server, raw_post(server, "effects", effect_question(LONG))) as connection:
        received = b""
        while b"progress" not in received:
            received += connection.recv(2**16)
    wait_until(lambda: server._queue.length == 0, "the end of the effects")
    assert len(passes) < 9
