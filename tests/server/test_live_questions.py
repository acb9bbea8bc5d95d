"""Requests of every other shape: refused by name, never an error of the server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.live_client import edit, effect_question, generate_question, open_socket, post, raw_post, read_all, request

TEXT = "the bank"
GOOD_EDIT = edit(0, 0, 1, scores={"0": 1.5}, scale=0.5, temperature=2, mask={"1": False}, removedKeys=[0])


def edited(**changes: object) -> dict[str, object]:
    return {"texts": [TEXT], "edits": [{**GOOD_EDIT, **changes}]}


WRONG = [
    ("ask", [], "body"),
    ("ask", None, "body"),
    ("ask", {"edits": []}, "texts"),
    ("ask", {"texts": TEXT, "edits": []}, "texts"),
    ("ask", {"texts": [], "edits": []}, "texts"),
    ("ask", {"texts": [TEXT] * 3, "edits": []}, "texts"),
    ("ask", {"texts": [TEXT, 3], "edits": []}, "texts[1]"),
    ("ask", {"texts": ["a" * 20_001], "edits": []}, "texts[0]"),
    ("ask", {"texts": [TEXT], "edits": {}}, "edits"),
    ("ask", {"texts": [TEXT], "edits": [GOOD_EDIT] * 65}, "edits"),
    ("ask", {"texts": [TEXT], "edits": [], "more": 1}, "body"),
    ("ask", edited(attention=-1), "edits[0].attention"),
    ("ask", edited(attention=1.5), "edits[0].attention"),
    ("ask", edited(attention=True), "edits[0].attention"),
    ("ask", edited(head="0"), "edits[0].head"),
    ("ask", edited(query=[]), "edits[0].query"),
    ("ask", edited(off=None), "edits[0].off"),
    ("ask", edited(edits=[]), "edits[0].edits"),
    ("ask", edited(edits={"scale": "1"}), "edits[0].edits.scale"),
    ("ask", edited(edits={"scale": 1e7}), "edits[0].edits.scale"),
    ("ask", edited(edits={"temperature": 0}), "edits[0].edits.temperature"),
    ("ask", edited(edits={"scores": {"x": 1}}), "edits[0].edits.scores"),
    ("ask", edited(edits={"scores": {"0": None}}), "edits[0].edits.scores[0]"),
    ("ask", edited(edits={"mask": {"0": 1}}), "edits[0].edits.mask[0]"),
    ("ask", edited(edits={"mask": [True]}), "edits[0].edits.mask"),
    ("ask", edited(edits={"removedKeys": [-1]}), "edits[0].edits.removedKeys[0]"),
    ("ask", edited(edits={"softcap": 1}), "edits[0].edits"),
    ("effects", effect_question(TEXT, over="words"), "over"),
    ("effects", effect_question(TEXT, metric="loss"), "metric"),
    ("effects", effect_question(TEXT, metric=["kl"]), "metric"),
    ("effects", effect_question(TEXT, metric="log_prob"), "tokens"),
    ("effects", effect_question(TEXT, tokens=["a"]), "tokens"),
    ("effects", effect_question(TEXT, ablation=0), "ablation"),
    ("effects", effect_question(TEXT, source=["a"]), "source"),
    ("generate", generate_question(TEXT, 0), "max_new_tokens"),
    ("generate", generate_question(TEXT, 257), "max_new_tokens"),
    ("generate", generate_question(TEXT, 1, temperature=-1), "temperature"),
    ("generate", generate_question(TEXT, 1, seed=0.5), "seed"),
    ("generate", generate_question(TEXT, 1, show=None), "show"),
    ("generate", generate_question(TEXT, 1, show={"attention": 0}), "show.head"),
    ("generate", generate_question(7, 1), "text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("path", "question", "name"), WRONG)
def test_a_wrong_field_is_refused_by_its_name(decoder_server, path, question, name):
    answered = post(decoder_server, path, question)
    assert (answered.status, answered.json["name"]) == (400, name), answered.json


def test_a_refusal_says_what_was_expected_and_what_came(decoder_server):
    message = post(decoder_server, "ask", edited(head="first"))
    assert message.json["message"] == "edits[0].head: a whole number, 0 to 1000000; got 'first'"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"texts": NaN}', b"[" * 100_000, b"1" * 5_000, b'{"a": Infinity}', b'"\\ud800"', b"nul"],
)
def test_what_is_no_json_is_refused(decoder_server, body):
    answered = request(decoder_server, "POST", "ask", body)
    assert (answered.status, answered.json["name"]) == (400, "body")


@pytest.mark.parametrize(
    ("path", "question", "field"),
    [
        ("ask", {"texts": [TEXT, "a \ud83d b"], "edits": []}, "texts[1]"),
        ("effects", effect_question(TEXT, ablation="resample", source="\udc00"), "source"),
        ("effects", effect_question(TEXT, metric="log_prob", tokens=["\ud800"]), "tokens[0]"),
        ("generate", generate_question("\ud800", 1), "text"),
    ],
)
def test_half_a_character_is_refused_by_the_name_of_its_text(decoder_server, path, question, field):
    answered = post(decoder_server, path, question)
    assert (answered.status, answered.json["name"]) == (400, field)
    assert "lone surrogate" in answered.json["message"]


def test_whole_numbers_may_be_written_as_javascript_does(decoder_server):
    assert post(decoder_server, "ask", edited(attention=1.0)).names[-1] == "answer"


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ({"texts": [""], "edits": []}, "texts[0]"),
        ({"texts": [TEXT, " \n"], "edits": []}, "texts[1]"),
        ({"texts": ["the " * 100], "edits": []}, "texts[0]"),
        (edited(attention=3), "edits[0].attention"),
        (edited(head=6), "edits[0].head"),
        (edited(query=60), "edits[0].query"),
        (edited(edits={"removedKeys": [50]}), "edits[0].edits"),
    ],
)
def test_what_only_the_model_knows_is_refused_by_name_too(decoder_server, question, name):
    assert post(decoder_server, "ask", question).error["name"] == name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["ask", "effects", "generate"]), json_values)
def test_json_of_any_shape_is_refused_and_never_a_500(decoder_server, path, question):
    assert post(decoder_server, path, question).status == 400


FIELDS = {
    "ask": {"texts": [TEXT], "edits": [GOOD_EDIT]},
    "effects": effect_question(TEXT),
    "generate": generate_question(TEXT, 1),
}


@given(st.sampled_from([(path, field) for path, fields in FIELDS.items() for field in fields]), json_values)
def test_any_value_of_any_field_gets_an_answer_or_a_named_refusal(decoder_server, place, value):
    path, field = place
    answered = post(decoder_server, path, {**FIELDS[path], field: value})
    if answered.status == 200:
        name, data = answered.events[-1]
        assert name == "answer" or field in data["name"], data
    else:
        assert (answered.status, field in answered.json["name"]) == (400, True), answered.json


@pytest.mark.parametrize("header", [True, False])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(decoder_server, header):
    body = json.dumps({"texts": ["a" * 300_000], "edits": []}).encode()
    headers = {} if header else {"Transfer-Encoding": "chunked"}
    sent = body if header else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    try:
        answered = request(decoder_server, "POST", "ask", sent, headers)
    except ConnectionError:  # the server closed while the body was on its way
        answered = None
    assert answered is None or (answered.status, answered.json["name"]) == (413, "body")
    assert post(decoder_server, "ask", FIELDS["ask"]).names[-1] == "answer"


@pytest.mark.parametrize(("count", "status"), [(10_000, 200), (10_001, 400)])
def test_ten_thousand_tokens_are_refused_by_name(decoder_server, count, status):
    answered = post(decoder_server, "ask", {"texts": ["a " * count], "edits": []})
    error = answered.error if status == 200 else answered.json
    assert (answered.status, error["name"]) == (status, "texts[0]")
    assert "tokens, and" in error["message"] or "characters, and" in error["message"]


@pytest.mark.more
def test_more_tokens_than_a_page_takes_are_refused_although_the_model_could_read_them(smollm2_server):
    answered = post(smollm2_server, "ask", {"texts": ["the " * 2_000], "edits": []})
    message = "the text has 2,001 tokens, and this page takes 1,024 at most: shorten it"
    assert answered.error == {"message": message, "name": "texts[0]"}


def test_a_content_length_that_is_no_number_does_not_stop_the_server(decoder_server):
    data = raw_post(decoder_server, "ask", FIELDS["ask"]).replace(b"Content-Length: ", b"Content-Length: x")
    with open_socket(decoder_server, data) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 400")
    assert post(decoder_server, "ask", FIELDS["ask"]).names[-1] == "answer"
