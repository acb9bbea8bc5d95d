"""What an edit of the model moved, as the page says it, against runs that `regard.intervene` edited."""

from functools import partial

import pytest

from views.html.page_encoders import edit_of
from views.html.page_runs import head, no_edit, packed, page_run, shape_of
from weights import LOAN, RIVER

LAYER, HEAD, QUERY, KEY = 2, 5, 11, 9
HEADS = [(layer, number) for layer in range(LAYER, 6) for number in range(12)]
edit = partial(edit_of, LAYER, HEAD)
BLOCKED = edit(QUERY, mask={str(KEY): False})


def blocked(heads):
    heads.block(queries=[QUERY], keys=[KEY])


def ablated(heads):
    heads.ablate("zero")


def movement_of(node, before, after, *edits, second=None):
    """The page's movement from one run to another."""
    options = {**shape_of(before.recording), "edits": edits, "secondVector": second}
    return node("moved", {"before": before.to_json(), "after": after.to_json(), "options": options})


def moved(node, change, edit, second=None):
    """The page's movement, the runs before and after, and the change of each head."""
    before, after = page_run(RIVER), page_run(RIVER, edit=head(LAYER, HEAD, change))
    movement = movement_of(node, before, after, edit, second=second)
    changes = {(change["attention"], change["head"]): change for change in movement["heads"]}
    assert list(changes) == HEADS
    return movement, before, after, changes


def weights(run, layer, number):
    return run.recording[f"blocks.{layer}.attention"][0, number].double()


def test_each_later_head_has_the_weight_that_changed_most_and_those_beside_the_edited_one_none(node):
    _, before, after, changes = moved(node, blocked, BLOCKED)
    for (layer, number), change in changes.items():
        if layer > LAYER:
            old, new = (weights(run, layer, number) for run in (before, after))
            assert change["before"] == pytest.approx(float(old[change["query"], change["key"]]), abs=1e-5)
            assert change["after"] == pytest.approx(float(new[change["query"], change["key"]]), abs=1e-5)
            assert abs(change["after"] - change["before"]) == pytest.approx(float((new - old).abs().max()), abs=2e-5)
        elif number != HEAD:
            assert change["before"] == change["after"]


def test_an_edited_row_has_its_weights_after_the_edit(node):
    _, before, _, changes = moved(node, blocked, BLOCKED)
    change, old = changes[LAYER, HEAD], weights(before, LAYER, HEAD)[QUERY]
    new = old.clone()
    new[KEY] = 0
    new /= new.sum()
    assert (change["query"], change["key"]) == (QUERY, int((new - old).abs().argmax()))
    assert change["before"] == pytest.approx(float(old[change["key"]]), abs=1e-5)
    assert change["after"] == pytest.approx(float(new[change["key"]]), abs=1e-5)


def test_an_edit_of_all_rows_counts_in_all_rows(node):
    _, before, _, changes = moved(node, lambda heads: heads.scale(0.5), edit(temperature=2))
    change, old = changes[LAYER, HEAD], weights(before, LAYER, HEAD)
    new = old.sqrt() / old.sqrt().sum(-1, keepdim=True)
    assert abs(change["after"] - change["before"]) == pytest.approx(float((new - old).abs().max()), abs=2e-5)


@pytest.mark.parametrize("row", [{}, {"mask": {"0": False}}])
def test_a_head_that_is_off_changes_later_heads_and_not_its_own_weights_whatever_else_is_edited(node, row):
    *_, changes = moved(node, ablated, edit(off=True, **row))
    largest = [
        max(abs(change["after"] - change["before"]) for (at, _), change in changes.items() if at == layer)
        for layer in range(LAYER, 6)
    ]
    assert largest[0] == 0
    assert min(largest[1:]) > 1e-3


def test_the_vectors_movement_is_its_cosine_distance_and_new_similarity(node):
    second = page_run(LOAN).vector
    movement, before, after, _ = moved(node, ablated, edit(off=True), packed(second))
    assert movement["cosine"] == pytest.approx(float(before.vector @ after.vector), abs=1e-6)
    assert movement["distance"] == pytest.approx(float((before.vector - after.vector).norm()), abs=1e-6)
    assert movement["similarity"] == pytest.approx(float(after.vector @ second), abs=1e-6)
    assert movement["cosine"] < 0.9999


def test_without_a_second_text_there_is_no_similarity(node):
    movement, *_ = moved(node, blocked, BLOCKED)
    assert (movement["similarity"], movement["next"], movement["notes"]) == (None, None, [])


@pytest.mark.parametrize(
    ("change", "edit"),
    [
        (blocked, BLOCKED),
        (ablated, edit(off=True)),
        (lambda heads: heads.block(keys=[KEY]), edit(removedKeys=[KEY])),
        (lambda heads: heads.scale(0.5), edit(temperature=2)),
    ],
    ids=["an edge", "a head", "a key", "a temperature"],
)
def test_edits_go_through_the_page_model_as_through_regard(node, page_encoder, change, edit):
    before, after = (page_run(RIVER, page_encoder.model, each) for each in (no_edit, head(LAYER, HEAD, change)))
    argument = {"model": page_encoder.name, "ids": before.ids, "edits": [edit], "options": before.options()}
    found, expected = node("movedModel", argument), movement_of(node, before, after, edit)
    assert found["movement"]["distance"] == pytest.approx(float((before.vector - after.vector).norm()), abs=1e-4)
    for ours, theirs in zip(found["movement"]["heads"], expected["heads"], strict=True):
        changes = [each["after"] - each["before"] for each in (ours, theirs)]
        assert abs(changes[0]) == pytest.approx(abs(changes[1]), abs=1e-4)
    assert all(attention["verified"] for attention in found["facts"]["attentions"])


def test_of_two_edits_of_a_row_the_later_counts(node):
    """As in the model: all rows of a key, and then one row as it was."""
    run = page_run(RIVER)
    edits = [edit(mask={"0": False}), *(edit(query) for query in range(len(run.tokens)))]
    assert all(change["before"] == change["after"] for change in movement_of(node, run, run, *edits)["heads"])
