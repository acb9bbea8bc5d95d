"""Recipes: the definition's choices give the definition, and another choice changes nothing before its step."""

import pytest
import torch

import regard
from regard import mask
from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.course_numbers import example_settings
from regard.check.recipes.case import Case, causal
from regard.check.recipes.recipe import SLOTS, RecipeCache, definition, first_step
from regard.check.recipes.state import STEP_NAMES
from regard.check.search.cases import drawn

RECIPES = [choices for known in MISTAKES.values() for choices in known.recipe]


def same(one, other):
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-12, equal_nan=True)


def qkv():
    return tuple(drawn(2, 3, 5, 4, seed=seed) for seed in range(3))


@pytest.mark.parametrize("kind", [None, mask.causal()], ids=["no mask", "causal"])
def test_without_a_choice_it_is_the_definition(kind):
    mine = definition(Case(*qkv(), may=None if kind is None else causal(5, 5)))
    theirs = regard.steps(*qkv(), mask=kind)
    for name in ("scores", "weights", "output"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["causal", "out", "context", "groups", "bias"])
def test_no_step_before_the_first_that_a_choice_may_change_differs(name):
    case = example_settings()[name].case
    right, recipes = definition(case), RecipeCache(case)
    for choices in RECIPES:
        state, step = recipes.state(choices), first_step(choices)
        if state is None or step == "scores":  # q, k and v may have changed places before them
            continue
        for earlier in STEP_NAMES[: STEP_NAMES.index(step)]:
            assert same(getattr(state, earlier), getattr(right, earlier)), (choices, earlier)


def test_what_is_computed_anew_is_what_is_kept():
    case = example_settings()["heads, causal"].case
    for choices in RECIPES:
        for slot in choices:
            kept, anew = RecipeCache(case).state(choices), RecipeCache(case).uncached(choices, slot)
            assert (kept is None) == (anew is None), choices
            assert kept is None or same(kept.last, anew.last), choices


def test_a_choice_that_the_call_does_not_offer_gives_nothing():
    function = RecipeCache(Case(*qkv()))
    assert function.state({"sources": "k-x"}) is None, "nothing is made of a sequence"
    assert function.state({"split": "view"}) is None, "there are no heads to split"
    assert function.state({"seen": "inverted"}) is None, "there is no mask"
    assert function.state({"softmax": "sinks"}) is None, "there are no sinks"


def test_the_columns_of_a_view_are_cut_into_heads_with_the_tokens_last():
    case = example_settings()["heads"].case
    projected = case.x @ case.weights.q.T
    wanted = projected.mT.flatten(1).unflatten(1, (case.weights.heads, projected.shape[1], -1))
    torch.testing.assert_close(RecipeCache(case).state({"split": "columns"}).q, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("choice", "partners"), [("rotary-pairs", [1, 0, 3, 2]), ("rotary-halves", [2, 3, 0, 1])])
def test_a_query_is_turned_by_pairs_or_by_halves(choice, partners):
    case = Case(*qkv())
    turned = RecipeCache(case).state({"rounds": choice}).q
    rate = torch.tensor([1.0 if 0 in pair else 0.01 for pair in enumerate(partners)], dtype=torch.float64)
    sign = torch.tensor([-1.0 if channel < partner else 1.0 for channel, partner in enumerate(partners)])
    angle = torch.arange(5)[:, None] * rate
    wanted = case.q * angle.cos() + sign * case.q[..., partners] * angle.sin()
    torch.testing.assert_close(turned, wanted, rtol=0, atol=1e-12)


def test_each_head_has_a_sink_of_its_own():
    sinks = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    state = RecipeCache(Case(*qkv(), extra={"sinks": sinks})).state({"softmax": "sinks"})
    exponentials = state.masked.exp()
    wanted = exponentials / (exponentials.sum(-1, keepdim=True) + sinks.exp()[:, None, None])
    torch.testing.assert_close(state.weights, wanted, rtol=0, atol=1e-12)


def test_every_choice_is_of_a_slot():
    assert {slot for choices in RECIPES for slot in choices} <= set(SLOTS)
