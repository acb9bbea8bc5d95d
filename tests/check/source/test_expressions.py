"""Arguments of a constructor that are written with the names of its file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from regard.check.source.expressions import with_values
from regard.errors import InputError


@dataclass
class Config:
    width: int = 6
    heads: int = 2


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width


def attention(q: torch.Tensor) -> torch.Tensor:
    return q


@pytest.mark.parametrize("implementation", [Attention, Attention(Config()), attention, Config])
def test_a_call_of_the_files_own_names_is_its_value(implementation):
    found = with_values({"config": "Config(heads=3)", "dtype": "torch.float32"}, implementation)
    assert found == {"config": Config(heads=3), "dtype": torch.float32}


def test_the_fields_of_a_config_are_values_as_well():
    found = with_values({"config": {"dtype": "torch.float32", "vision": {"inner": "Config(heads=3)"}}}, Attention)
    assert found == {"config": {"dtype": torch.float32, "vision": {"inner": Config(heads=3)}}}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("dict(heads=4, dtype=torch.float32)", {"heads": 4, "dtype": torch.float32}),
        ("[Config(heads=each) for each in range(2)]", [Config(heads=0), Config(heads=1)]),
        ("(Config(), 3)", (Config(), 3)),
        ("{'dtype': torch.float32}", {"dtype": torch.float32}),
        ("list(range(3))", [0, 1, 2]),
        ("len(range(6)) / 2 + 1", 4.0),
        ("2 * Config().width", 12),
    ],
)
def test_collections_of_known_names_are_their_values(written, value):
    assert with_values({"config": written}, Attention) == {"config": value}


def test_other_texts_stay_texts():
    args = {
        "kind": "linear",
        "name": "a.b",
        "path": "x/y.pt",
        "what": "Unknown(3)",
        "list": "[unknown, Config]",
        "more": "Config",
        "n": 4,
    }
    assert with_values(args, Attention) == args


def test_a_call_that_fails_is_told():
    with pytest.raises(InputError, match=r"--arg config=Config\(4, 5, 6\): TypeError: .*positional arguments"):
        with_values({"config": "Config(4, 5, 6)"}, Attention)
