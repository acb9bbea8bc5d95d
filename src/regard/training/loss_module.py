"""A model with its loss as one module, which is what is run on one process or many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.training.loss import surprise

if TYPE_CHECKING:
    from regard.training.tasks.task import Task

__all__ = ["Learner", "groups", "optimizer_of"]


class Learner(nn.Module):
    """The loss of a batch, summed over what is predicted.

    A sum, because processes and parts of a batch predict different numbers of tokens: whoever knows them all divides.

    Args:
        model: a transformer.
        task: how it is run on a batch.
        label_smoothing: while it is in training mode.
        dropout: of every sub-layer and the embeddings, while it is in training mode. Said here, for the formats of some
            families, as Llama's, have no word for it, and their models none; None leaves it as the model has it.
    """

    def __init__(
        self, model: nn.Module, task: Task, label_smoothing: float = 0.0, *, dropout: float | int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.label_smoothing = label_smoothing
        for module in model.modules():
            if dropout is not None and isinstance(module, nn.Dropout):
                module.p = float(dropout)

    def forward(self, tensors: Mapping[str, Tensor], scale: float | int = 1.0) -> Float[Tensor, ""]:
        """The summed loss in nats.

        Args:
            tensors: of `Batch`.
            scale: what the sum is multiplied by: cheaper here, where gradients are made, than behind.
        """
        logits, targets = self.task.predict(self.model, tensors)
        return surprise(logits, targets, self.label_smoothing if self.training else 0.0, scale)


def optimizer_of(learner: nn.Module, *, lr: float | int, weight_decay: float | int) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), in one pass over the weights where PyTorch has it: a sixth of the time.

    Args:
        learner: whose weights are learned.
        lr: the learning rate.
        weight_decay: of matrices.
    """
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in learner.parameters())
    return torch.optim.AdamW(groups(learner, weight_decay), lr=lr, betas=(0.9, 0.98), fused=fused)


def groups(learner: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters for an optimizer: matrices shrink by weight decay; biases, norms and the like do not."""
    parameters = list(learner.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
