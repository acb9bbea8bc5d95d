"""What is told of a check that judged some calls, or none."""

import pytest
from torch import nn

from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.time_limit import time_limit

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


def of_scale(q, k, v, scale):
    return (q @ k.mT * scale).softmax(-1) @ v


def test_calls_that_were_judged_when_the_time_was_over_are_told():
    with time_limit(0):
        report = conclude(of_scale, {}, UserSettings()).report()
    assert any("judged by the first 1 of its calls" in each for each in report.notes)


class OfAnUnknownField(nn.Module):
    """It is called, and nothing in it is an attention."""

    def __init__(self, config):
        super().__init__()
        self.one = nn.Linear(config.hidden_size, config.odd_size)
        self.two = nn.Linear(config.odd_size, config.hidden_size)

    def forward(self, hidden_states):
        return self.two(self.one(hidden_states).relu())


def test_what_could_be_called_asks_for_no_field_of_its_config() -> None:
    report = conclude(OfAnUnknownField, {}, UserSettings()).report()
    assert report.verdict == "undetermined"
    assert [each for each in report.reasons if "--arg" in each] == []
