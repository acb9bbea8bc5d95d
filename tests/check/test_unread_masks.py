"""A mask among the arguments that no line reads is told wrong, also where no call runs."""

import pytest
import torch
from torch import nn

from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings

pytestmark = [
    pytest.mark.more,  # seconds a test: it is run by make test-more
    pytest.mark.usefixtures("as_a_user_runs_it"),
]

PADDING = torch.tensor([[False, False, True], [False, False, True]])


class OfAnotherMask(nn.Module):
    """It reads a mask of the file, which fits no other number of tokens."""

    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x, key_padding_mask):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        return scores.masked_fill(PADDING[:, None], -torch.inf).softmax(-1) @ self.v(x)


class ThatReadsIt(OfAnotherMask):
    def forward(self, x, key_padding_mask):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        assert key_padding_mask.shape == PADDING.shape
        return scores.masked_fill(PADDING[:, None], -torch.inf).softmax(-1) @ self.v(x)


class ThatSaysSo(OfAnotherMask):
    def forward(self, x, key_padding_mask):
        """Attention.

        key_padding_mask: not used.
        """
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        return scores.masked_fill(PADDING[:, None], -torch.inf).softmax(-1) @ self.v(x)


class ThatHandsOn(OfAnotherMask):
    def forward(self, x, key_padding_mask):
        return self.attended(x)

    def attended(self, x):
        return super().forward(x, PADDING)


@pytest.mark.parametrize("kind", [OfAnotherMask, ThatReadsIt, ThatSaysSo, ThatHandsOn])
def test_a_mask_that_no_line_reads_is_wrong_without_a_call(kind):
    found = conclude(kind, {}, UserSettings()).report()
    if kind is not OfAnotherMask:
        assert found.verdict == "undetermined"
        return
    assert (found.verdict, found.causes[0].id) == ("wrong", "mask-dropped")
    assert found.causes[0].location.text == "def forward(self, x, key_padding_mask):"


class ThatFills(ThatReadsIt):
    def forward(self, x, key_padding_mask):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        assert key_padding_mask.shape == PADDING.shape
        return self.filled(scores).softmax(-1) @ self.v(x) + x[PADDING]


class ThatKeepsNoFill(ThatFills):
    """A line fills scores, and what it returns is not kept."""

    def filled(self, scores):
        scores.masked_fill(PADDING[:, None], -torch.inf)
        return scores


class ThatFillsInPlace(ThatFills):
    def filled(self, scores):
        scores.masked_fill_(PADDING[:, None], -torch.inf)
        return scores


class ThatKeepsItsFill(ThatFills):
    def filled(self, scores):
        scores = scores.masked_fill(PADDING[:, None], -torch.inf)
        return scores


def test_a_fill_that_is_not_kept_is_wrong_without_a_call():
    found = conclude(ThatKeepsNoFill, {"d_model": 4}, UserSettings()).report()
    assert [each.id for each in found.causes] == ["mask-read"]
    for kind in (ThatFillsInPlace, ThatKeepsItsFill):
        assert conclude(kind, {"d_model": 4}, UserSettings()).report().verdict == "undetermined"
