"""A setting that says where the norms of blocks stand, in a stack of blocks."""

from __future__ import annotations

from property_cases import of_module
from property_cases.norm_setting_cases import Stack
from regard.check.properties.analyze import analyze


def test_a_stack_may_have_a_norm_at_its_end_on_one_side_of_a_setting() -> None:
    analysis = analyze(of_module(Stack))
    assert (analysis.num_attentions, analysis.violations) == (2, [])
