"""The facts that the page's own model makes of a text, against those that Python makes of the same queries and keys."""

import re
from base64 import b64decode
from functools import cache

import pytest
import torch

from regard.lens import AttentionMap
from regard.lens.maps.head_types import detect_heads
from regard.views.html.draft import write_page
from regard.views.html.facts import THUMBNAIL_CELLS, MapStatistics, PageTexts, attention_facts
from regard.views.html.page import build_page
from views.html.page_runs import PageRun, packed, page_run, tensors, unpacked
from views.recordings import recorded
from weights import LOAN, PIZZA, RIVER, minilm

REPEATED = " ".join(["a river, the bank; it ran"] * 5)
TEXTS = {"river": RIVER, "repeated": REPEATED, "two tokens": "", "surrogates": "🙂 naïve café, 日本語 it's"}
MADE = {
    # Delimiters with the space before them and at the beginning; a token beside itself, and others that differ.
    "made": [".", "Ġthe", "▁,", "the", "the", " the", ".", "a", "b", "a", "the", "b", ";", "c", "a", "a", "d"],
    "no delimiter but the first": [".", "a", "b", "c", "a", "d", "e"],
    "few repeated": ["a", "b", "c", "d", "e", "f", "g", "a", "b", "c"],
}
"""Tokens of random heads: real ones are of a few types."""

LONG = " ".join([RIVER, PIZZA, LOAN, REPEATED] * 9)
CLS = 101


@cache
def run(name):
    """What the model does with a text, with a token alone, or with the first tokens of a long text."""
    if name in MADE:
        return made_run(MADE[name])
    if name == "one token":
        return page_run([CLS])
    if name == "512 tokens":
        return page_run(minilm().tokenizer.encode(LONG).ids[:512])
    return page_run(TEXTS[name])


def made_run(tokens, *maps):
    """Of some maps; by default three layers of random heads, some of which look back by a fixed distance."""
    n = len(tokens)
    if not maps:
        torch.manual_seed(n)
        q, k = 2 * torch.randn(3, 8, n, n), torch.randn(3, 8, n, n)
        for back in range(1, n):
            q[1, back % 8] = torch.eye(n) * (7 if back % 3 else 3) + torch.rand(n, n)
            k[1, back % 8] = torch.eye(n).roll(back, 0)
        maps = [AttentionMap(q[i : i + 1], k[i : i + 1], None, scale=1.0) for i in range(3)]
    made = PageRun(recorded(*maps), [], tokens, torch.zeros(1))
    made.recording.label(tokens)
    return made


def answer_of(node, made, *, run=None, **options):
    """What the page makes of a run, or of a changed one."""
    return node("facts", {"run": run or made.to_json(), "options": made.options() | options})


@pytest.fixture(scope="module", params=[*TEXTS, *MADE, "one token", pytest.param("512 tokens", marks=pytest.mark.more)])
def case(request, node):
    """A run, the facts that the page makes of it, and those of Python."""
    made, texts = run(request.param), PageTexts()
    expected = [attention_facts(made.recording, path, "self", 0, texts) for path in made.recording]
    return made, answer_of(node, made), expected


def heads_of(case):
    """Of each head the page's facts and Python's."""
    _, answer, expected = case
    for ours, theirs in zip(answer["facts"]["attentions"], expected, strict=True):
        yield from zip(ours["heads"], theirs.facts["heads"], strict=True)


def test_head_types_are_pythons(case):
    for ours, theirs in heads_of(case):
        # Of two tokens the one before is the first: both types have the same score, and rounding to 32 bits chooses.
        types, scores = (ours["head_type"], theirs["head_type"]), theirs["head_type_scores"]
        assert types[0] == types[1] or abs(scores[types[0]] - scores[types[1]]) < 1e-5


def test_scores_entropy_and_distance_are_pythons(case):
    for ours, theirs in heads_of(case):
        assert ours["head_type_scores"] == pytest.approx(theirs["head_type_scores"], abs=1e-4)
        for name in ("entropy", "distance", "first_token_share"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)


def test_the_strongest_pairs_are_pythons(case):
    for ours, theirs in heads_of(case):
        pairs = [{(p["query"], p["key"]): p["weight"] for p in head["pairs"]} for head in (ours, theirs)]
        # Of two pairs with about the same weight either may be the last.
        least = min(pairs[1].values(), default=0) + 1e-5
        sure = [{pair for pair, weight in each.items() if weight > least} for each in pairs]
        assert sure[0] == sure[1]
        assert sorted(pairs[0].values()) == pytest.approx(sorted(pairs[1].values()), abs=1e-4)
        weights = [p["weight"] for p in ours["pairs"]]
        assert weights == sorted(weights, reverse=True)


def test_pooled_maps_are_pythons(case):
    made, answer, _ = case
    for path, heads, facts in zip(made.recording, answer["heads"], answer["facts"]["attentions"], strict=True):
        pooled = MapStatistics(made.recording[path], 0).pooled(THUMBNAIL_CELLS)
        for ours, theirs, head in zip(heads, pooled, facts["heads"], strict=True):
            assert head["max_pooled"] == pytest.approx(float(theirs.max()), abs=1e-5)
            cells = unpacked(ours["pooled"], *theirs.shape)
            assert (cells.sqrt() - theirs.sqrt()).abs().max() <= head["max_pooled"] ** 0.5 / 255


def test_nothing_is_rounded(case):
    made, answer, _ = case
    for path, heads in zip(made.recording, answer["heads"], strict=True):
        m = made.recording[path]
        for head, numbers in enumerate(heads):
            for name in "qkv":
                t = tensors(m)[name][head]
                assert torch.equal(unpacked(numbers[name], *t.shape), t)


@pytest.mark.parametrize("case", ["river", "two tokens", "one token"], indirect=True)
def test_an_attention_says_what_pythons_says(case):
    _, answer, expected = case
    computed_here = {"verified": True, "computed_here": True, "kernel": "this page"}
    patches = {"query_patches": None, "key_patches": None}
    for ours, theirs in zip(answer["facts"]["attentions"], expected, strict=True):
        known = theirs.facts | computed_here | patches
        assert 0 <= ours["max_error"] < 1e-6
        different = {"heads": [], "kv_heads": [], "max_error": None}
        assert {**ours, **different} == {**known, **different}


def test_an_output_that_the_weights_do_not_give_is_not_verified(node):
    made = run("river")
    changed = made.to_json()
    values = changed["attentions"][4]
    values["output"] = values["v"]
    facts = answer_of(node, made, run=changed)["facts"]
    assert [attention["verified"] for attention in facts["attentions"]] == [True] * 4 + [False, True]


def test_an_output_is_compared_over_the_whole_text(node):
    made = run("repeated")
    changed = made.to_json()
    output = unpacked(changed["attentions"][2]["output"], 12, len(made.tokens), 32)
    output[:, -len(made.tokens) // 3 :] = 0
    changed["attentions"][2]["output"] = packed(output)
    facts = answer_of(node, made, run=changed)["facts"]
    assert [n for n, attention in enumerate(facts["attentions"]) if not attention["verified"]] == [2]


def test_the_first_head_is_that_of_a_recorded_page(case):
    made, answer, _ = case
    assert answer["facts"]["initial"] == build_page(made.recording).facts["initial"]


@pytest.mark.parametrize("text", ["a . b c , d e . f g", ". , ; ."])
def test_the_first_head_looks_from_word_to_word(node, text):
    """Sharp heads at random: rows of the first token and of delimiters say nothing, where there are words."""
    tokens = text.split()
    torch.manual_seed(1)
    for _ in range(5):
        q, k = 3 * torch.randn(2, 1, 12, len(tokens), 8)
        made = made_run(tokens, AttentionMap(q, k, None, scale=8**-0.5))
        initial = answer_of(node, made)["facts"]["initial"]
        assert initial["head"] == build_page(made.recording).facts["initial"]["head"]


def test_each_type_is_found(node):
    """MiniLM has few types: here each head attends to one key a query, as its type says, or to all alike."""
    tokens = ["the", "river", "ran", ".", "the", "river", "ran", ".", "the", "river"]
    n = len(tokens)
    targets = {
        "previous token": [max(query - 1, 0) for query in range(n)],
        "attention sink": [0] * n,
        "same token": list(range(n)),
        "induction": [0, 2, 1, 0, *range(1, n - 3)],
        "delimiter": [3] * n,
    }
    k = torch.stack([torch.nn.functional.one_hot(torch.tensor(keys), n).T.float() for keys in targets.values()])
    q = torch.cat([torch.eye(n).expand_as(k) * 40, torch.zeros(1, n, n)])
    made = made_run(tokens, AttentionMap(q[None], torch.cat([k, k[:1]])[None], None, scale=1.0))
    names = [head["head_type"] for head in answer_of(node, made)["facts"]["attentions"][0]["heads"]]
    assert names == [*targets, "uniform"]
    assert names == list(detect_heads(made.recording["layers.0"]).names)


def test_tokens_of_another_text_are_refused(node):
    with pytest.raises(AssertionError, match="1 tokens for a run of 14: give one for each id"):
        answer_of(node, run("river"), tokens=["a"])


@pytest.fixture
def open_answer(node, open_page, tmp_path):
    """A function that opens the page of an answer in a view."""
    answer, path = answer_of(node, run("river")), tmp_path / "answer.html"
    path.write_text(write_page(answer["facts"], b64decode(answer["numbers"])).text, encoding="utf-8")
    return lambda view: open_page(path, {"view": view})


def test_a_page_of_an_answer_says_how_it_was_computed(open_answer):
    page = open_answer("sentence")
    assert re.fullmatch(
        r"Computed in this page, nothing rounded\. Verified: weights @ v differs from the model's own output by "
        r"\d\.\de-\d of its largest value\.",
        page.inner_text(".proof"),
    )
    assert "doubt" not in page.get_attribute(".proof", "class")


def test_the_arithmetic_says_how_it_was_computed(open_answer):
    page = open_answer("arithmetic")
    text = page.inner_text("main")
    assert "The model in this page computed these queries, keys and values in 32 bits. Nothing is rounded" in text
    assert "That is rounding: these queries, keys and values, in these steps, are what the model computes." in text
    assert "to keep it small" not in text
