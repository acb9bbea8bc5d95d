"""The edits that `regard.effect` makes: of many batch rows at once, each row another ablation of the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.mask import Mask
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


@dataclass(frozen=True)
class BlockedPairs:
    """In each batch row some queries that may not attend to some keys; tokens numbers a row, not tokens squared."""

    keys: Tensor
    """``(rows or 1, keys)``, True for the keys."""
    queries: Tensor | None = None
    """``(rows or 1, queries)``, True for the queries; None for all."""
    spares_own: bool = False
    """Whether a query may attend to the key at its own position all the same."""

    def mask(self, batch: Sequence[int], device: torch.device) -> Mask:
        """Who may attend, in some batch rows."""
        mask = masks.allowed(~self._of(self.keys, batch)[:, None, None].to(device))
        if self.queries is not None:
            mask = mask | masks.allowed(~self._of(self.queries, batch)[:, None, :, None].to(device))
        return mask | masks.window(1) if self.spares_own else mask

    @staticmethod
    def _of(t: Tensor, batch: Sequence[int]) -> Tensor:
        return t if len(t) == 1 else t[list(batch)]


@dataclass
class BlockByRow(ScoreEdit):
    """Attention knockout with other pairs in each batch row."""

    blocked: Sequence[BlockedPairs]
    shape: tuple[int, int]
    """The numbers of queries and keys that the text has."""

    @property
    def description(self) -> str:
        """See `Edit`."""
        return "block(pairs by batch row)"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        if any(pairs.queries is None for pairs in self.blocked):
            return None
        found = torch.stack([pairs.queries.any(0) for pairs in self.blocked if pairs.queries is not None]).any(0)
        return found.nonzero()[:, 0].tolist()

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        if self.shape != (positions.num_queries, positions.num_keys):
            raise ValueError(
                f"{self.path}: this call has {positions.num_queries} queries and {positions.num_keys} keys, and it had "
                f"{self.shape} when the text was read first"
            )
        for pairs in self.blocked:
            inputs = with_mask(inputs, pairs.mask(part.batch, inputs.device))
        return inputs


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
