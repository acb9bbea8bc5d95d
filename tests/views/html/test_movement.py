"""What an edit of the model moved, as the page says it, against runs that `regard.intervene` edited."""

from contextlib import contextmanager

import pytest

import regard
from views.html.page_runs import packed, page_run, shape_of
from weights import LOAN, RIVER, minilm

LAYER, HEAD, QUERY, KEY = 2, 5, 11, 9
BLOCKS = tuple(f"blocks.{layer}.attention" for layer in range(6))


@contextmanager
def edited(change, pretrained=None):
    """While the model's head is edited."""
    with regard.intervene((pretrained or minilm()).model, verify=False) as edit:
        change(edit[BLOCKS[LAYER]].heads[HEAD])
        yield


def edit_of(query=None, **edits):
    """`ModelEdit` in static/live/engine.js."""
    off = edits.pop("off", False)
    return {"attention": LAYER, "head": HEAD, "query": query, "off": off, "edits": edits}


def moved(node, change, edit, second=None):
    """The page's movement, and the runs before and after."""
    before = page_run(RIVER)
    with edited(change):
        after = page_run(RIVER)
    options = {**shape_of(before.recording), "edits": [edit], "secondVector": second}
    return node("moved", {"before": before.to_json(), "after": after.to_json(), "options": options}), before, after


def blocked(head):
    head.block(queries=[QUERY], keys=[KEY])


BLOCKED = edit_of(QUERY, mask={str(KEY): False})


def test_each_later_head_has_the_weight_that_changed_most(node):
    movement, before, after = moved(node, blocked, BLOCKED)
    assert [(h["attention"], h["head"]) for h in movement["heads"]] == [
        (a, h) for a in range(LAYER, 6) for h in range(12)
    ]
    for change in movement["heads"]:
        if change["attention"] == LAYER:
            continue
        old, new = (run.recording[BLOCKS[change["attention"]]][0, change["head"]] for run in (before, after))
        assert change["before"] == pytest.approx(float(old[change["query"], change["key"]]), abs=1e-5)
        assert change["after"] == pytest.approx(float(new[change["query"], change["key"]]), abs=1e-5)
        assert abs(change["after"] - change["before"]) == pytest.approx(float((new - old).abs().max()), abs=2e-5)


def test_an_edited_row_has_its_weights_after_the_edit(node):
    movement, before, _ = moved(node, blocked, BLOCKED)
    change = next(h for h in movement["heads"] if (h["attention"], h["head"]) == (LAYER, HEAD))
    old = before.recording[BLOCKS[LAYER]][0, HEAD, QUERY].double()
    new = old.clone()
    new[KEY] = 0
    new /= new.sum()
    assert change["query"] == QUERY
    assert change["key"] == int((new - old).abs().argmax())
    assert change["before"] == pytest.approx(float(old[change["key"]]), abs=1e-5)
    assert change["after"] == pytest.approx(float(new[change["key"]]), abs=1e-5)


def test_an_edit_of_all_rows_counts_in_all_rows(node):
    movement, before, _ = moved(node, lambda head: head.scale(0.5), edit_of(temperature=2))
    change = next(h for h in movement["heads"] if (h["attention"], h["head"]) == (LAYER, HEAD))
    old = before.recording[BLOCKS[LAYER]][0, HEAD].double()
    new = old.sqrt() / old.sqrt().sum(-1, keepdim=True)
    assert abs(change["after"] - change["before"]) == pytest.approx(float((new - old).abs().max()), abs=2e-5)


def test_other_heads_of_the_edited_layer_do_not_change(node):
    movement, *_ = moved(node, blocked, BLOCKED)
    others = [h for h in movement["heads"] if h["attention"] == LAYER and h["head"] != HEAD]
    assert all(h["before"] == h["after"] for h in others)


def test_a_head_that_is_off_changes_later_heads_and_not_its_own_weights(node):
    movement, *_ = moved(node, lambda head: head.ablate("zero"), edit_of(off=True))
    changes = {
        layer: max(abs(h["after"] - h["before"]) for h in movement["heads"] if h["attention"] == layer)
        for layer in range(LAYER, 6)
    }
    assert changes[LAYER] == 0
    assert min(changes[layer] for layer in range(LAYER + 1, 6)) > 1e-3


def test_the_vectors_movement_is_its_cosine_distance_and_new_similarity(node):
    second = page_run(LOAN).vector
    movement, before, after = moved(node, lambda head: head.ablate("zero"), edit_of(off=True), packed(second))
    assert movement["cosine"] == pytest.approx(float(before.vector @ after.vector), abs=1e-6)
    assert movement["distance"] == pytest.approx(float((before.vector - after.vector).norm()), abs=1e-6)
    assert movement["similarity"] == pytest.approx(float(after.vector @ second), abs=1e-6)
    assert movement["cosine"] < 0.9999


def test_without_a_second_text_there_is_no_similarity(node):
    movement, *_ = moved(node, blocked, BLOCKED)
    assert movement["similarity"] is None
    assert (movement["next"], movement["notes"]) == (None, [])


@pytest.mark.parametrize(
    ("change", "edit"),
    [
        (blocked, BLOCKED),
        (lambda head: head.ablate("zero"), edit_of(off=True)),
        (lambda head: head.block(keys=[KEY]), edit_of(removedKeys=[KEY])),
        (lambda head: head.scale(0.5), edit_of(temperature=2)),
    ],
    ids=["an edge", "a head", "a key", "a temperature"],
)
def test_edits_go_through_the_page_model_as_through_regard(node, page_encoder, change, edit):
    before = page_run(RIVER, page_encoder.model)
    with edited(change, page_encoder.model):
        after = page_run(RIVER, page_encoder.model)
    argument = {"model": page_encoder.name, "ids": before.ids, "edits": [edit], "options": before.options()}
    found = node("movedModel", argument)
    options = {**shape_of(before.recording), "edits": [edit], "secondVector": None}
    expected = node("moved", {"before": before.to_json(), "after": after.to_json(), "options": options})
    assert found["movement"]["distance"] == pytest.approx(float((before.vector - after.vector).norm()), abs=1e-4)
    for ours, theirs in zip(found["movement"]["heads"], expected["heads"], strict=True):
        changes = [each["after"] - each["before"] for each in (ours, theirs)]
        assert abs(changes[0]) == pytest.approx(abs(changes[1]), abs=1e-4)
    assert all(attention["verified"] for attention in found["facts"]["attentions"])


def test_a_head_that_is_off_keeps_its_weights_whatever_else_is_edited(node):
    movement, *_ = moved(node, lambda head: head.ablate("zero"), edit_of(off=True, mask={"0": False}))
    change = next(h for h in movement["heads"] if (h["attention"], h["head"]) == (LAYER, HEAD))
    assert change["before"] == change["after"]


def test_of_two_edits_of_a_row_the_later_counts(node):
    """As in the model: all rows of a key, and then one row as it was."""
    before = page_run(RIVER)
    edits = [edit_of(mask={"0": False}), *(edit_of(query) for query in range(len(before.tokens)))]
    options = {**shape_of(before.recording), "edits": edits, "secondVector": None}
    run = before.to_json()
    heads = node("moved", {"before": run, "after": run, "options": options})["heads"]
    assert all(head["before"] == head["after"] for head in heads)
