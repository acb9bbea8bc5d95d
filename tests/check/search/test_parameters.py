"""Parameters that cannot be read yet, and those that are no matrices."""

import pytest
import torch
from torch import nn

from regard.check.search.matrices import StoredParameter, matrices
from regard.check.search.parameters import refuse_lazy
from regard.errors import InputError


def test_a_module_without_sizes_is_refused_with_the_way_out():
    refuse_lazy(nn.Linear(2, 3))
    says = r"its parameter 1\.weight has no size before its first call .*FILE\.py:OBJECT"
    with pytest.raises(InputError, match=says):
        refuse_lazy(nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(3)))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("letter", ["q", "out"])
def test_the_kernel_of_a_convolution_over_several_axes_is_no_matrix(count, letter):
    kernel = StoredParameter("conv.weight", torch.zeros(6, 4, 3, 1, 1), "raw")
    assert list(matrices([(kernel, None)] * count, None, 2, letter)) == []
