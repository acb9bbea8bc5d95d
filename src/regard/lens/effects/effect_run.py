"""One run of `regard.effect`: reads the texts, estimates, removes the parts, and gives out what is known so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.lens.effects import gradient, looked_at
from regard.lens.effects.ablate import ExactRuns, numbers
from regard.lens.effects.effects import MAX_RECORDING_BYTES, Effects
from regard.lens.effects.looked_at import PartAttention, position_in
from regard.lens.effects.metrics import TextContext, tensors_of
from regard.lens.effects.parts import EdgeParts, HeadParts, Index, Parts, TokenParts, centred_windows
from regard.lens.effects.replacements import HeadReplacements
from regard.lens.effects.subject import EffectSubject, TextArguments
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.lens.watch import watch

DEFAULT_EXACT = 300
"""Up to so many parts of all texts, the default method computes every one exactly."""


@dataclass(frozen=True)
class EffectRequest:
    """What `regard.effect` was asked for."""

    over: str
    method: str | None
    queries: tuple[int, ...] = (-1,)
    groups: tuple[tuple[int, ...], ...] | None = None
    """The groups of keys; None for each token."""
    window: int | None = 1
    top: int = 20


@dataclass
class _TextState:
    """What is known of one text."""

    text: TextArguments
    context: TextContext
    baseline: float
    shapes: list[torch.Size]
    """Of every tensor of the model's output."""
    entries: list[RecordingEntry]
    looked_at: PartAttention
    value_weighted: Tensor
    values: Tensor
    estimates: Tensor | None = None


@dataclass
class EffectRun:
    """The state of one call of `regard.effect`.

    Args:
        subject: the model and its texts.
        request: what to compute.
        replacements: what takes the place of ablated heads.
        on_progress: called with the share that is done. What it raises ends the run, and `result` has what is known.
    """

    subject: EffectSubject
    request: EffectRequest
    replacements: HeadReplacements
    on_progress: Callable[[float], None] = lambda share: None
    method: str = "exact"
    notes: dict[str, None] = field(default_factory=dict)
    states: list[_TextState] = field(default_factory=list)
    recording: Recording | None = None
    """The attention of the first text, where it is small enough to be kept."""
    saturated: int = 0
    num_exact: int = 0
    """How many parts of all texts are computed exactly, once that is known."""
    num_done: int = 0
    """How many of these are computed."""
    tokens_per_forward: int | None = None
    """About how many tokens go through the model between two calls of `on_progress`; None: as many as are fastest."""

    def run(self) -> None:
        """Compute everything; what is interrupted leaves the states as far as they are."""
        self.read()
        texts = len(self.states)
        self.method = self._method()
        if self.method != "exact":
            for n, state in enumerate(self.states):
                self._estimate(n, state)
                self.on_progress(0.1 + (0.9 if self.method == "gradient" else 0.2) * (n + 1) / texts)
        if self.method != "gradient":
            self._exact(0.1 if self.method == "exact" else 0.3)

    # The model as it is.

    def read(self) -> None:
        """Run every text once, as the model is."""
        self.replacements.read_source()
        for n, text in enumerate(self.subject.texts):
            self.states.append(self._read(text))
            self.on_progress(0.1 * (n + 1) / len(self.subject.texts))

    def parts_of(self, number: int) -> Parts:
        """What can be removed of a text."""
        state = self.states[number]
        return self._parts(state.text, state.entries, number)

    def _read(self, text: TextArguments) -> _TextState:
        subject, over = self.subject, self.request.over
        with torch.no_grad(), watch(subject.model) as recording:
            output = subject.run(text)
        context = text.context(output if subject.metric.compares else None)
        (baseline,) = numbers(subject.metric(output, context), 1, subject.metric.name)
        self.replacements.observe(recording, text.valid_keys)
        for note in recording.notes:
            self.notes.setdefault(note)
        entries = self._entries(recording, text)
        if self.states and [entry.path for entry in entries] != [entry.path for entry in self.states[0].entries]:
            raise ValueError("the texts do not run the same attentions of the model: give them one at a time")
        if not self.states:
            self.recording = _kept(recording, text)
        parts = self._parts(text, entries, None)
        attention, weighted = (self._looked_at(parts, entries, text, weighted=w) for w in (False, True))
        return _TextState(
            text,
            context,
            baseline,
            [t.shape for t in tensors_of(output)],
            entries if over in ("tokens", "edges") else [replace(entry, source=_released) for entry in entries],
            attention,
            weighted.values,
            torch.full(parts.shape, math.nan, dtype=torch.float64),
        )

    def _entries(self, recording: Recording, text: TextArguments) -> list[RecordingEntry]:
        """The attentions, in the order of the layers; of tokens and edges those whose keys are the tokens."""
        entries = [recording.entry(path) for path in recording.layers if "#" not in path]
        if len(entries) < len(recording):
            self.notes.setdefault(
                "some modules attend several times in one pass: each is changed in all its calls; its attention, and "
                "the estimates of tokens and edges, are those of the first"
            )
        if self.request.over in ("heads", "layers"):
            return entries
        crosses = [entry for entry in entries if entry.kind == "cross"]
        if self.request.over == "edges" and crosses:
            self.notes.setdefault("the edges are those of cross-attention, from the target to the source")
            return crosses
        known = [entry for entry in entries if entry.shape[3] == len(text.tokens)]  # not the patches beside a text
        keys = (crosses or known or entries)[0].shape[3]
        sources = {entry.stack for entry in entries if entry.kind != "cross"}
        if crosses:
            self.notes.setdefault("the tokens are those of the source, hidden from its encoder and from the target")
            sources -= {entry.stack for entry in crosses}
        found = [
            e for e in entries if e.shape[0] == 1 and e.shape[3] == keys and (e.kind == "cross" or e.stack in sources)
        ]
        if not found:
            raise ValueError(
                f"over={self.request.over!r}: no attention of {self.subject.name} has one row of keys for each text, "
                'as in windows of an image: use over="heads" or "layers"'
            )
        left_out = sum(entry.kind != "cross" and entry not in found for entry in entries) if not crosses else 0
        if left_out:
            self.notes.setdefault(f"{left_out} of {len(entries)} attentions have other keys than these tokens")
        return found

    def _parts(self, text: TextArguments, entries: Sequence[RecordingEntry], number: int | None) -> Parts:
        """What can be removed of a text; `number` is its place where replacements are needed."""
        request, over = self.request, self.request.over
        if over in ("heads", "layers"):
            replaced = [None if number is None else self.replacements.of(number, e.path, entries) for e in entries]
            return HeadParts(entries, replaced, whole=over == "layers")
        count = entries[0].shape[3]
        if over == "tokens":
            positions = range(count) if text.valid_keys is None else text.valid_keys.tolist()
            return TokenParts(entries, positions, count)
        valid = text.valid_keys if entries[0].kind != "cross" else text.valid
        queries = [_position("query", query, entries[0].shape[2], valid) for query in request.queries]
        groups = request.groups or tuple((key,) for key in range(count))
        groups = tuple(tuple(_position("key", key, count, text.valid_keys) for key in group) for group in groups)
        return EdgeParts(entries, centred_windows(len(entries), request.window), queries, groups)

    def _looked_at(
        self, parts: Parts, entries: list[RecordingEntry], text: TextArguments, *, weighted: bool
    ) -> PartAttention:
        metric = self.subject.metric
        with torch.no_grad():
            if isinstance(parts, HeadParts):
                return looked_at.of_heads(entries, text, metric, whole=parts.whole, weighted=weighted)
            if isinstance(parts, TokenParts):
                return looked_at.of_tokens(entries, parts.count, text, metric, weighted=weighted)
            assert isinstance(parts, EdgeParts)
            return looked_at.of_edges(parts, weighted=weighted)

    # Without the parts.

    def _method(self) -> str:
        if self.request.method is not None:
            if self.request.method != "exact" and self.subject.metric.compares:
                raise ValueError(
                    f"method={self.request.method!r}: {self.subject.metric.name} is lowest for the model as it is, so "
                    'its gradient is 0 there and estimates nothing: use method="exact"'
                )
            return self.request.method
        count = sum(len(self._parts(state.text, state.entries, None).indices()) for state in self.states)
        return "both" if count > DEFAULT_EXACT and not self.subject.metric.compares else "exact"

    def _estimate(self, number: int, state: _TextState) -> None:
        try:
            paths = [entry.path for entry in state.entries]
            gradients = gradient.output_gradients(self.subject, state.text, state.context, paths)
        except gradient.NoGradientError:
            if self.request.method is not None:
                raise
            self.method = "exact"
            self.notes.setdefault(f"{self.subject.metric.name} has no gradient: every effect is computed exactly")
            return
        with torch.no_grad():
            parts = self._parts(state.text, state.entries, number)
            state.estimates, saturated = gradient.estimate(parts, gradients)
        self.saturated += saturated

    def _exact(self, start: float) -> None:
        chosen = [self._chosen(number) for number in range(len(self.states))]
        self.num_exact = sum(map(len, chosen))
        for number, (state, indices) in enumerate(zip(self.states, chosen, strict=True)):
            # Without a tensor that is seen, an output has no rows to take apart.
            can_repeat = bool(state.shapes) or self.subject.metric.reads != "output"
            can_repeat &= self.subject.batch_axis is not None and all(e.shape[0] == 1 for e in state.entries)
            runs = ExactRuns(
                self.subject,
                state.text,
                state.context,
                state.baseline,
                can_repeat,
                state.shapes,
                self.tokens_per_forward,
            )
            parts = self._parts(state.text, state.entries, number)
            for found in runs.run(parts, indices):
                for index, metric in found:
                    state.values[index] = state.baseline - metric
                self.num_done += len(found)
                self.on_progress(start + (1 - start) * self.num_done / self.num_exact)
                if runs.note:
                    self.notes.setdefault(runs.note)

    def _chosen(self, number: int) -> list[Index]:
        """The parts of a text that are computed exactly: all, or the strongest by their estimates."""
        state = self.states[number]
        indices = self._parts(state.text, state.entries, None).indices()
        if self.method == "exact":
            return indices
        estimates = (
            [s.estimates for s in self.states] if self.request.over in ("heads", "layers") else [state.estimates]
        )
        strength = torch.stack([e for e in estimates if e is not None]).mean(0).abs()
        indices.sort(key=lambda index: -float(strength[index]))
        return indices[: self.request.top]

    # The result.

    def result(self, *, stopped: bool) -> Effects:
        """What is known so far."""
        request, states = self.request, self.states
        notes = dict(self.notes)
        if stopped:
            known = sum(int((~state.values.isnan()).sum()) for state in states)
            notes.setdefault(
                f"stopped early: {known} effects of {len(states)} texts are known, NaN stands for the others"
            )
        if self.saturated:
            notes.setdefault(
                f"the softmax is saturated: {self.saturated} blocked weights are above {gradient.SATURATED}, and "
                "without them a row is another one altogether: there the estimate is unreliable, look at exact effects"
            )
        if request.over == "tokens":
            notes.setdefault("a hidden token still attends to itself")
        sizes = [max(sizes) for sizes in zip(*(state.values.shape for state in states), strict=True)]
        estimates = [state.estimates for state in states]
        entries = states[0].entries
        parts = self._parts(states[0].text, entries, None)
        longest = max(states, key=lambda state: state.values.shape[-1])
        keys = self._parts(longest.text, longest.entries, None)
        return Effects(
            request.over,
            self.subject.metric.name,
            self.replacements.ablation if request.over in ("heads", "layers") else "block",
            self.method,
            tuple(entry.path for entry in entries),
            tuple(state.text.tokens for state in states),
            torch.tensor([state.baseline for state in states], dtype=torch.float64),
            _stacked([state.values for state in states], sizes),
            None
            if all(e is None for e in estimates)
            else _stacked(
                [state.values * math.nan if e is None else e for e, state in zip(estimates, states, strict=True)], sizes
            ),
            _stacked([state.looked_at.values for state in states], sizes),
            tuple(notes),
            states[0].looked_at.name,
            _stacked([state.value_weighted for state in states], sizes),
            short_names(entries),
            request.queries if isinstance(parts, EdgeParts) else (),
            request.groups or tuple(map(tuple, keys.groups)) if isinstance(keys, EdgeParts) else (),
            tuple(map(tuple, parts.windows)) if isinstance(parts, EdgeParts) else (),
            tuple(state.text.query_tokens for state in states) if entries[0].kind == "cross" else (),
            self.recording,
            stopped,
        )


def _kept(recording: Recording, text: TextArguments) -> Recording | None:
    """The recording of a text, with its tokens; None where it takes too much memory to be kept."""
    size = 0
    for entry in map(recording.entry, recording):
        m = entry.map()
        if isinstance(m, AttentionMap):
            size += sum(t.numel() * t.element_size() for t in (m.q, m.k, m.v) if t is not None)
    if size > MAX_RECORDING_BYTES:
        return None
    if text.tokens:
        with suppress(ValueError):  # tokens that fit no map, such as those of an image
            recording.label(list(text.query_tokens or text.tokens), list(text.tokens))
    return recording


def _released() -> AttentionMap:
    """In place of a map that is no longer needed, so that a text leaves no tensors behind."""
    raise RuntimeError("this map was released")


def short_names(entries: Sequence[RecordingEntry]) -> tuple[str, ...]:
    """A short name of each attention: the number of its layer, after its stack or kind where there are several."""
    stacks = {entry.stack: entry.stack.split(".") for entry in entries}
    shared = set.intersection(*map(set, stacks.values()))
    names = []
    for entry in entries:
        own = ".".join(part for part in stacks[entry.stack] if part not in shared)
        stack = "cross " if entry.kind == "cross" else own + " " * bool(own)
        names.append(entry.path if entry.layer is None else f"{stack}{entry.layer}")
    return tuple(names) if len(set(names)) == len(names) else tuple(entry.path for entry in entries)


def _position(what: str, position: int, count: int, valid: Tensor | None) -> int:
    """A position of a text; below 0 it counts from the end, without padding.

    Raises:
        IndexError: there is no such position.
    """
    if not -count <= position < count:
        raise IndexError(f"there is no {what} {position}: the text has {count}, counted from 0")
    return position_in(count, position, valid)


def _stacked(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Tensors of several sizes as one, filled up with NaN."""
    padded = []
    for t in tensors:
        padding = [n for size, own in zip(reversed(sizes), reversed(t.shape), strict=True) for n in (0, size - own)]
        padded.append(F.pad(t.double(), padding, value=math.nan))
    return torch.stack(padded)
