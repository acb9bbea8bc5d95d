"""Modules of two sizes that a search computes."""

import pytest
from torch import nn

from regard.check.search.modules import MAX_PARAMETERS, modules_of
from regard.check.search.subject import subject_of
from regard.errors import InputError


class WithATable(nn.Module):
    """Its size hangs on a default that no name explains."""

    def __init__(self, d_model, num_heads, rows=4):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_model)
        self.table = nn.Parameter(self.w_q.weight.new_zeros(rows))


class WithALargeTable(WithATable):
    def __init__(self, d_model, num_heads, rows=MAX_PARAMETERS):
        super().__init__(d_model, num_heads, rows)


def test_a_module_of_very_many_parameters_is_not_searched():
    assert len(modules_of(subject_of(WithATable, {}))[0]) == 2
    with pytest.raises(
        InputError, match=r"20 million parameters .* too many to be searched: give smaller ones by --arg"
    ):
        modules_of(subject_of(WithALargeTable, {}))


class OfAConfig(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w_q = nn.Linear(config.d_model, config["num_heads"] * config.d_head)


def test_a_dict_is_read_as_a_config_that_lacks_what_it_does_not_say():
    made, _ = modules_of(subject_of(OfAConfig, {"config": {"d_model": 12, "d_head": 5}}))
    shapes = [module.w_q.weight.shape for _, module, *_ in made]
    assert all(width == 12 and heads % 5 == 0 for heads, width in shapes)
