"""`Movement` of static/live/engine.js: what the edits of a question changed, by running the model with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Bool, Float
from regard.errors import InputError
from regard.lens.capture.eager_weights import EAGER_KERNEL
from regard.lens.intervene import intervene
from regard.lens.interventions.intervention import EditableAttention
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording
from regard.server.live_model import LiveModel, TextReading
from regard.server.questions import ModelEdit, Question, RowEdits
from regard.server.queueing import Task
from regard.server.tokens import likeliest_ids, tokens_of


def movement(
    model: LiveModel, question: Question, readings: Sequence[TextReading], paths: Sequence[str], task: Task
) -> dict[str, Any]:
    """A `Movement`.

    Args:
        model: the model.
        question: with edits.
        readings: of its texts, without the edits.
        paths: of the attentions, in the order of the facts.
        task: is checked between the steps.

    Raises:
        InputError: an edit of an attention, a head, a query or a key that is not there.
    """
    before, notes = readings[0], dict[str, None]()
    edits = _located(question.edits, paths, before.recording)
    with intervene(model.module, verify=False) as intervention:
        for path, edit in edits:
            for note in write_edit(partial(intervention.__getitem__, path), edit, _map(before.recording, path)):
                notes.setdefault(f"{path}, head {edit.head}: {note}")
        task.check()
        after = model.read(question.texts[0], before.target)
    task.check()
    heads = _head_changes(before.recording, after.recording, paths, edits, task)
    vectors = before.vector, after.vector
    return {
        **_vector_change(*vectors),
        "similarity": cosine(after.vector, readings[1].vector) if len(readings) > 1 else None,
        "heads": heads,
        "next": _next_tokens(model, before.logits, after.logits),
        "notes": list(notes),
    }


def _vector_change(before: Tensor | None, after: Tensor | None) -> dict[str, float | None]:
    if before is None or after is None:
        return {"cosine": None, "distance": None}
    return {"cosine": cosine(before, after), "distance": float(torch.dist(before.double(), after.double()))}


def cosine(a: Tensor | None, b: Tensor | None) -> float | None:
    """The cosine similarity of two vectors (d_model,); None where there is none."""
    return None if a is None or b is None else float(F.cosine_similarity(a.double(), b.double(), dim=0))


def _next_tokens(model: LiveModel, before: Tensor | None, after: Tensor | None) -> dict[str, Any] | None:
    """The likeliest tokens of both runs, as each run has them."""
    if before is None or after is None:
        return None
    ids = list(dict.fromkeys([*likeliest_ids(before), *likeliest_ids(after)]))
    return {"before": tokens_of(model, before, ids), "after": tokens_of(model, after, ids)}


# Edits.


def _located(edits: Sequence[ModelEdit], paths: Sequence[str], recording: Recording) -> list[tuple[str, ModelEdit]]:
    """The edits, each with the path of its attention.

    Raises:
        InputError: something that is not there.
    """
    found = []
    for n, edit in enumerate(edits):
        if edit.attention >= len(paths):
            raise _missing(f"edits[{n}].attention", "attention", edit.attention, len(paths))
        path = paths[edit.attention]
        _, heads, queries, keys = recording.entry(path).shape
        if edit.head >= heads:
            raise _missing(f"edits[{n}].head", "head", edit.head, heads)
        if edit.query is not None and edit.query >= queries:
            raise _missing(f"edits[{n}].query", "query", edit.query, queries)
        row = edit.row
        for key in (*row.scores, *row.mask, *row.removed_keys):
            if key >= keys:
                raise _missing(f"edits[{n}].edits", "key", key, keys)
        found.append((path, edit))
    return found


def _missing(field: str, what: str, number: int, count: int) -> InputError:
    return InputError(f"{field}: there is no {what} {number}: there are {count}, counted from 0", field)


def write_edit(attention: Callable[[], EditableAttention], edit: ModelEdit, m: AttentionMap | None) -> list[str]:
    """Write an edit of a page as edits of `regard.intervene`.

    Args:
        attention: gives the attention that is edited.
        edit: of one head.
        m: its map without edits; None where it is too large to be kept.

    Returns:
        What the model cannot follow, and why.
    """
    if m is None:
        return ["its map is too large to be edited"]
    try:
        head = attention().heads[edit.head]
    except KeyError:
        return ["this module attends several times in one pass, and its calls cannot be told apart"]
    row, queries = edit.row, None if edit.query is None else [edit.query]
    notes = _blocked_by_model(row, m, edit)
    if edit.off:
        if queries is None:
            head.ablate("zero")
        else:  # a row without any key left gives zeros
            head.block(queries=queries, keys=range(m.shape[3]))
        return notes
    needs_scores = row.scores or row.scale is not None
    if needs_scores and m.kernel == EAGER_KERNEL:
        notes.append("of this attention only weights are known, no queries and keys: scores and scale stay as they are")
    elif needs_scores:
        if row.scale is not None:
            head.scale(row.scale / m.scale, queries)
        if row.scores:
            head.set_scores(row.scores, queries)
    if row.temperature != 1:
        head.temperature(row.temperature, queries)
    if blocked := blocked_keys(row):
        head.block(queries=queries, keys=blocked)
    return notes


def blocked_keys(row: RowEdits) -> list[int]:
    """The keys to which a row may not attend any more."""
    return sorted({*row.removed_keys, *(key for key, allowed in row.mask.items() if not allowed)})


def _blocked_by_model(row: RowEdits, m: AttentionMap, edit: ModelEdit) -> list[str]:
    """A note for each key that an edit allows and the model's own mask does not."""
    allowed = _allowed(m, edit.head)
    rows = slice(None) if edit.query is None else edit.query
    return [
        f"the model itself masks key {key}, and no edit can lift that"
        for key, is_allowed in row.mask.items()
        if is_allowed and allowed is not None and not bool(allowed[rows, key].all())
    ]


# Changes of weights.


def _map(recording: Recording, path: str) -> AttentionMap | None:
    """A map; None where the recording has a summary only."""
    m = recording[path]
    return m if isinstance(m, AttentionMap) else None


def _head_changes(
    before: Recording, after: Recording, paths: Sequence[str], edits: Sequence[tuple[str, ModelEdit]], task: Task
) -> list[dict[str, Any]]:
    """`HeadChange` of every head from the first edited attention on."""
    changes = []
    for index in range(min(edit.attention for _, edit in edits), len(paths)):
        task.check()
        own = [edit for path, edit in edits if path == paths[index]]
        old, new = _map(before, paths[index]), _map(after, paths[index])
        if old is None or new is None or old.shape != new.shape:
            continue
        weights = old[0].float(), edited_weights(new, own)
        largest = (weights[1] - weights[0]).abs().flatten(1).max(-1)
        for head, place in enumerate(largest.indices.tolist()):
            query, key = divmod(place, old.shape[3])
            values = (float(each[head, query, key]) for each in weights)
            names = ("attention", "head", "query", "key", "before", "after")
            changes.append(dict(zip(names, (index, head, query, key, *values), strict=True)))
    return changes


def edited_weights(m: AttentionMap, edits: Sequence[ModelEdit]) -> Float[Tensor, "heads queries keys"]:
    """The weights of an attention after its own edits, whose map is recorded before them.

    A head that is switched off keeps its weights: what it gives is replaced.
    """
    weights = m[0].float()
    by_row: dict[tuple[int, int | None], list[RowEdits]] = {}
    for edit in edits:
        if not edit.off:
            by_row.setdefault((edit.head, edit.query), []).append(edit.row)
    # Edits of all rows of a head come first: a row's own edits are computed with them.
    for (head, query), own in sorted(by_row.items(), key=lambda item: item[0][1] is not None):
        rows = range(m.shape[2]) if query is None else [query]
        common = [] if query is None else by_row.get((head, None), [])
        weights[head, list(rows)] = edited_rows(m, head, rows, merged([*common, *own])).float()
    return weights


def merged(rows: Sequence[RowEdits]) -> RowEdits:
    """Several edits of the same row as one: the last score, scale and mask count, temperatures multiply."""
    scores: dict[int, float] = {}
    mask: dict[int, bool] = {}
    scale, temperature, removed = None, 1.0, tuple[int, ...]()
    for row in rows:
        scores |= row.scores
        blocked: Mapping[int, bool] = {key: allowed for key, allowed in row.mask.items() if not allowed}
        mask |= blocked
        scale = row.scale if row.scale is not None else scale
        temperature *= row.temperature
        removed += row.removed_keys
    return RowEdits(scores, scale, temperature, mask, removed)


def edited_rows(m: AttentionMap, head: int, rows: Sequence[int], edits: RowEdits) -> Float[Tensor, "rows keys"]:
    """Some rows of a head with edits, by the definition in float64, as static/core/attention.js computes them."""
    rows, group = list(rows), m.shape[1] // m.k.shape[1]
    scores = m.q[0, head, rows].double() @ m.k[0, head // group].double().T
    for key, score in edits.scores.items():
        scores[:, key] = score
    scaled = scores * (m.scale if edits.scale is None else edits.scale)
    capped = scaled if m.softcap is None else m.softcap * torch.tanh(scaled / m.softcap)
    bias = m.bias
    if bias is not None:
        table = bias if isinstance(bias, Tensor) else bias.dense(*m.shape[2:], device=m.device)
        capped = capped + table.double().expand(m.shape)[0, head, rows]
    allowed = _allowed(m, head)
    masked = capped if allowed is None else capped.masked_fill(~allowed[rows], -torch.inf)
    masked[:, blocked_keys(edits)] = -torch.inf
    masked = masked / edits.temperature
    if m.sinks is not None:
        sink = m.sinks[head].double() / edits.temperature
        masked = torch.cat([masked, sink.expand(len(rows), 1)], -1)
    return masked.softmax(-1)[:, : m.shape[3]].nan_to_num(0.0)  # NaN: a row without any key


def _allowed(m: AttentionMap, head: int) -> Bool[Tensor, "queries keys"] | None:
    """Which keys each query of a head may attend to; None: all."""
    if m.mask is None:
        return None
    return m.mask.broadcastable(*m.shape[2:], device=m.device).expand(m.shape)[0, head]
