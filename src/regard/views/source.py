"""What `regard see` shows: the attention of a text that a model reads, or of a recording; and what comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.errors import InputError, errors_of_argument, short_repr
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.head_selection import most_informative_head
from regard.lens.recording.recording import Recording
from regard.lens.text.contextual import contextual_vectors
from regard.lens.text.generation import record_generation
from regard.lens.text.run import find_heads, run
from regard.lens.text.word_selection import TextWord
from regard.pretrained import DEFAULT_DECODER, DEFAULT_MODEL, Pretrained, load
from regard.views.figures.cells import map_tokens

HeadNumbers = int | tuple[int, int]
"""A head of each layer, or (layer, head)."""


@dataclass(frozen=True)
class AttentionSource:
    """A recording, and what of it is shown first."""

    recording: Recording
    title: str
    model: str
    heads: list[tuple[str, int]] | None
    """The paths and map indices of the heads that were named."""
    initial: tuple[str, int, int] | None
    """The path, the index of the head in its map and the query to show first; None where nothing decides it."""
    context: Mapping[str, Any] | None = None
    """The words that several texts share: the ``to_dict()`` of `contextual_vectors`."""

    def heads_beside(self, path: str) -> list[tuple[str, int]]:
        """Those of the named heads whose queries and keys are the tokens that an attention has."""
        entry = self.recording.entry(path)
        return [
            (at, head)
            for at, head in self.heads or ()
            if ((other := self.recording.entry(at)).kind, other.stack) == (entry.kind, entry.stack)
        ]


def attention_source(
    text: str | Path | Recording,
    model: str | Path | Pretrained | None = None,
    *,
    compare: Sequence[str] = (),
    target: str | None = None,
    max_new_tokens: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[HeadNumbers] | None = None,
    token: str | int | None = None,
) -> AttentionSource:
    """Run a model on a text, or take a recording; `regard.see` describes the arguments.

    Raises:
        InputError: an empty or too long text; no such model, file, layer, head or word; a model, other texts or a
            target for a recording.
    """
    recording, title = _as_recording(text)
    if recording is None and max_new_tokens is None:
        return _source_of_text(str(text), model or DEFAULT_MODEL, compare, target, layers, heads, token)
    model_name = ""
    if recording is None:
        _refuse("a text is continued", "one that is only read", compare=compare, target=target)
        assert max_new_tokens is not None
        pretrained = model if isinstance(model, Pretrained) else load(model or DEFAULT_DECODER)
        generation = record_generation(str(text), pretrained, max_new_tokens, layers)
        recording, title, model_name = generation.recording, generation.text, pretrained.name
    else:
        options = {"model": model, "compare": compare, "target": target, "max_new_tokens": max_new_tokens}
        _refuse("a recording is shown", "a text", **options)
        try:
            recording = recording if layers is None else recording.select(layers)
        except KeyError as error:
            raise InputError(str(error.args[0]), "layer") from error
    named = None if heads is None else find_heads(recording, heads)
    initial = None if token is None else _initial_of_recording(recording, named, token)
    return AttentionSource(recording, title, model_name, named, initial)


def _refuse(shown: str, owner: str, **options: object) -> None:
    """Refuse options that belong to something else than what is shown.

    Raises:
        InputError: one of them was given.
    """
    for name, value in options.items():
        if value:
            raise InputError(f"{shown}, and {name} belongs to {owner}: leave it out", name)


def find_query(m: AttentionMap | AttentionSummary, query: str, batch: int = 0) -> int:
    """The position of a query.

    Args:
        m: the map.
        query: a token, in any case: the first of several; or a position.
        batch: the batch row.

    Raises:
        InputError: there is no such token and no such position.
    """
    names, count = map_tokens(m, batch), m.shape[2]
    tokens = [] if names is None else [token.strip().casefold() for token in names[0]]
    if (token := query.strip().casefold()) in tokens:
        return tokens.index(token)
    if query.isascii() and query.isdecimal() and len(query) < len(str(count)) + 1 and int(query) < count:
        return int(query)
    raise InputError(
        f"there is no query {short_repr(query)}: give a token, or a position from 0 to {count - 1}", "token"
    )


def _as_recording(text: str | Path | Recording) -> tuple[Recording | None, str]:
    """The recording, if it is one or the path of one, and its title."""
    if isinstance(text, Recording):
        return text, ""
    if not isinstance(text, str | Path):
        raise TypeError(f"see wants a text, a Recording or the path of one; got {type(text).__name__}")
    is_file = isinstance(text, Path)
    with suppress(OSError, ValueError):  # a text that no file can be called
        is_file = is_file or Path(text).is_file()
    return (Recording.load(text), Path(text).name) if is_file else (None, "")


def _source_of_text(
    text: str,
    model: str | Path | Pretrained,
    compare: Sequence[str],
    target: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[HeadNumbers] | None,
    token: str | int | None,
) -> AttentionSource:
    """The word to show first is found as `regard.explain` finds it; so is its head, among those that were named."""
    pretrained = model if isinstance(model, Pretrained) else load(model)
    text_run = run(text, pretrained, layers, target)
    recording = text_run.recording
    named = None if heads is None else find_heads(recording, heads)
    candidates = text_run if named is None else replace(text_run, recording=recording.select(heads=named))
    try:
        word: TextWord | None = candidates.select_word(token, compare)
    except InputError:
        if token is not None:
            raise
        word = None  # the texts share no word, or no attention has it as a query: the strongest pair comes first
    text_run.label_surface_forms()
    initial = context = None
    if word is not None:
        number = candidates.recording.entry(word.path).head_numbers[word.head]
        head = list(recording.entry(word.path).head_numbers).index(number)
        initial = (word.path, head, word.query)
    if compare:
        first_word = None if word is None else word.word.text
        with errors_of_argument("compare"):
            context = contextual_vectors([text, *compare], pretrained, first_word).to_dict()
    return AttentionSource(recording, text, pretrained.name, named, initial, context)


def _initial_of_recording(
    recording: Recording, named: list[tuple[str, int]] | None, token: str | int
) -> tuple[str, int, int]:
    """The head that is shown first, and the token's position among its queries."""
    queries = {}
    error: InputError | None = None
    for path in dict.fromkeys(path for path, _ in named) if named else recording:
        try:
            queries[path] = find_query(recording[path], str(token))
        except InputError as reason:
            error = error or reason
    if not queries:
        raise error or InputError("there is no attention in this recording")
    if named:
        path, head = next((path, head) for path, head in named if path in queries)
    else:
        every_head = [(path, head) for path in queries for head in range(recording.entry(path).shape[1])]
        path, head = most_informative_head(recording.select(heads=every_head))
    return path, head, queries[path]
