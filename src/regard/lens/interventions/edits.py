"""The kinds of edit: what becomes of one attention.

An edit of the scores changes what the attention is computed from; some rows of its output are then computed again. An
edit of the output replaces rows of it. Both are restricted to heads and batch rows by the selection that made them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.lens.interventions.placed_mask import PlacedMask
from regard.lens.interventions.selection import CallPart, CallPositions, Index, format_index
from regard.lens.interventions.source import RecordedAttention
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.select import HeadsBias

PARTS = ("output", "weights", "values", "queries", "keys")
"""What `patch` can take from a recording."""
ABLATIONS = ("zero", "mean", "resample")


@dataclass
class Edit(ABC):
    """One edit of one attention, and what it changed so far."""

    path: str
    heads: Index | None
    batch: Index | None
    calls: int = field(default=0, init=False)
    """The number of calls that it met."""
    rows: int = field(default=0, init=False)
    """The number of rows of the output that it changed: queries of all batch rows and calls."""
    num_heads: int = field(default=0, init=False)
    """The number of heads that it changed."""
    largest_change: float = field(default=0.0, init=False)
    """The largest change of a number of the attention's output by all edits of these rows."""
    error: float = field(default=0.0, init=False)
    """For edits of the scores, the largest difference from the definition in float64, by the largest output."""
    missing_keys: set[int] = field(default_factory=set, init=False)
    """Keys that no call had so far."""
    selected: CallPart | None = field(default=None, init=False)
    """The batch rows and heads that it names, in the call that is running."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The edit as it was written."""

    @property
    def queries(self) -> Sequence[int] | None:
        """The positions of the queries whose rows change; None for all."""
        return None

    @property
    def place(self) -> str:
        """The selection as it was written, behind the path."""
        parts = (("batch", self.batch), ("heads", self.heads))
        return "".join(f".{name}[{format_index(index)}]" for name, index in parts if index is not None)


class ScoreEdit(Edit):
    """An edit of what an attention is computed from."""

    needs_scores = False
    """Whether it needs queries and keys, which are not known of eager attention."""

    @abstractmethod
    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """The inputs after the edit.

        Args:
            inputs: those of some of the edit's batch rows and heads.
            positions: of the call.
            part: the batch rows and heads that the inputs have.
        """


class OutputEdit(Edit):
    """An edit of the output of an attention."""

    @abstractmethod
    def output(self, old: Tensor, rows: Sequence[int], positions: CallPositions, part: CallPart) -> Tensor | None:
        """The new rows (batch, heads, rows, d_value) or what broadcasts to them; None if these rows stay.

        Args:
            old: the model's own output of these heads, for all batch rows and queries.
            rows: the queries that change.
            positions: of the call.
            part: the batch rows and heads.
        """


@dataclass
class Block(ScoreEdit):
    """Attention knockout (Geva et al. 2023, section 5): some queries may not attend to some keys."""

    blocked_queries: Sequence[int] | None
    blocked_keys: Sequence[int] | None

    @property
    def description(self) -> str:
        """See `Edit`."""
        arguments = (("queries", self.blocked_queries), ("keys", self.blocked_keys))
        return f"block({', '.join(f'{name}={list(n)}' for name, n in arguments if n is not None)})"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self.blocked_queries

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        columns, missing = positions.columns(self.blocked_keys)
        if self.blocked_keys is not None:
            # A key that this call lacks may come in a later one, of a generation.
            self.missing_keys = set(missing) if not self.calls else self.missing_keys & set(missing)
        keys = _one_hot(columns, positions.num_keys, inputs.device)[None, :]
        if self.blocked_queries is None:
            return with_mask(inputs, masks.blocked(keys))
        queries = _one_hot(positions.rows(self.blocked_queries), positions.num_queries, inputs.device)[:, None]
        return with_mask(inputs, masks.allowed(~queries) | masks.allowed(~keys))


@dataclass
class AddMask(ScoreEdit):
    """One mask more."""

    added: Mask

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"mask({self.added!r})"

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        size = positions.num_queries, positions.num_keys
        mask = self.added if positions.is_whole else PlacedMask(self.added, positions.first_key, positions.end_key)
        mask.validate(*size)
        if any(count not in (None, 1) for count in mask.batch_heads(*size)):
            assert self.selected is not None
            mask = masks.allowed(_part_of(mask.dense(*size, device=inputs.device), self.selected, part))
        return with_mask(inputs, mask)


@dataclass
class AddBias(ScoreEdit):
    """One bias more."""

    added: Tensor | PositionBias

    @property
    def description(self) -> str:
        """See `Edit`."""
        shape = f"tensor {tuple(self.added.shape)}" if isinstance(self.added, Tensor) else type(self.added).__name__
        return f"bias({shape})"

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        edited = copy(inputs)
        shape = inputs.shape
        if isinstance(self.added, PositionBias):
            heads = torch.tensor(list(part.heads), device=inputs.device)
            bias = HeadsBias(self.added, heads)
            if inputs.bias is None and positions.is_whole:
                edited.bias = bias
                return edited
            query = (
                torch.arange(positions.num_queries, device=inputs.device) + positions.end_key - positions.num_queries
            )
            key = torch.arange(positions.num_keys, device=inputs.device) + positions.first_key
            added = bias(query, key).to(inputs.q)
            edited.bias = added if inputs.bias is None else dense_bias(inputs.bias, inputs) + added
            return edited
        assert self.selected is not None
        given = tuple(self.added.shape)
        added = _part_of(self.added.to(inputs.q), self.selected, part)
        if added.ndim > 4 or any(a not in (1, n) for a, n in zip(added.shape[::-1], shape[::-1], strict=False)):
            raise ValueError(
                f"{self.path}: a bias of shape {given} does not broadcast to "
                f"{(len(self.selected.batch), len(self.selected.heads), *shape[2:])}, (batch, heads, queries, keys) of "
                "what is edited"
            )
        edited.bias = added if inputs.bias is None else dense_bias(inputs.bias, inputs) + added
        return edited


@dataclass
class PatchInputs(ScoreEdit):
    """Weights, values, queries or keys of another text."""

    recorded: RecordedAttention
    part: str

    def __post_init__(self) -> None:
        self.needs_scores = self.part in ("queries", "keys")

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"patch({self.part})"

    def apply(self, inputs: AttentionInputs, positions: CallPositions, part: CallPart) -> AttentionInputs:
        """See `ScoreEdit`."""
        if positions.first_query:
            return inputs  # a step of a generation: the recording has the prompt only
        batch, _, queries, keys = inputs.shape
        recorded = self.recorded.only(part, (queries, keys))
        if self.part == "weights":
            edited = copy(recorded)
            edited.q, edited.k = (_like(t, batch, inputs.q) for t in (recorded.q, recorded.k))
            edited.v, edited._ensure_unchanged = inputs.v, None
        else:
            edited = copy(inputs)
            name = {"values": "v", "queries": "q", "keys": "k"}[self.part]
            new, old = getattr(recorded, name), getattr(inputs, name)
            if new.shape[2:] != old.shape[2:]:
                raise ValueError(
                    f"{self.path}: the recording has {self.part} (batch, heads, tokens, width) {tuple(new.shape)}, and "
                    f"this call {tuple(old.shape)}"
                )
            setattr(edited, name, _like(new, batch, old))
        _share_key_heads(edited)
        return edited


@dataclass
class Ablate(OutputEdit):
    """A head's output replaced by zeros, by its mean, or by that of other texts."""

    method: str
    recorded: RecordedAttention | None
    generator: torch.Generator | None

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"ablate({self.method})" if self.recorded is None else f"ablate({self.method}, recording)"

    def output(self, old: Tensor, rows: Sequence[int], positions: CallPositions, part: CallPart) -> Tensor | None:
        """See `OutputEdit`."""
        if self.method == "zero":
            return old.new_zeros(())
        if self.recorded is None:
            return old.mean((0, 2), keepdim=True)
        if self.method == "mean":
            return self.recorded.mean_output(part.heads).to(old)
        recordings = range(len(self.recorded.maps))
        texts = torch.cat([_at_positions(self.recorded, n, part.heads, positions) for n in recordings])
        if not texts.shape[2]:
            return None  # a step of a generation: the recording has the prompt only
        drawn = torch.randint(len(texts), (len(part.batch),), generator=self.generator)
        return texts[drawn.to(texts.device)].to(old)


@dataclass
class PatchOutput(OutputEdit):
    """Activation patching: the output of a head for another text, at the same positions."""

    recorded: RecordedAttention
    patched_queries: Sequence[int] | None

    @property
    def description(self) -> str:
        """See `Edit`."""
        return f"patch(output{queries_text(self.patched_queries)})"

    @property
    def queries(self) -> Sequence[int] | None:
        """See `Edit`."""
        return self.patched_queries

    def output(self, old: Tensor, rows: Sequence[int], positions: CallPositions, part: CallPart) -> Tensor | None:
        """See `OutputEdit`."""
        if self.patched_queries is None:
            recorded = _at_positions(self.recorded, 0, part.heads, positions)
            if not recorded.shape[2]:
                return None
        else:
            recorded = self.recorded.head_output(0, part.heads)
            places = [positions.first_query + row for row in rows]
            if places[-1] >= recorded.shape[2]:
                count = recorded.shape[2]
                raise ValueError(f"{self.path}: the recording has {count} queries, 0 to {count - 1}; got {places[-1]}")
            recorded = recorded[:, :, places]
        return recorded[self.recorded.batch_rows(len(recorded), part)].to(old)


def _at_positions(recorded: RecordedAttention, number: int, heads: Sequence[int], positions: CallPositions) -> Tensor:
    """The recorded output at the positions of a call's queries; without queries for a step behind the recording.

    Raises:
        ValueError: a recording of another length than the call.
    """
    output = recorded.head_output(number, heads)
    first, count = positions.first_query, positions.num_queries
    if first and first >= output.shape[2]:
        return output[:, :, :0]
    if first + count > output.shape[2] or (not first and count != output.shape[2]):
        raise ValueError(
            f"{recorded.path}: the recording has {output.shape[2]} queries, and this call {first + count}: record a "
            "text of the same number of tokens, or name the queries of both with queries="
        )
    return output[:, :, first : first + count]


def _like(t: Tensor, batch: int, old: Tensor) -> Tensor:
    """A recorded tensor for a batch, in the dtype of the call."""
    t = t.clone() if t.is_inference() and not torch.is_inference_mode_enabled() else t
    return t.to(old).expand(batch, *t.shape[1:])


def _share_key_heads(inputs: AttentionInputs) -> None:
    """Give keys and values the same number of heads, where only one of them is repeated for the heads of a group."""
    assert inputs.v is not None
    heads = max(inputs.k.shape[1], inputs.v.shape[1])
    inputs.k, inputs.v = (
        t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], 1) for t in (inputs.k, inputs.v)
    )


def _one_hot(places: Sequence[int], size: int, device: torch.device) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool, device=device)
    mask[list(places)] = True
    return mask


def _part_of(t: Tensor, selected: CallPart, part: CallPart) -> Tensor:
    """What a tensor that is given for all selected batch rows and heads has for some of them."""
    if t.ndim > 2 and t.shape[-3] > 1 and t.shape[-3] == len(selected.heads):
        t = t[..., [selected.heads.index(head) for head in part.heads], :, :]
    if t.ndim > 3 and len(t) > 1 and len(t) == len(selected.batch):
        t = t[[selected.batch.index(row) for row in part.batch]]
    return t


def with_mask(inputs: AttentionInputs, added: Mask) -> AttentionInputs:
    """The inputs with one mask more."""
    edited = copy(inputs)
    edited.mask = added if inputs.mask is None else inputs.mask & added
    return edited


def queries_text(queries: Sequence[int] | None) -> str:
    """The queries of an edit as they were written; "" for all."""
    return "" if queries is None else f", queries={list(queries)}"


def dense_bias(bias: Tensor | PositionBias, inputs: AttentionInputs) -> Tensor:
    """A bias as a tensor that broadcasts to (batch, heads, queries, keys)."""
    if isinstance(bias, PositionBias):
        bias = bias.dense(inputs.shape[2], inputs.shape[3], device=inputs.device)
    return bias.to(inputs.q)
