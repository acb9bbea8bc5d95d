"""How far a recipe is from what was returned."""

import pytest

from regard.check.recipes.case import Case
from regard.check.recipes.recipe import definition
from regard.check.search.cases import drawn
from regard.check.search.observed import Observed


@pytest.mark.parametrize(
    ("size", "apart", "fits"), [(1e6, 1e-12, True), (1e6, 1e-6, False), (1.0, 1e-6, False), (1e-6, 1e-4, True)]
)
def test_it_is_the_same_to_1e_9_of_the_largest_number_or_of_one(size, apart, fits):
    q, k, v = (drawn(2, 3, 5, 4, seed=n) for n in range(3))
    case = Case(q, k, size * v)
    assert Observed(case, definition(case).last * (1 + apart)).fits({}) == fits
