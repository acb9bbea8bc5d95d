"""The bank of known mistakes: one record each, that fits its recipe."""

import pytest

from regard.check.mistakes.behaviour import BEHAVIOUR
from regard.check.mistakes.block import BLOCK
from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.conventions import CONVENTIONS
from regard.check.mistakes.masks import MASK_FILLING, MASK_READING
from regard.check.mistakes.output import OUTPUT
from regard.check.mistakes.positions import POSITIONS
from regard.check.mistakes.projections import PROJECTIONS
from regard.check.mistakes.scores import SCORES
from regard.check.mistakes.weights import WEIGHTS
from regard.check.properties.catalog import PROPERTIES
from regard.check.recipes.recipe import SLOTS

GROUPS = (PROJECTIONS, MASK_READING, SCORES, MASK_FILLING, WEIGHTS, OUTPUT, BEHAVIOUR, BLOCK, POSITIONS)


def test_no_two_have_the_same_name():
    assert len(MISTAKES) == sum(map(len, GROUPS))
    assert not set(MISTAKES) & set(PROPERTIES)


@pytest.mark.parametrize("known", MISTAKES.values(), ids=MISTAKES)
def test_words_are_of_choices_that_it_has(known):
    choices = {str(next(iter(recipe.values()))) for recipe in known.recipe}
    assert set(known.what) <= choices
    assert not known.what or "{what}" in known.message
    assert all(known.words(recipe) in ("", *known.what.values()) for recipe in known.recipe)


def test_the_words_name_every_role_with_the_mistake():
    words = MISTAKES["untransposed"].what
    assert words["QKV"] == "queries, keys and values are"
    assert words["qKV"] == "keys and values are"
    assert words["qkV"] == "values are"


def test_conventions_are_choices_of_recipes():
    assert all(set(each.recipe) <= set(SLOTS) for each in CONVENTIONS)
