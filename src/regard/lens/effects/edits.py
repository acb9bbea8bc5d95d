"""The edits that `regard.effect` makes: of many batch rows at once, each row another ablation of the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.lens.interventions.edits import OutputEdit, ScoreEdit, with_mask
from regard.lens.interventions.selection import CallPart, CallPositions
from regard.lens.maps.inputs import AttentionInputs


@dataclass
class ReplaceOutput(OutputEdit):
    """The output of heads replaced by given numbers."""

    replacement: Tensor | None
    """``(1, all heads, queries or 1, d_value)``; None for zeros."""

    @property
    def description(self) -> str:
        """See `Edit`."""
        return "ablate(zero)" if self.replacement is None else "ablate(replacement)"

    def output(self, old: Tensor, rows: Sequence[int], positions: CallPositions, part: CallPart) -> Tensor | None:
        """See `OutputEdit`."""
        if self.replacement is None:
            return old.new_zeros(())
        new = self.replacement[:, list(part.heads)].to(old)
        if new.shape[2] not in (1, len(rows)):
            raise ValueError(f"{self.path}: the source has {new.shape[2]} queries, and this call {len(rows)}")
        return new


@dataclass
class BlockByRow(ScoreEdit):
    """Attention knockout with other pairs in each batch row."""

    blocked: Tensor
    """``(rows or 1, queries, keys)``, True where nobody may look."""
    _queries: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._queries = self.blocked.any(-1).any(0).nonzero()[:, 0].tolist()

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"block({int(self.blocked.sum())} pairs)"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self._queries

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        if self.blocked.shape[1:] != (positions.num_queries, positions.num_keys):
            raise ValueError(
                f"{self.path}: this call has {positions.num_queries} queries and {positions.num_keys} keys, and it had "
                f"{tuple(self.blocked.shape[1:])} when the text was read first"
            )
        blocked = self.blocked if len(self.blocked) == 1 else self.blocked[list(part.batch)]
        return with_mask(inputs, masks.allowed(~blocked[:, None].to(inputs.device)))


@dataclass
class OutputProbe(OutputEdit):
    """Nothing is changed: zeros are added to the output, whose gradient is that of the output."""

    outputs: list[Tensor] = field(default_factory=list, init=False)
    """The output of each call, (batch, heads, queries, d_value)."""
    zeros: list[Tensor] = field(default_factory=list, init=False)
    """The zeros that were added to each."""

    @property
    def description(self) -> str:
        """See `Edit`."""
        return "probe"

    def output(self, old: Tensor, rows: Sequence[int], positions: CallPositions, part: CallPart) -> Tensor | None:
        """See `OutputEdit`."""
        self.outputs.append(old.detach().clone())
        self.zeros.append(torch.zeros_like(old, requires_grad=True))
        return old + self.zeros[-1]
