"""The inputs of the search's calls."""

from dataclasses import astuple

from regard.check.search.cases import WIDE, module_case
from regard.check.search.layouts import Way


def test_of_sizes_that_all_differ_no_two_are_the_same():
    sizes = astuple(WIDE)
    assert len(set(sizes)) == len(sizes)


def test_a_module_of_three_sequences_is_given_three_that_differ():
    case = module_case(WIDE, Way("btd", ""), 12, inputs=3)
    assert case.x.shape == (WIDE.batch, WIDE.queries, 12)
    assert case.context.shape == case.values.shape == (WIDE.batch, WIDE.keys, 12)
    assert not case.context.equal(case.values)


def test_a_module_of_two_sequences_is_given_no_values():
    case = module_case(WIDE, Way("btd", ""), 12, inputs=2)
    assert case.context is not None
    assert case.values is None
