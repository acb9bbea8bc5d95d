"""`Editor`: finds the edits of each attention call, and computes the edited rows of its output."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import mask as masks
from regard.attention.attend import attend
from regard.attention.bias import PositionBias
from regard.attention.hooks import disable_hooks
from regard.lens.capture.call import CapturedCall, parse_attn_mask
from regard.lens.capture.kind import attention_kind
from regard.lens.capture.module_finder import ModuleFinder
from regard.lens.capture.recorder import folds_heads, in_backward, note_edit
from regard.lens.interventions.definition import compare_with_definition
from regard.lens.interventions.edits import Edit, OutputEdit, ScoreEdit
from regard.lens.interventions.selection import CallPart, CallPositions, find_indices
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.select import select

MakeCall = Callable[[nn.Module], tuple[CapturedCall, Tensor]]
"""Makes a call with the graphs of its tensors, for the module that computed it; and its output, by head."""

MAX_ROW_PAIRS = 2**24
"""About how many pairs of a query and a key have a mask in memory at once, where some rows are computed again."""


class _ActiveEditors(threading.local):
    """The editors of one thread whose blocks have edits and are open."""

    editors: tuple[Editor, ...] = ()


_active = _ActiveEditors()


class Editor:
    """The edits of a model, by the path of each attention.

    Args:
        modules: the modules of the model, each with its path.
        verify: whether to compare edited rows with the definition in float64.
    """

    def __init__(self, modules: Sequence[tuple[str, nn.Module]], *, verify: bool) -> None:
        self.finder, self.verify = ModuleFinder(modules), verify
        self.edits: list[Edit] = []
        self.notes: dict[str, None] = {}
        self.paths: dict[str, str] = {}
        """The attentions that ran, each with its kind, "self" or "cross"."""
        self._ends: dict[str, tuple[int, Tensor]] = {}
        """For each attention: the position behind its last query, and the last key, (batch, kv_heads, d_key)."""
        self._latest: tuple[int, int] = 0, 0
        """The position of the first query of the latest self-attention, and the number of its queries."""

    def edit(self, make_call: MakeCall, frame: FrameType) -> Tensor | None:
        """The edited output of an attention, (batch, heads, queries, d_value); None where nothing is edited.

        Args:
            make_call: makes the call and gives its output, for the module that computed it.
            frame: the frame of the code that called it.

        Raises:
            IndexError: a head or batch row that is not there.
            ValueError: an edit that cannot be made here.
        """
        owner = self.finder.find(frame)
        if owner is None:
            return None
        path, module = owner
        edits = [edit for edit in self.edits if edit.path == path]
        self.paths.setdefault(path, "")
        if edits:
            self._check_alone(path, frame)
        elif not self._needs_positions():
            return None
        try:
            with disable_hooks():
                call, output = make_call(module)
        except NotImplementedError as error:
            if not edits:
                return None
            raise ValueError(f"{path}: this attention cannot be edited: {error}") from error
        call = call.unfold_heads() if folds_heads(module, call) else call
        self.paths[path] = self.paths[path] or attention_kind(path, module, call, frame)
        positions = self._positions(path, call)
        if not edits:
            return None
        note_edit(path)
        return self._edited(call, output.reshape(*call.shape[:3], call.v.shape[-1]), edits, positions)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Know of the other editors of this thread, until the context ends."""
        _active.editors = (*_active.editors, self)
        try:
            yield
        finally:
            _active.editors = tuple(editor for editor in _active.editors if editor is not self)

    def _check_alone(self, path: str, frame: FrameType) -> None:
        """Raise if another block edits this attention too: each would compute it again from what the model has.

        Raises:
            ValueError: another block does.
        """
        for other in _active.editors:
            owner = other.finder.find(frame) if other is not self else None
            if owner is not None and any(edit.path == owner[0] for edit in other.edits):
                raise ValueError(
                    f"{path}: two nested regard.intervene blocks edit this attention; write all its edits in one block"
                )

    def _needs_positions(self) -> bool:
        """Whether a call that is not edited must tell where the queries of a cross-attention are."""
        return any(edit.queries is not None and self.paths.get(edit.path) != "self" for edit in self.edits)

    def _positions(self, path: str, call: CapturedCall) -> CallPositions:
        queries, keys = call.shape[2:]
        if self.paths[path] == "cross":
            first = self._latest[0] if self._latest[1] == queries else 0
            return CallPositions(queries, keys, first, 0, keys)
        written = keys if queries == keys else max(call.num_written_keys, min(queries, keys))
        first, dropped = max(0, written - queries), 0
        end, last_key = self._ends.get(path, (0, call.k))
        if 0 < first < end and _has_rows_of(call.k[:, :, first - 1], last_key):
            # The former last key stands before the new ones: the cache of a window dropped others.
            first, dropped = end, end - first
        self._ends[path] = first + queries, call.k[:, :, written - 1].detach().clone()
        self._latest = first, queries
        return CallPositions(queries, keys, first, dropped, dropped + written)

    def _edited(self, call: CapturedCall, output: Tensor, edits: Sequence[Edit], positions: CallPositions) -> Tensor:
        batch, heads = call.shape[:2]
        for edit in edits:
            edit.selected = CallPart(
                find_indices(edit.batch, batch, "batch row", edit.path),
                find_indices(edit.heads, heads, "head", edit.path),
                batch,
            )
        result = output.clone()
        if any(isinstance(edit, ScoreEdit) for edit in edits):
            self._edit_scores(call, result, [e for e in edits if isinstance(e, ScoreEdit)], positions)
        for edit in edits:
            if isinstance(edit, OutputEdit):
                _edit_output(output, result, edit, positions)
        if not in_backward():  # activation checkpointing computes the same again
            self._count(edits, output, result, positions)
        return result

    def _edit_scores(
        self, call: CapturedCall, result: Tensor, edits: Sequence[ScoreEdit], positions: CallPositions
    ) -> None:
        if call.dropout:
            raise ValueError(
                f"{edits[0].path}: its dropout of {call.dropout} draws other random numbers for the edited attention: "
                "call model.eval() first"
            )
        if call.from_weights and any(edit.needs_scores for edit in edits):
            edit = next(edit for edit in edits if edit.needs_scores)
            raise ValueError(
                f"{edit.path}: of an attention in the model's own code the weights are known, not queries and keys, so "
                f"{edit.description} cannot be made. Let it call torch.nn.functional.scaled_dot_product_attention "
                '(in transformers attn_implementation="sdpa")'
            )
        inputs = _live_inputs(call)
        for part, own in _parts(edits, inputs.shape):
            for rows, common in _row_groups(own, positions):
                edited = _select(inputs, part)
                for edit in common:
                    edited = edit.apply(edited, positions, part)
                new = _attend_rows(edited, rows)
                if self.verify and not in_backward():
                    error = compare_with_definition(edited, rows, new)
                    for edit in common:
                        edit.error = max(edit.error, error)
                result[_grid(part, rows, result)] = new.to(result.dtype)

    def _count(self, edits: Sequence[Edit], old: Tensor, new: Tensor, positions: CallPositions) -> None:
        for edit in edits:
            rows, part = positions.rows(edit.queries), edit.selected
            assert part is not None
            if not rows:
                continue
            grid = _grid(part, rows, old)
            change = (new.detach()[grid] - old.detach()[grid]).abs()
            edit.calls += 1
            edit.rows += len(rows) * len(part.batch)
            edit.num_heads = max(edit.num_heads, len(part.heads))
            edit.largest_change = max(edit.largest_change, float(change.max()) if change.numel() else 0.0)


def _has_rows_of(t: Tensor, other: Tensor) -> bool:
    """Whether every batch row is one of another tensor: beams change places, and some are dropped."""
    # In one call a key may come once per group, in the other once for each head of it.
    heads = min(t.shape[1], other.shape[1])
    t, other = (each[:, :: each.shape[1] // heads] for each in (t, other))
    return bool((t[:, None] == other).flatten(2).all(-1).any(-1).all())


def _edit_output(old: Tensor, result: Tensor, edit: OutputEdit, positions: CallPositions) -> None:
    rows, part = positions.rows(edit.queries), edit.selected
    assert part is not None
    if rows:
        new = edit.output(old[:, list(part.heads)], rows, positions, part)
        if new is not None:
            result[_grid(part, rows, result)] = new


def _grid(part: CallPart, rows: Sequence[int], t: Tensor) -> tuple[Any, Any, Any]:
    """The index of some batch rows, heads and queries of (batch, heads, queries, d_value)."""
    numbers = (part.batch, part.heads, rows)
    whole = [len(n) == size for n, size in zip(numbers, t.shape, strict=False)]
    if sum(whole) >= 2:  # an index on one axis copies rows; on several it copies number by number
        return tuple(slice(None) if w else list(n) for w, n in zip(whole, numbers, strict=True))  # type: ignore[return-value]
    b, h, i = (torch.tensor(list(n), device=t.device) for n in numbers)
    return b[:, None, None], h[:, None], i


def _parts(edits: Sequence[ScoreEdit], shape: torch.Size) -> list[tuple[CallPart, list[ScoreEdit]]]:
    """The batch rows and heads that have the same edits, and these edits."""
    by_cell: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for row in range(shape[0]):
        heads: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for head in range(shape[1]):
            own = tuple(
                n
                for n, edit in enumerate(edits)
                if edit.selected is not None and row in edit.selected.batch and head in edit.selected.heads
            )
            if own:
                heads[own].append(head)
        by_cell[row] = heads
    if all(groups == by_cell[0] for groups in by_cell.values()):
        return [
            (CallPart(range(shape[0]), heads, shape[0]), [edits[n] for n in own]) for own, heads in by_cell[0].items()
        ]
    return [
        (CallPart([row], heads, shape[0]), [edits[n] for n in own])
        for row, groups in by_cell.items()
        for own, heads in groups.items()
    ]


def _row_groups(edits: Sequence[ScoreEdit], positions: CallPositions) -> list[tuple[list[int], list[ScoreEdit]]]:
    """The rows that change, those with the same edits together, and these edits in their order."""
    by_row: defaultdict[int, list[int]] = defaultdict(list)
    for n, edit in enumerate(edits):
        for row in positions.rows(edit.queries):
            by_row[row].append(n)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in sorted(by_row):
        groups[tuple(by_row[row])].append(row)
    return [(rows, [edits[n] for n in numbers]) for numbers, rows in groups.items()]


def _live_inputs(call: CapturedCall) -> AttentionInputs:
    """The inputs of a call with the graphs of its tensors, which statistics leave out."""
    mask, bias, uniform_rows = call.mask_and_bias(parse_attn_mask)
    q, k, v = (call.q, call.k, call.v) if call.project is None else call.project()
    q = q if uniform_rows is None else q.masked_fill(uniform_rows, 0)
    inputs = AttentionInputs(q, k, v, mask, scale=call.scale, bias=bias, softcap=call.softcap, sinks=call.sinks)
    inputs.q, inputs.k, inputs.v, inputs.bias, inputs.sinks = q, k, v, bias, call.sinks
    return inputs


def _select(inputs: AttentionInputs, part: CallPart) -> AttentionInputs:
    batch, heads = inputs.shape[:2]
    return select(
        inputs,
        None if len(part.batch) == batch else part.batch[0],
        None if len(part.heads) == heads else part.heads,
    )


def _attend_rows(inputs: AttentionInputs, rows: Sequence[int]) -> Tensor:
    """The output of some queries, (batch, heads, rows, d_value)."""
    assert inputs.v is not None
    if len(rows) == inputs.shape[2]:
        with disable_hooks():
            return attend(inputs.q, inputs.k, inputs.v, inputs.mask, **inputs.score_options)
    batch, heads, _, keys = inputs.shape
    height = max(1, MAX_ROW_PAIRS // max(1, batch * heads * keys))
    parts = [_attend_chunk(inputs, rows[start : start + height]) for start in range(0, len(rows), height)]
    return torch.cat(parts, 2)


def _attend_chunk(inputs: AttentionInputs, rows: Sequence[int]) -> Tensor:
    batch, heads, queries, keys = inputs.shape
    i, j = torch.tensor(rows, device=inputs.device), torch.arange(keys, device=inputs.device)
    mask = None
    if inputs.mask is not None:
        allowed = inputs.mask.predicate(queries, keys, inputs.device)
        b, h = (torch.arange(n, device=inputs.device) for n in (batch, heads))
        mask = masks.allowed(allowed(b[:, None, None, None], h[:, None, None], i[:, None], j))
    bias = inputs.bias
    if isinstance(bias, PositionBias):
        bias = bias(i + keys - queries, j).to(inputs.q)
    elif bias is not None and bias.ndim > 1 and bias.shape[-2] > 1:
        bias = bias[..., i, :]
    options = {**inputs.score_options, "bias": bias}
    with disable_hooks():
        return attend(inputs.q[:, :, i], inputs.k, inputs.v, mask, **options)  # type: ignore[arg-type]
