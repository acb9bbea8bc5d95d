"""A model with its loss as one module, which runs on one process or many; its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.training.linear import OneDNNLinear
from regard.training.loss import linear_cross_entropy

if TYPE_CHECKING:
    from regard.training.tasks.task import Task


class LossModule(nn.Module):
    """The loss of a batch, summed over the predicted tokens.

    The loss is a sum, because processes and micro-batches predict different numbers of tokens: the caller, who knows
    the number of all predicted tokens, divides.

    Args:
        model: a transformer.
        task: runs the model on a batch.
        label_smoothing: in training mode.
        dropout: of every sub-layer and of the embeddings, in training mode. Some formats, as Llama's, have no field
            for dropout, and their models load without it. None leaves the model's own dropout.
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
            scale: a factor of the sum. A factor here, where gradients are computed, costs less than one after it.
        """
        with OneDNNLinear() if self.training else nullcontext():
            logits, targets = self.task.predict(self.model, tensors)
        return linear_cross_entropy(logits, targets, self.label_smoothing if self.training else 0.0, scale)


def build_optimizer(
    module: nn.Module, *, learning_rate: float | int, weight_decay: float | int
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused into one pass over the weights where PyTorch can: a sixth of the time.

    Args:
        module: whose weights are trained.
        learning_rate: of the first update.
        weight_decay: of matrices.
    """
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in module.parameters())
    return torch.optim.AdamW(parameter_groups(module, weight_decay), lr=learning_rate, betas=(0.9, 0.98), fused=fused)


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters for an optimizer: matrices have weight decay; biases, norms and other vectors have none."""
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
