"""A matrix of a class of numpy that no line reads makes it wrong, and nothing else that such a class keeps."""

from __future__ import annotations

import pytest

from property_cases.array_matrix_cases import (
    LayerNeverCalled,
    Projected,
    ReadByName,
    SumsOfGradients,
    ValuesOfTheKeys,
    of_arrays,
)
from regard.check import check
from regard.check.properties.modules.unused_parameters import unread_matrix_findings


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Projected, []),
        (SumsOfGradients, []),
        (ReadByName, []),
        (ValuesOfTheKeys, ["u_value"]),
        (LayerNeverCalled, ["to_output"]),
    ],
)
def test_a_drawn_matrix_that_no_line_reads_is_told(kind: type, names: list[str]) -> None:
    assert [each.message.split()[0] for each in unread_matrix_findings(of_arrays(kind))] == names


def test_such_a_class_is_wrong() -> None:
    assert check(ValuesOfTheKeys, args={"d_model": 8}).verdict == "wrong"
