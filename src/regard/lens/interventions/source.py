"""What a recording gives to an edit: the outputs, weights, values, queries and keys of other texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.lens.interventions.selection import CallPart
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.select import select
from regard.lens.recording.recording import Recording


class RecordedAttention:
    """One attention of one or several recordings, each text a batch row.

    Args:
        source: a recording, or several.
        path: the path of the attention in them.

    Raises:
        KeyError: a recording without this path.
        TypeError: no recording.
        ValueError: no recording at all, or one with summaries only.
    """

    def __init__(self, source: Recording | Sequence[Recording], path: str) -> None:
        recordings = [source] if isinstance(source, Recording) else list(source)
        if not recordings:
            raise ValueError(f"{path}: an empty list of recordings: give one at least")
        self.path = path
        self.maps: list[AttentionMap] = []
        self.head_numbers: list[Sequence[int]] = []
        for recording in recordings:
            if not isinstance(recording, Recording):
                raise TypeError(f"{path}: a Recording is wanted, from regard.watch; got {type(recording).__name__}")
            m = recording[path]
            if not isinstance(m, AttentionMap):
                raise ValueError(
                    f"{path}: the recording has summaries only, without queries, keys and values: record with "
                    'regard.watch(model, keep="maps")'
                )
            self.maps.append(m)
            self.head_numbers.append(recording.entry(path).head_numbers)
        self._outputs: list[Tensor] | None = None

    def outputs(self) -> list[Tensor]:
        """The output of each recording, (batch, heads, queries, d_value)."""
        if self._outputs is None:
            self._outputs = [m.output() for m in self.maps]
        return self._outputs

    def head_output(self, recording: int, heads: Sequence[int]) -> Tensor:
        """The output of some heads in one recording."""
        return self.outputs()[recording][:, self._places(recording, heads)]

    def mean_output(self, heads: Sequence[int]) -> Tensor:
        """The mean output of some heads over all queries and texts, (1, heads, 1, d_value)."""
        rows = [self.head_output(n, heads).transpose(0, 1).flatten(1, 2) for n in range(len(self.maps))]
        return torch.cat(rows, 1).mean(1)[None, :, None]

    def only(self, part: CallPart, shape: tuple[int, int]) -> AttentionInputs:
        """The recorded inputs for some batch rows and heads of a call.

        Args:
            part: the batch rows and heads.
            shape: the numbers of queries and keys of the call.

        Raises:
            ValueError: a recording of another shape.
        """
        (m,) = self.maps
        for what, recorded, wanted in zip(("queries", "keys"), m.shape[2:], shape, strict=True):
            if recorded != wanted:
                raise ValueError(f"{self.path}: the recording has {recorded} {what}, and this call {wanted}")
        m = select(m, heads=self._places(0, part.heads))
        rows = self.batch_rows(m.shape[0], part)
        return m if len(rows) == m.shape[0] else select(m, batch=rows[0])

    def batch_rows(self, recorded: int, part: CallPart) -> list[int]:
        """The texts of a recording that take the place of some batch rows: the same ones, or the only one.

        Args:
            recorded: the number of texts in the recording.
            part: the batch rows.

        Raises:
            ValueError: neither one text nor as many as the call has batch rows.
        """
        if recorded not in (1, part.batch_size):
            raise ValueError(
                f"{self.path}: the recording has {recorded} texts, and this call {part.batch_size}: record as many, or "
                "one"
            )
        return [0] if recorded == 1 else list(part.batch)

    def _places(self, recording: int, heads: Sequence[int]) -> list[int]:
        numbers = list(self.head_numbers[recording])
        for head in heads:
            if head not in numbers:
                raise IndexError(f"{self.path}: the recording has no head {head}: it has {numbers}")
        return [numbers.index(head) for head in heads]
