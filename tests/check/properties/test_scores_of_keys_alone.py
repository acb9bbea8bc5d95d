"""Keys that are scored alone, beside their products with a vector: what stands side by side is of no pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class Guided(nn.Module):
    """A question pools features: each is scored beside its product with the question."""

    axis = 1

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.both, self.score = nn.Linear(2 * d_model, d_model), nn.Linear(d_model, 1)

    def forward(self, question_rep: Tensor, visual_feat: Tensor) -> Tensor:
        keys = self.k(visual_feat)
        both = torch.cat((keys, self.q(question_rep).unsqueeze(1) * keys), -1)
        scores = self.score(nn.functional.elu(self.both(both)))
        return (scores.softmax(self.axis) * visual_feat).sum(1)


class GuidedBySamples(Guided):
    axis = 0


class Read(Guided):
    """A memory, of which parts are dropped in training, the same in all steps, reads what is known."""

    def forward(self, memories: list[Tensor], know: Tensor, masks: Tensor) -> Tensor:
        last = memories[-1]
        if self.training:
            last = memories[-1] * masks
        keys = self.k(know)
        both = torch.cat((self.q(last).unsqueeze(1) * keys, keys), 2)
        scores = self.score(nn.functional.elu(self.both(both))).squeeze(2)
        return (scores.softmax(1).unsqueeze(2) * know).sum(1)


class HiddenInTraining(Read):
    """A mask of keys hides them in training alone."""

    def forward(self, memories: list[Tensor], know: Tensor, masks: Tensor) -> Tensor:
        keys = self.k(know)
        both = torch.cat((self.q(memories[-1]).unsqueeze(1) * keys, keys), 2)
        scores = self.score(nn.functional.elu(self.both(both))).squeeze(2)
        if self.training:
            scores = scores.masked_fill(masks == 0, -torch.inf)
        return (scores.softmax(1).unsqueeze(2) * know).sum(1)


@pytest.mark.parametrize("kind", [Guided, Read])
def test_what_stands_beside_its_product_with_one_vector_is_scored_alone(kind: type[nn.Module]) -> None:
    assert check(kind).verdict in RIGHT


def test_the_softmax_of_keys_that_are_scored_alone_runs_over_them() -> None:
    assert check(GuidedBySamples).verdict == "wrong"


def test_a_mask_that_hides_in_training_alone_is_no_dropout() -> None:
    assert check(HiddenInTraining).verdict not in RIGHT
