"""What requests ask: `Question`, `EffectQuestion` and `GenerateQuestion` of static/live/engine.js, read from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.server.fields import Fields
from regard.server.limits import Limits

MAX_EDIT = 1e6
"""Of an edit's numbers, as in static/core/attention.js; a temperature is at least one by it."""

MAX_INDEX = 10**6
"""Of attentions, heads, queries and keys. Which of them a model has is known when it has read the text."""

OVER = ("heads", "layers", "tokens", "edges")
METRICS = ("cosine", "similarity", "log_prob", "logit_difference", "kl")
ABLATIONS = ("zero", "mean", "resample")
TOKENS_OF_METRIC = {"log_prob": 1, "logit_difference": 2}

MAX_TEMPERATURE = 100.0
"""Of sampling: above it every token is as likely as any other."""


@dataclass(frozen=True)
class RowEdits:
    """Changes of one row: `Edits` in static/core/attention.js."""

    scores: Mapping[int, float]
    """q . k of keys, in place of the computed ones."""
    scale: float | None
    temperature: float
    mask: Mapping[int, bool]
    """Whether the query may attend to a key."""
    removed_keys: tuple[int, ...]


@dataclass(frozen=True)
class ModelEdit:
    """A change of one head while the model reads the first text."""

    attention: int
    head: int
    query: int | None
    """None for all rows."""
    off: bool
    """Whether the head gives zeros."""
    row: RowEdits


@dataclass(frozen=True)
class Question:
    """One text, or two that are compared, and edits of the model while it reads the first."""

    texts: tuple[str, ...]
    edits: tuple[ModelEdit, ...]


@dataclass(frozen=True)
class EffectQuestion:
    """What matters to a metric of the first text."""

    texts: tuple[str, ...]
    over: str
    metric: str
    tokens: tuple[str, ...]
    ablation: str
    source: str | None


@dataclass(frozen=True)
class GenerateQuestion:
    """A text to continue, and the head whose map grows."""

    text: str
    max_new_tokens: int
    temperature: float
    seed: int
    attention: int
    head: int


def read_question(body: Any, limits: Limits) -> Question:
    """A `Question`.

    Args:
        body: the JSON of the request.
        limits: of the server.

    Raises:
        InputError: a wrong field, by its name and with what was expected.
    """
    fields = Fields(body)
    texts = fields.texts("texts", range(1, 3), limits.characters)
    edits = fields.items("edits", range(limits.edits + 1), _read_edit)
    fields.finish()
    return Question(texts, edits)


def _read_edit(value: Any, path: str) -> ModelEdit:
    fields = Fields(value, path)
    attention, head = fields.whole("attention", 0, MAX_INDEX), fields.whole("head", 0, MAX_INDEX)
    query, off = fields.optional_whole("query", 0, MAX_INDEX), fields.flag("off")
    row = _read_row_edits(fields.part("edits"))
    fields.finish()
    return ModelEdit(attention, head, query, off, row)


def _read_row_edits(fields: Fields) -> RowEdits:
    scores = fields.by_key("scores", MAX_INDEX, lambda name, value: fields.as_number(name, value, -MAX_EDIT, MAX_EDIT))
    scale = fields.optional_number("scale", -MAX_EDIT, MAX_EDIT)
    temperature = fields.optional_number("temperature", 1 / MAX_EDIT, MAX_EDIT)
    mask = fields.by_key("mask", MAX_INDEX, fields.as_flag)
    removed = fields.items(
        "removedKeys", range(MAX_INDEX), lambda value, path: Fields({path: value}).whole(path, 0, MAX_INDEX)
    )
    fields.finish()
    return RowEdits(scores, scale, 1.0 if temperature is None else temperature, mask, removed)


def read_effect_question(body: Any, limits: Limits) -> EffectQuestion:
    """An `EffectQuestion`; see `read_question`."""
    fields = Fields(body)
    texts = fields.texts("texts", range(1, 3), limits.characters)
    over, metric = fields.choice("over", OVER), fields.choice("metric", METRICS)
    count = TOKENS_OF_METRIC.get(metric, 0)
    tokens = fields.texts("tokens", range(count, count + 1), limits.characters)
    ablation = fields.choice("ablation", ABLATIONS)
    source = fields.optional_text("source", limits.characters)
    fields.finish()
    return EffectQuestion(texts, over, metric, tokens, ablation, source)


def read_generate_question(body: Any, limits: Limits) -> GenerateQuestion:
    """A `GenerateQuestion`; see `read_question`."""
    fields = Fields(body)
    text = fields.text("text", limits.characters)
    count = fields.whole("max_new_tokens", 1, limits.new_tokens)
    temperature, seed = fields.number("temperature", 0, MAX_TEMPERATURE), fields.whole("seed", 0, 2**53)
    show = fields.part("show")
    attention, head = show.whole("attention", 0, MAX_INDEX), show.whole("head", 0, MAX_INDEX)
    show.finish()
    fields.finish()
    return GenerateQuestion(text, count, temperature, seed, attention, head)
