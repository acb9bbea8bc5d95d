"""`Movement`: edits of rows go through the model, and what they change is told."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.lens import AttentionMap
from regard.lens.text.run import run
from regard.server import Limits
from regard.server.movement import edited_rows
from regard.server.questions import RowEdits, read_question
from server.live_client import ask, edit
from weights import LOAN, RIVER, minilm

TEXT = "the river bank"
NOTHING = RowEdits({}, None, 1.0, {}, ())


def movement(server, *texts, edits):
    return ask(server, *texts, edits=edits)["movement"]


def recorded(pretrained, text=TEXT):
    recording = run(text, pretrained).recording
    return [recording[path] for path in recording], list(recording)


@torch.no_grad()
def test_a_head_switched_off_moves_the_vector_as_intervene_does(minilm_server):
    model = minilm()
    moved = movement(minilm_server, RIVER, LOAN, edits=[edit(2, 5, off=True)])
    before, other = model.embed([RIVER, LOAN])
    with regard.intervene(model.model) as intervention:
        intervention[list(run(RIVER, model).recording)[2]].heads[5].ablate("zero")
        after = model.embed(RIVER)[0]
    assert moved["cosine"] == pytest.approx(float(F.cosine_similarity(before, after, dim=0)), abs=1e-6)
    assert moved["distance"] == pytest.approx(float((before - after).norm()), abs=1e-6)
    assert moved["similarity"] == pytest.approx(float(after @ other), abs=1e-6)
    assert moved["cosine"] < 0.9999


def test_edits_that_change_nothing_move_nothing(minilm_server):
    scale = 32**-0.5
    moved = movement(minilm_server, RIVER, edits=[edit(0, 0, 3, scale=scale, temperature=1, mask={"2": True})])
    assert moved["cosine"] == pytest.approx(1, abs=1e-6)
    assert max(abs(head["after"] - head["before"]) for head in moved["heads"]) < 1e-5
    assert moved["notes"] == []


@pytest.mark.parametrize(
    "edits",
    [
        {"temperature": 3},
        {"scale": 1.5},
        {"scores": {"1": 4.0}},
        {"mask": {"1": False}},
        {"removedKeys": [0, 2]},
        {"scores": {"0": -2.0}, "scale": 0.7, "temperature": 0.5, "mask": {"2": False}},
    ],
)
@pytest.mark.parametrize("query", [2, None])
@torch.no_grad()
def test_the_model_goes_on_with_the_rows_of_the_definition(decoder_server, small_decoder, edits, query):
    """The logits after an edit are those of a model whose head gives the edited rows of the definition @ v."""
    asked = edit(1, 3, query, **edits)
    (read,) = read_question({"texts": [TEXT], "edits": [asked]}, Limits()).edits
    moved = movement(decoder_server, TEXT, edits=[asked])
    maps, paths = recorded(small_decoder)
    rows = range(maps[1].shape[2]) if query is None else [query]
    weights = edited_rows(maps[1], 3, rows, read.row).float()
    output = weights @ maps[1].v[0, 3 // 3]

    attention = small_decoder.model.get_submodule(paths[1])
    with _put_in(attention, 3, list(rows), output):
        logits = small_decoder.model(torch.tensor([small_decoder.encode(TEXT).ids]))[0, -1]
    after = moved["next"]["after"]
    assert [token["logit"] for token in after] == pytest.approx([float(logits[t["id"]]) for t in after], abs=1e-4)


def _put_in(attention, head, rows, output):
    """Replace rows of a head's output where the output projection reads them."""

    def replaced(module, arguments):
        (x,) = arguments
        x = x.clone()
        width = output.shape[-1]
        x[0, rows, head * width : (head + 1) * width] = output
        return (x,)

    names = ("out_proj", "o_proj", "out")
    projection = next(child for name, child in attention.named_modules() if name.endswith(names))
    return projection.register_forward_pre_hook(replaced)


def test_the_edited_head_shows_its_own_row_and_the_heads_beside_it_nothing(decoder_server, small_decoder):
    moved = movement(decoder_server, TEXT, edits=[edit(1, 3, 2, mask={"1": False})])
    maps, _ = recorded(small_decoder)
    own = next(head for head in moved["heads"] if (head["attention"], head["head"]) == (1, 3))
    assert (own["query"], own["before"]) == (2, pytest.approx(float(maps[1][0, 3, 2, own["key"]]), abs=1e-5))
    beside = [head for head in moved["heads"] if head["attention"] == 1 and head["head"] != 3]
    assert all(head["after"] == pytest.approx(head["before"], abs=1e-6) for head in beside)


def test_heads_of_the_same_and_later_layers_are_told_in_the_models_order(decoder_server):
    heads = movement(decoder_server, TEXT, edits=[edit(1, 0, off=True)])["heads"]
    assert [(head["attention"], head["head"]) for head in heads] == [(a, h) for a in (1, 2) for h in range(6)]


@torch.no_grad()
def test_later_heads_change_as_a_recording_of_the_edited_model_says(decoder_server, small_decoder):
    moved = movement(decoder_server, TEXT, edits=[edit(0, 2, off=True)])
    maps, paths = recorded(small_decoder)
    with regard.intervene(small_decoder.model) as intervention:
        intervention[paths[0]].heads[2].ablate("zero")
        after = run(TEXT, small_decoder).recording
    for head in moved["heads"]:
        if head["attention"] == 0:
            continue
        before_weights = maps[head["attention"]][0, head["head"]]
        after_weights = after[paths[head["attention"]]][0, head["head"]]
        change = (after_weights - before_weights).abs()
        assert abs(head["after"] - head["before"]) == pytest.approx(float(change.max()), abs=1e-5)
        place = head["query"], head["key"]
        assert head["after"] == pytest.approx(float(after_weights[place]), abs=1e-5)


def test_next_tokens_before_and_after_are_the_same_tokens(decoder_server):
    following = movement(decoder_server, TEXT, edits=[edit(0, 0, off=True)])["next"]
    before, after = ({token["id"] for token in following[when]} for when in ("before", "after"))
    assert before == after
    assert len(before) >= 20
    logits = [token["logit"] for token in following["after"]]
    assert logits == sorted(logits, reverse=True)


def test_a_key_that_the_model_itself_masks_is_a_note(decoder_server):
    (note,) = movement(decoder_server, TEXT, edits=[edit(0, 4, 0, mask={"2": True})])["notes"]
    assert note.endswith("head 4: the model itself masks key 2, and no edit can lift that")


def test_an_edit_changes_neither_the_facts_of_its_answer_nor_those_of_the_next(decoder_server):
    edits = [edit(1, 1, 1, temperature=9), edit(0, 0, off=True)]
    before, edited, after = (ask(decoder_server, TEXT, edits=each)["texts"] for each in ([], edits, []))
    assert before == edited == after


def test_one_row_switched_off_gives_zeros_in_that_row_alone(minilm_server):
    edits = (edit(5, 0, query, off=True) for query in (4, None))
    one, every = (movement(minilm_server, RIVER, edits=[each])["distance"] for each in edits)
    assert 0 < one < every


@pytest.mark.parametrize("name", ["softcap", "sinks", "bias"])
def test_rows_of_the_definition_are_those_of_a_map(name):
    """Without edits a row is the map's own; what a model adds to scores is in it."""
    options = {"softcap": {"softcap": 2.0}, "sinks": {"sinks": torch.randn(4)}, "bias": {"bias": torch.randn(4, 5, 5)}}
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    m = AttentionMap(q, k, v, regard.mask.causal(), **options[name])
    for head in range(4):
        torch.testing.assert_close(edited_rows(m, head, range(5), NOTHING).float(), m[0, head].float())


def test_a_row_without_any_key_has_zero_weights():
    m = AttentionMap(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    row = RowEdits({}, None, 1.0, {}, (0, 1, 2))
    assert edited_rows(m, 0, [1], row).tolist() == [[0.0, 0.0, 0.0]]
