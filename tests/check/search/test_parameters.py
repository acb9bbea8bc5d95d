"""Parameters that cannot be read yet."""

import pytest
from torch import nn

from regard.check.search.parameters import refuse_lazy
from regard.errors import InputError


def test_a_module_without_sizes_is_refused_with_the_way_out():
    refuse_lazy(nn.Linear(2, 3))
    says = r"its parameter 1\.weight has no size before its first call .*FILE\.py:OBJECT"
    with pytest.raises(InputError, match=says):
        refuse_lazy(nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(3)))
