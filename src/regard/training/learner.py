"""A model with its loss as one module, which is what is run on one process or many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.training.packing import NOTHING

if TYPE_CHECKING:
    from regard.training.tasks.task import Task

__all__ = ["Learner", "surprise"]


class Learner(nn.Module):
    """The loss of a batch, summed over what is predicted.

    A sum, because processes and parts of a batch predict different numbers of tokens: whoever knows them all divides.

    Args:
        model: a transformer.
        task: how it is run on a batch.
        label_smoothing: while it is in training mode.
    """

    def __init__(self, model: nn.Module, task: Task, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.label_smoothing = label_smoothing

    def forward(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """The summed loss in nats.

        Args:
            tensors: of `Batch`.
        """
        logits, targets = self.task.predict(self.model, tensors)
        return surprise(logits, targets, self.label_smoothing if self.training else 0.0)


def surprise(
    logits: Float[Tensor, "predicted vocab_size"], targets: Int[Tensor, " predicted"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """-log of the probability of each target, summed, in nats; `NOTHING` counts nothing.

    With label smoothing e, a target has the probability 1 - e and all tokens share e (Szegedy et al. 2016, section 7).
    """
    return F.cross_entropy(
        logits.float(), targets, reduction="sum", ignore_index=NOTHING, label_smoothing=label_smoothing
    )
