"""Contextual vectors: the hidden states of a word in several sentences, compared layer by layer."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.files import to_builtins
from regard.lens.text.hidden_states import cosine_similarities, text_hidden_states, word_hidden_states
from regard.lens.text.streams import Streams
from regard.lens.text.words import Words, normalize_word
from regard.pretrained import Pretrained

MAX_WORDS = 200
"""The most shared words, and the most other words, in the result: they must fit on a page."""

MARK_CATEGORIES = ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk")
"""The Unicode categories of punctuation and of signs such as "<"; emoji have another category."""

TINY = torch.finfo(torch.float64).tiny

Point = tuple[float, float]


@dataclass(frozen=True)
class ContextualPart:
    """A part of a sentence."""

    text: str
    word: int | None
    """The index of the shared word that the part is; None for the text between shared words."""


@dataclass(frozen=True)
class ContextualCosines:
    """A word in another sentence than its first one."""

    sentence: int
    cosine: list[float]
    """Cosine similarity with the word in the first sentence that has it: at the input and after each layer."""


@dataclass(frozen=True)
class ContextualWord:
    """A word at its first occurrence in each sentence."""

    word: str
    cosines: list[ContextualCosines]
    points: list[list[Point] | None]
    """For each sentence the word's vector in the plane, at the input and after each layer; None where the sentence
    does not have the word."""


@dataclass(frozen=True)
class ContextualVectors:
    """The words of several sentences and their hidden states."""

    sentences: list[list[ContextualPart]]
    """Each sentence, split at the shared words."""
    words: list[ContextualWord]
    """The shared words: those of at least two sentences. The first one is the word that was asked for, by default the
    last word that the most sentences share; the others are sorted by the difference of their vectors after the last
    layer, the largest first."""
    other_words: list[ContextualWord]
    """Words of one sentence, with points but without cosines."""
    num_shared: int
    """The number of shared words; of more than `MAX_WORDS` those with the largest differences are in ``words``."""
    explained_variance: list[float]
    """The share of the vectors' variance that the plane shows, at the input and after each layer."""
    num_layers: int

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists for the page: cosines rounded to seven digits, points to four."""
        facts: dict[str, Any] = to_builtins(self)
        facts["explained_variance"] = [round(share, 4) for share in self.explained_variance]
        for word in facts["words"] + facts["other_words"]:
            for other in word["cosines"]:
                other["cosine"] = [round(cosine, 7) for cosine in other["cosine"]]
            word["points"] = [
                None if points is None else [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in points]
                for points in word["points"]
            ]
        return facts


@torch.no_grad()
def contextual_vectors(texts: Sequence[str], model: Pretrained, first_word: str | None = None) -> ContextualVectors:
    """The words that sentences share, and the differences between their hidden states, layer by layer.

    A word is found as `regard.explain` finds it, in any case, at its first occurrence in each sentence. The vector of a
    word of several tokens is their mean. Punctuation marks count only if the sentences share no word. The points are
    the first two principal components of all vectors of a layer.

    Args:
        texts: at least two sentences.
        model: the result of `regard.load`. Of an encoder-decoder the encoder is used.
        first_word: the word to list first, if several texts have it.

    Raises:
        ValueError: fewer than two texts.
        InputError: no two texts share a word; an empty or too long text.
    """
    if isinstance(texts, str) or not isinstance(model, Pretrained):
        raise TypeError(
            f"contextual_vectors wants a list of texts and what regard.load returned; got {texts!r} and {model!r}"
        )
    if len(texts) < 2:
        raise ValueError(f"words are compared between two texts or more; got {len(texts)}")
    streams = [Streams.of(text, model, "decoder" if model.kind == "decoder" else "encoder") for text in texts]
    all_words = [stream.query_words for stream in streams]
    positions = [words.first_positions() for words in all_words]
    shared, others = _split_shared(positions)
    if not shared:
        described = "; ".join(words.describe() for words in all_words)
        raise InputError(f"no two of the texts share a word. Their words are, text by text: {described}")
    hidden_states = [text_hidden_states(stream.stack, stream.query_words) for stream in streams]
    vectors = {
        word: {
            i: word_hidden_states(hidden_states[i], places[word])
            for i, places in enumerate(positions)
            if word in places
        }
        for word in shared + others
    }
    cosines = {word: _cosines(vectors[word]) for word in shared}
    # People often put the word that they want to compare at the end: "a river bank", "a loan in a bank".
    first = max(enumerate(shared), key=lambda item: (len(vectors[item[1]]), item[0]))[1]
    if first_word is not None and normalize_word(first_word) in shared:
        first = normalize_word(first_word)
    by_change = sorted(shared, key=lambda word: min(other.cosine[-1] for other in cosines[word]))
    listed = [first, *(word for word in by_change if word != first)][:MAX_WORDS]
    # The plane is that of the listed words only: other words would change it and are not drawn.
    points, explained_variance = _project(
        {(word, i): vector for word in listed + others for i, vector in vectors[word].items()}
    )

    def describe(word: str) -> ContextualWord:
        first = min(vectors[word])
        written = all_words[first].surface_form(positions[first][word])
        return ContextualWord(written, cosines.get(word, []), [points.get((word, i)) for i in range(len(texts))])

    return ContextualVectors(
        [_split_sentence(words, places, listed) for words, places in zip(all_words, positions, strict=True)],
        [describe(word) for word in listed],
        [describe(word) for word in others],
        len(shared),
        explained_variance,
        streams[0].stack.config.num_layers,
    )


def _split_shared(positions: list[dict[str, list[int]]]) -> tuple[list[str], list[str]]:
    """The words of at least two sentences, and the first words of each sentence that no other sentence has."""
    count = Counter(word for places in positions for word in places)
    shared = [word for word in count if count[word] > 1]
    per_sentence = MAX_WORDS // len(positions)
    others = [
        [word for word in places if count[word] == 1 and not _is_mark(word)][:per_sentence] for places in positions
    ]
    return [word for word in shared if not _is_mark(word)] or shared, [word for words in others for word in words]


def _is_mark(word: str) -> bool:
    """Whether a word consists of punctuation and signs only."""
    return all(unicodedata.category(character) in MARK_CATEGORIES for character in word)


def _cosines(vectors: dict[int, Tensor]) -> list[ContextualCosines]:
    """A word in its other sentences, compared with the first sentence that has it."""
    (_, first), *others = vectors.items()
    return [ContextualCosines(i, cosine_similarities(first, vector)) for i, vector in others]


def _project(vectors: dict[tuple[str, int], Tensor]) -> tuple[dict[tuple[str, int], list[Point]], list[float]]:
    """Each vector's first two principal components in each layer, and the share of the variance that they explain.

    The sign of a principal component is free. In each layer after the first it is the one that moves the points least,
    so that the drawing does not flip from layer to layer.
    """
    previous = None
    points: dict[tuple[str, int], list[Point]] = {name: [] for name in vectors}
    explained = []
    for layer in torch.stack(list(vectors.values()), dim=1):
        u, s, _ = torch.linalg.svd(layer - layer.mean(0), full_matrices=False)
        projected = u[:, :2] * s[:2]
        previous = projected if previous is None else previous
        projected = torch.where((projected * previous).sum(0) < 0, -projected, projected)
        previous = projected
        for name, (x, y) in zip(vectors, projected.tolist(), strict=True):
            points[name].append((x, y))
        explained.append((s[:2].square().sum() / s.square().sum().clamp(min=TINY)).item())
    return points, explained


def _split_sentence(words: Words, positions: dict[str, list[int]], listed: list[str]) -> list[ContextualPart]:
    """A text in parts: the listed words at their first occurrence, and the text between them."""
    parts: list[ContextualPart] = []
    end = 0
    for places, number in sorted((positions[word], number) for number, word in enumerate(listed) if word in positions):
        written = words.surface_form(places)
        start = words.text.index(written, words.offsets[places[0]][0])  # some tokens begin with the space before them
        if start >= end:
            parts += [ContextualPart(words.text[end:start], None), ContextualPart(written, number)]
            end = start + len(written)
    return [part for part in (*parts, ContextualPart(words.text[end:], None)) if part.text]
