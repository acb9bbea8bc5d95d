"""The numbers that the source documents print (golden.json), and the comparison that printed digits allow."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())
X = torch.tensor(FACTS["X"])
BLOCKED = torch.tensor(FACTS["causal_masks"]["004.bool_mask"]["is"])


def assert_prints(actual: Tensor, expected: list[Any], digits: int = 4) -> None:
    """Every number, rounded to so many decimals, is the printed one."""
    torch.testing.assert_close(
        actual.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0.5 * 10.0**-digits
    )


def assert_as_printed(actual: Tensor, name: str) -> None:
    """The tensor is the one that golden.json holds under this name, in every printed digit."""
    fact = FACTS["printed"][name]
    assert_prints(actual, fact["is"], fact.get("digits", 4))
