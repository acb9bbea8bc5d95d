"""Edits of scores by numbers: another scale, a temperature, other scores of some pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.interventions.edits import ScoreEdit, dense_bias, queries_text
from regard.lens.interventions.selection import CallPart, CallPositions
from regard.lens.maps.inputs import AttentionInputs


@dataclass
class ScaleScores(ScoreEdit):
    """The scores multiplied by one factor more."""

    factor: float
    scaled_queries: Sequence[int] | None = None
    needs_scores = True

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"scale({self.factor:g}{queries_text(self.scaled_queries)})"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self.scaled_queries

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        edited = copy(inputs)
        edited.scale = inputs.scale * self.factor
        return edited


@dataclass
class SetTemperature(ScoreEdit):
    """What goes into the softmax divided by a temperature, sinks included: after soft-cap, bias and mask."""

    temperature: float
    changed_queries: Sequence[int] | None = None

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"temperature({self.temperature:g}{queries_text(self.changed_queries)})"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self.changed_queries

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        # c tanh(s / c) / t is a soft-cap of c / t on scores s / t.
        edited, t = copy(inputs), self.temperature
        edited.scale = inputs.scale / t
        edited.softcap = None if inputs.softcap is None else inputs.softcap / t
        edited.sinks = None if inputs.sinks is None else inputs.sinks / t
        edited.bias = None if inputs.bias is None else dense_bias(inputs.bias, inputs) / t
        return edited


@dataclass
class SetScores(ScoreEdit):
    """q . k with some keys in place of what the model computes."""

    scores: Mapping[int, float]
    changed_queries: Sequence[int] | None = None
    needs_scores = True

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"set_scores({dict(self.scores)}{queries_text(self.changed_queries)})"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self.changed_queries

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        _, missing = positions.columns(list(self.scores))
        self.missing_keys = set(missing) if not self.calls else self.missing_keys & set(missing)
        present = {column[0]: score for key, score in self.scores.items() if (column := positions.columns([key])[0])}
        columns = list(present)
        k = inputs.k[:, :, columns].repeat_interleave(inputs.shape[1] // inputs.k.shape[1], 1)
        computed = inputs.q @ k.mT
        wanted = torch.tensor(list(present.values()), device=inputs.device).to(computed).expand_as(computed)
        # The bias comes after the soft-cap, and makes up for what the scores are not.
        added = inputs.q.new_zeros(*inputs.shape)
        added[..., columns] = _capped(wanted * inputs.scale, inputs) - _capped(computed * inputs.scale, inputs)
        edited = copy(inputs)
        edited.bias = added if inputs.bias is None else dense_bias(inputs.bias, inputs) + added
        return edited


def _capped(scaled: Tensor, inputs: AttentionInputs) -> Tensor:
    """Scaled scores after the soft-cap."""
    return scaled if inputs.softcap is None else inputs.softcap * torch.tanh(scaled / inputs.softcap)
