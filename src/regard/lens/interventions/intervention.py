"""`Intervention`: the edits of a model, written as ``edit[path].heads[4].ablate("zero")``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.lens.interventions.editor import Editor
from regard.lens.interventions.edits import (
    ABLATIONS,
    PARTS,
    Ablate,
    AddBias,
    AddMask,
    Block,
    Edit,
    PatchInputs,
    PatchOutput,
)
from regard.lens.interventions.report import InterventionReport
from regard.lens.interventions.score_edits import ScaleScores, SetScores, SetTemperature
from regard.lens.interventions.selection import Index, check_index
from regard.lens.interventions.source import RecordedAttention
from regard.lens.recording.recording import Recording


class Intervention:
    """The edits of one model; `regard.intervene` makes it.

    Args:
        editor: edits the calls.
        on_edit: called before an edit is added.
    """

    def __init__(self, editor: Editor, on_edit: Callable[[], None]) -> None:
        self._editor, self._on_edit = editor, on_edit
        self._module_paths = {path for path, _ in editor.finder.values()}

    def __getitem__(self, path: str) -> EditableAttention:
        """The attention of a module, by its path as in a recording: all its heads and batch rows.

        Raises:
            KeyError: the model has no such module.
        """
        if path not in self._module_paths:
            close = difflib.get_close_matches(str(path), sorted(self._module_paths), 3)
            raise KeyError(
                f"the model has no module {path!r}" + (f"; close to it: {', '.join(close)}" if close else "") + ". "
                "The paths of its attentions are those of a recording: print(recording) after regard.watch(model)"
            )
        return EditableAttention(path, self._add)

    def report(self) -> InterventionReport:
        """What each edit changed so far."""
        return InterventionReport.from_edits(
            self._editor.edits, tuple(self._editor.notes), verified=self._editor.verify
        )

    def __repr__(self) -> str:
        return f"Intervention({len(self._editor.edits)} edits)"

    def _add(self, edit: Edit) -> None:
        self._on_edit()
        self._editor.edits.append(edit)


@dataclass(frozen=True)
class EditableAttention:
    """One attention of a model, or some of its heads and batch rows; each method adds an edit.

    Edits of the same heads add up: those of the scores (`block`, `mask`, `scale`, `temperature`, `set_scores`, `bias`,
    `patch` of weights, values, queries, keys) in the order in which they were written, then those of the output
    (`ablate`, `patch`).
    """

    path: str
    add: Callable[[Edit], None]
    selected_heads: Index | None = None
    selected_batch: Index | None = None

    @property
    def heads(self) -> Selector:
        """Some heads: ``heads[4]``, ``heads[[1, 2]]``, ``heads[:3]``."""
        return Selector("heads", lambda index: replace(self, selected_heads=index))

    @property
    def batch(self) -> Selector:
        """Some batch rows, each a text: ``batch[0]``."""
        return Selector("batch", lambda index: replace(self, selected_batch=index))

    def ablate(
        self, method: str = "zero", source: Recording | Sequence[Recording] | None = None, *, seed: int = 0
    ) -> None:
        """Replace the heads' outputs, weights @ v, by numbers that do not depend on the text.

        Args:
            method: "zero"; "mean", the mean over all texts and queries of the source, or of the call itself (as the
                model computed it) without a source; "resample" (Chan et al. 2022, "Causal Scrubbing"), that of a text
                of the source, drawn at random for each batch row, at the same positions.
            source: recordings of other texts, by `regard.watch`.
            seed: of the draws of "resample".

        Raises:
            ValueError: an unknown method; "resample" without a source, "zero" with one.
        """
        if method not in ABLATIONS:
            raise ValueError(f"ablate({method!r}): it is one of {', '.join(map(repr, ABLATIONS))}")
        if (method == "zero" and source is not None) or (method == "resample" and source is None):
            wants = "takes no recording" if method == "zero" else "wants a recording of other texts: source=recording"
            raise ValueError(f"ablate({method!r}) {wants}")
        recorded = None if source is None else RecordedAttention(source, self.path)
        generator = torch.Generator().manual_seed(seed) if method == "resample" else None
        self.add(Ablate(*self._place, method, recorded, generator))

    def block(self, queries: Sequence[int] | int | None = None, keys: Sequence[int] | int | None = None) -> None:
        """Attention knockout: these queries may not attend to these keys; their other weights sum to 1 again.

        "Dissecting Recall of Factual Associations in Auto-Regressive Language Models" (Geva et al. 2023, section 5).
        Only these rows are computed again; the other rows keep their bits. A query without any key left has output 0.

        Args:
            queries: positions of queries; -1 is the last one of each call. None for all.
            keys: positions of keys; -1 is the last one that is written. None for all.

        Raises:
            TypeError: no numbers.
            ValueError: neither queries nor keys.
        """
        if queries is None and keys is None:
            raise ValueError("block() without queries and keys would block every pair: name some, as in keys=[3, 4]")
        self.add(Block(*self._place, _positions("queries", queries), _positions("keys", keys)))

    def mask(self, mask: Mask) -> None:
        """Let another mask block pairs too: a query attends where the model's own mask and this one allow it.

        Args:
            mask: from `regard.mask`, for the heads and batch rows that are selected.

        Raises:
            TypeError: no mask.
        """
        if not isinstance(mask, Mask):
            raise TypeError(
                f"mask(...) takes a mask from regard.mask, such as mask.window(8); got {type(mask).__name__}"
            )
        self.add(AddMask(*self._place, mask))

    def scale(self, factor: float | int, queries: Sequence[int] | int | None = None) -> None:
        """Multiply the scores by one factor more, before soft-cap, bias and mask: 0.5 makes the weights more even.

        Args:
            factor: 1 changes nothing, 0 makes the weights equal.
            queries: positions of the queries whose rows change; -1 is the last one of each call. None for all.

        Raises:
            TypeError: queries that are no numbers.
            ValueError: no finite number.
        """
        if not _is_finite(factor):
            raise ValueError(f"scale({factor!r}): a finite number, such as 0.5")
        self.add(ScaleScores(*self._place, float(factor), _positions("queries", queries)))

    def temperature(self, temperature: float | int, queries: Sequence[int] | int | None = None) -> None:
        """Divide what goes into the softmax: 2 makes the weights more even, 0.5 less.

        Unlike `scale` it counts after soft-cap and bias, and for sinks too.

        Args:
            temperature: above 0; 1 changes nothing.
            queries: as for `scale`.

        Raises:
            TypeError: queries that are no numbers.
            ValueError: no finite number above 0.
        """
        if not _is_finite(temperature) or temperature <= 0:
            raise ValueError(f"temperature({temperature!r}): a finite number above 0, such as 2")
        self.add(SetTemperature(*self._place, float(temperature), _positions("queries", queries)))

    def set_scores(self, scores: Mapping[int, float | int], queries: Sequence[int] | int | None = None) -> None:
        """Other scores q . k with some keys, in place of the computed ones: before scale, soft-cap, bias and mask.

        Args:
            scores: for the positions of keys the scores; -1 is the last key that is written.
            queries: as for `scale`.

        Raises:
            TypeError: positions that are no numbers.
            ValueError: no scores, or one that is no finite number.
        """
        if not scores or not all(map(_is_finite, scores.values())):
            raise ValueError(f"set_scores({scores!r}): a finite number for each key, such as {{3: 2.5}}")
        keys = _positions("scores", list(scores)) or ()
        values = dict(zip(keys, map(float, scores.values()), strict=True))
        self.add(SetScores(*self._place, values, _positions("queries", queries)))

    def bias(self, bias: Tensor | PositionBias) -> None:
        """Add a bias to the scores, besides the model's own.

        Args:
            bias: a tensor that broadcasts to (batch, heads, queries, keys) of what is selected, or a `PositionBias`.

        Raises:
            TypeError: something else.
        """
        if not isinstance(bias, Tensor | PositionBias):
            raise TypeError(f"bias(...) takes a tensor or a regard.positions bias; got {type(bias).__name__}")
        self.add(AddBias(*self._place, bias))

    def patch(
        self,
        recording: Recording,
        part: str = "output",
        *,
        queries: Sequence[int] | int | None = None,
    ) -> None:
        """Activation patching (Vig et al. 2020; Meng et al. 2022): put in what the heads had for another text.

        Args:
            recording: of that text, by `regard.watch`: with one text, or one for each batch row.
            part: "output", "weights", "values", "queries" or "keys".
            queries: the positions of the queries whose output is replaced, for part "output"; None for all.

        Raises:
            KeyError: a recording without this attention.
            ValueError: an unknown part; queries for another part than the output.
        """
        if part not in PARTS:
            raise ValueError(f"patch(part={part!r}): it is one of {', '.join(map(repr, PARTS))}")
        recorded = RecordedAttention(recording, self.path)
        if len(recorded.maps) != 1:
            raise ValueError(f"patch takes one recording; got {len(recorded.maps)}")
        if part == "output":
            self.add(PatchOutput(*self._place, recorded, _positions("queries", queries)))
        elif queries is not None:
            raise ValueError(f'patch(..., {part!r}, queries=...): queries are named for part "output" only')
        else:
            self.add(PatchInputs(*self._place, recorded, part))

    @property
    def _place(self) -> tuple[str, Index | None, Index | None]:
        return self.path, self.selected_heads, self.selected_batch


@dataclass(frozen=True)
class Selector:
    """``heads[...]`` and ``batch[...]`` of an attention."""

    name: str
    select: Callable[[Index], EditableAttention]

    def __getitem__(self, index: Index) -> EditableAttention:
        """The attention with these heads or batch rows only.

        Raises:
            TypeError: no number, slice or list of numbers.
        """
        return self.select(check_index(index, self.name))


def _is_finite(value: object) -> bool:
    """Whether this is a finite number of a user."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positions(name: str, positions: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Positions of a user."""
    if positions is None:
        return None
    index = check_index(positions, name)
    if isinstance(index, slice):
        raise TypeError(f"{name}={positions!r}: a list of positions, such as [3, 4] or range(3, 5)")
    numbers = (index,) if isinstance(index, int) else tuple(index)
    if not numbers:
        raise ValueError(f"{name}=[]: name one position at least, or None for all")
    return numbers
