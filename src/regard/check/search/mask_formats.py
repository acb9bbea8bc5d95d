"""How a mask is written: which number or truth value says that a query may attend to a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention import mask

__all__ = ["FORMS", "MaskFormat"]


@dataclass(frozen=True)
class MaskFormat:
    """How a mask is written."""

    name: str
    says: str
    write: Callable[[Tensor], Any]


def _additive(may: Tensor) -> Tensor:
    return torch.zeros(may.shape, dtype=torch.float64).masked_fill(~may, -torch.inf)


def _least(may: Tensor) -> Tensor:
    return torch.zeros(may.shape, dtype=torch.float64).masked_fill(~may, -1e9)


FORMS = (
    MaskFormat("may", "", lambda may: may),
    MaskFormat("blocked", "True in its mask means blocked", lambda may: ~may),
    MaskFormat("added", "its mask is added to the scores: 0 and -inf", _additive),
    MaskFormat("keep", "1 in its mask means allowed, 0 means blocked", lambda may: may.to(torch.float64)),
    MaskFormat("keep, whole", "1 in its mask means allowed, 0 means blocked", lambda may: may.long()),
    MaskFormat("block", "1 in its mask means blocked, 0 means allowed", lambda may: (~may).to(torch.float64)),
    MaskFormat("regard", "", mask.allowed),
    MaskFormat("added, finite", "its mask is added to the scores: 0 and a large negative number", _least),
)
