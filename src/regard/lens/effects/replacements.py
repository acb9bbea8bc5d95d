"""What takes the place of an ablated head's output: zeros, its mean over a source, or that of another text of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.lens.effects.subject import EffectSubject
from regard.lens.interventions.edits import ABLATIONS
from regard.lens.interventions.source import RecordedAttention
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.lens.watch import watch


class HeadReplacements:
    """The replaced outputs of every attention, for each text.

    Args:
        ablation: "zero", "mean" or "resample".
        source: recordings of other texts, or a model with other texts, which `read_source` runs; None for the texts
            themselves, which `observe` collects.
        seed: of the draws of "resample".

    Raises:
        ValueError: an unknown ablation; "zero" with a source; no recording at all.
    """

    def __init__(self, ablation: str, source: Sequence[Recording] | EffectSubject | None, seed: int) -> None:
        if ablation not in ABLATIONS:
            raise ValueError(f"ablation={ablation!r}: it is one of {', '.join(map(repr, ABLATIONS))}")
        if ablation == "zero" and source is not None:
            raise ValueError('ablation="zero" takes no source: choose "mean" or "resample"')
        self.ablation, self.seed = ablation, seed
        self.source = None if source is None or isinstance(source, EffectSubject) else list(source)
        if self.source == []:
            raise ValueError("source=[] holds no recording: give one at least, of regard.watch, or texts")
        self._texts = source if isinstance(source, EffectSubject) else None
        self._is_own_source = source is None
        self._own: list[Recording] = []
        self._sums: dict[str, tuple[Tensor, int]] = {}
        self._cache: dict[tuple[int | None, str], Tensor] = {}
        self._drawn: dict[int, tuple[Recording, int]] = {}

    def read_source(self) -> None:
        """Run the texts of the source, where they were given as texts."""
        if self._texts is None:
            return
        for text in self._texts.texts:
            with torch.no_grad(), watch(self._texts.model) as recording:
                self._texts.run(text)
            self._collect(recording, text.valid_keys)

    def observe(self, recording: Recording, valid: Tensor | None) -> None:
        """Collect a text that is its own source.

        Args:
            recording: of the text.
            valid: the queries that are not padding, for attentions with as many queries as the text has tokens.
        """
        if self._is_own_source and self.ablation != "zero":
            self._collect(recording, valid)

    def _collect(self, recording: Recording, valid: Tensor | None) -> None:
        if self.ablation == "resample":
            self._own.append(recording)
            return
        for path in recording:
            output = RecordedAttention(recording, path).outputs()[0]
            if valid is not None and int(valid[-1]) < output.shape[2]:
                output = output[:, :, valid.to(output.device)]
            total, count = self._sums.get(path, (0, 0))
            self._sums[path] = total + output.double().sum((0, 2)), count + len(output) * output.shape[2]

    def of(self, text: int, path: str, entries: Sequence[RecordingEntry]) -> Tensor | None:
        """What replaces the output of an attention: ``(1, heads, queries or 1, d_value)``, or None for zeros.

        Args:
            text: the number of the text.
            path: the attention.
            entries: all attentions of the text.

        Raises:
            KeyError: a source without this attention.
            ValueError: no text of the source has as many queries as this one.
        """
        if self.ablation == "zero":
            return None
        key = (None if self.ablation == "mean" else text), path
        if key not in self._cache:
            self._cache[key] = self._mean(path) if self.ablation == "mean" else self._resampled(text, path, entries)
        return self._cache[key]

    def _mean(self, path: str) -> Tensor:
        if self.source is None:
            total, count = self._sums[path]
            return (total / count)[None, :, None]
        recorded = RecordedAttention(self.source, path)
        return recorded.mean_output(range(recorded.maps[0].shape[1]))

    def _resampled(self, text: int, path: str, entries: Sequence[RecordingEntry]) -> Tensor:
        if text not in self._drawn:
            self._drawn[text] = self._draw(text, entries)
        other, row = self._drawn[text]
        return RecordedAttention(other, path).outputs()[0][row : row + 1]

    def _draw(self, text: int, entries: Sequence[RecordingEntry]) -> tuple[Recording, int]:
        """Another text with as many queries everywhere, the same one for every head."""
        others = self.source
        if others is None:
            others = [other for n, other in enumerate(self._own) if n != text or not self._is_own_source]
        queries = {entry.path: entry.shape[2] for entry in entries}
        fitting = [
            (other, row)
            for other in others
            if all(path in other and other.entry(path).shape[2] == count for path, count in queries.items())
            for row in range(other.entry(next(iter(queries))).shape[0])
        ]
        if not fitting:
            count = max(queries.values())
            where = "inputs" if self._is_own_source else "source"
            raise ValueError(
                f'ablation="resample" takes the outputs of another text at the same positions, and no other text of '
                f"the {where} has the {count} tokens of text {text}: give "
                'source= with texts of that length, or ablation="mean"'
            )
        generator = torch.Generator().manual_seed(self.seed + text)
        return fitting[int(torch.randint(len(fitting), (), generator=generator))]
