"""Code that cannot run to its end, or returns nothing, is told so in one sentence."""

import pytest
from torch import nn

from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings


class NotWritten(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q = nn.Linear(d_model, d_model)

    def forward(self, x):
        raise NotImplementedError("weights of", self.q(x).shape)


class OfAnotherName(NotWritten):
    def forward(self, x):
        return (self.q(x) @ self.keys(x).mT).softmax(-1) @ x


class ReturnsNothing(NotWritten):
    def forward(self, x):
        (self.q(x) @ x.mT).softmax(-1) @ x


class MadeOfNothing(NotWritten):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.q = nn.Linear(d_model, widths)  # noqa: F821


def of_undefined_weights(q, k, v):
    return to_weights(q @ k.mT) @ v  # noqa: F821


@pytest.mark.parametrize(
    ("what", "says", "line"),
    [
        (NotWritten, "raises NotImplementedError", 'raise NotImplementedError("weights of", self.q(x).shape)'),
        (OfAnotherName, "has no attribute 'keys'", "return (self.q(x) @ self.keys(x).mT).softmax(-1) @ x"),
        (ReturnsNothing, "returns None", "def forward(self, x):"),
        (MadeOfNothing, "name 'widths' is not defined", "self.q = nn.Linear(d_model, widths)  # noqa: F821"),
        (of_undefined_weights, "'to_weights' is not defined", "return to_weights(q @ k.mT) @ v  # noqa: F821"),
    ],
)
def test_what_never_comes_to_its_end_is_told_in_one_sentence_with_the_line(what, says, line):
    report = conclude(what, {}, UserSettings()).report()
    assert report.verdict == "undetermined"
    (reason,) = report.reasons
    assert says in reason, reason
    assert reason.endswith(line), reason
