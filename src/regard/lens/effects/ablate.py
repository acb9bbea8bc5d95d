"""Exact effects: the model runs again without each part, several parts a forward pass, each in a batch row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.lens.effects.metrics import TextContext, tensors_of
from regard.lens.effects.parts import Index, Parts
from regard.lens.effects.subject import EffectSubject, TextArguments
from regard.lens.intervene import intervene

TOKENS_PER_FORWARD = 1024
"""About how many tokens of repeated texts go through the model together: more takes memory, and saves no time."""

MAX_LOGITS = 2**27
"""The most logits, or other numbers of an output, of one forward pass: 512 MiB in float32."""

ROW_TOLERANCE = 1e-3
"""How far the metric of a repeated text may be from that of the text alone, relative to the larger of it and 1."""
HALF_ROW_TOLERANCE = 5e-2
"""The same for models in half precision."""


@dataclass
class ExactRuns:
    """Runs one text without each of its parts.

    Args:
        subject: the model.
        text: the text.
        context: what the metric may know.
        baseline: the metric of the model as it is.
        can_repeat: whether the text can be repeated along the batch.
        shapes: of every tensor of the model's output for the text alone.
        tokens_per_forward: about how many tokens of repeated texts go through the model together;
            `TOKENS_PER_FORWARD` by default.
    """

    subject: EffectSubject
    text: TextArguments
    context: TextContext
    baseline: float
    can_repeat: bool
    shapes: Sequence[torch.Size] = ()
    tokens_per_forward: int | None = None
    note: str = ""
    """Why each part took a forward pass of its own; "" where several shared one."""

    @property
    def rows(self) -> int:
        """How many rows go through the model together."""
        rows = max(2, (self.tokens_per_forward or TOKENS_PER_FORWARD) // self.text.num_tokens)
        return max(2, min(rows, MAX_LOGITS // max([1, *(shape.numel() for shape in self.shapes)])))

    def run(self, parts: Parts, indices: Sequence[Index]) -> Iterator[list[tuple[Index, float]]]:
        """The metric without each of some parts, forward pass by forward pass.

        Args:
            parts: what can be removed.
            indices: which are.
        """
        start = 0
        if self.can_repeat and len(indices) > 1:
            while start < len(indices):
                # The first row of the first pass is not edited: it must be the model as it is.
                first_row = 0 if start else 1
                chunk = indices[start : start + self.rows - first_row]
                values = self._together(parts, chunk, first_row)
                if values is None:
                    break
                yield list(zip(chunk, values, strict=True))
                start += len(chunk)
        for index in indices[start:]:
            yield [(index, self._metric_without(parts, [index], None, 1)[0])]

    def _together(self, parts: Parts, chunk: Sequence[Index], first_row: int) -> list[float] | None:
        """The metric without each part of a chunk; None where the text cannot be repeated after all."""
        rows = first_row + len(chunk)
        if not first_row:
            return self._metric_without(parts, chunk, 0, rows)
        try:
            values = self._metric_without(parts, chunk, first_row, rows)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            self.note = f"the inputs cannot be repeated along the batch ({_first_line(error)}): one forward pass a part"
            return None
        half = any(p.dtype.itemsize == 2 for p in self.subject.model.parameters())
        allowed = (HALF_ROW_TOLERANCE if half else ROW_TOLERANCE) * max(1.0, abs(self.baseline))
        if not abs(values[0] - self.baseline) <= allowed:
            self.note = (
                f"repeated along the batch the text has the metric {values[0]:.4g}, alone {self.baseline:.4g}: one "
                "forward pass a part"
            )
            return None
        return values[1:]

    def _metric_without(self, parts: Parts, chunk: Sequence[Index], first_row: int | None, rows: int) -> list[float]:
        with torch.no_grad(), intervene(self.subject.model, verify=False) as edit:
            parts.write(edit, chunk, first_row)
            output = self.subject.run(self.text, rows)
        if rows > 1:
            self._check_rows(output, rows)
        return numbers(self.subject.metric(output, self.context), rows, self.subject.metric.name)

    def _check_rows(self, output: Any, rows: int) -> None:
        """Refuse an output in which more than the batch axis grew: its rows know one another, as those of CLIP do.

        Raises:
            ValueError: it has such a tensor.
        """
        for alone, t in zip(self.shapes, tensors_of(output), strict=False):
            if t.shape not in (alone, (rows, *alone[1:])):
                raise ValueError(f"an output of the shape {tuple(alone)} becomes {tuple(t.shape)} for {rows} rows")


def numbers(values: Tensor, rows: int, name: str) -> list[float]:
    """The metric of each row.

    Raises:
        ValueError: more or fewer numbers than rows; NaN.
    """
    found = values.detach().double().flatten().tolist()
    if len(found) != rows:
        raise ValueError(f"the metric {name} gave {len(found)} numbers for {rows} texts: it must give one for each")
    if any(number != number for number in found):
        raise ValueError(
            f"the metric {name} is NaN: the model's output holds NaN or infinity, or the metric divides by zero"
        )
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
