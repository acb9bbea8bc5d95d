"""What context does to words: the vectors of a word in several sentences, after each layer."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.files import plain
from regard.lens.text.hidden_states import cosines, states_of, vectors
from regard.lens.text.streams import Sides
from regard.lens.text.words import Words
from regard.pretrained import Pretrained

__all__ = ["Context", "ContextCosine", "ContextPart", "ContextWord", "context"]

MOST = 200
"""So many shared words are kept, and so many others: a page has to hold them, and a reader to find one."""

MARKS = ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk")

TINY = torch.finfo(torch.float64).tiny

Point = tuple[float, float]


@dataclass(frozen=True)
class ContextPart:
    """A stretch of a sentence."""

    text: str
    word: int | None
    """Which of the kept words it is, where it is one."""


@dataclass(frozen=True)
class ContextCosine:
    """A word in another sentence."""

    sentence: int
    cosine: list[float]
    """Between its vector there and in the first sentence that it stands in, at the input and after each layer."""


@dataclass(frozen=True)
class ContextWord:
    """A word at its first place in each sentence."""

    word: str
    cosines: list[ContextCosine]
    points: list[list[Point] | None]
    """For each sentence: where its vector stands in the plane, at the input and after each layer; None for a sentence
    that it does not stand in."""


@dataclass(frozen=True)
class Context:
    """Words that stand in several sentences, and what becomes of their vectors."""

    sentences: list[list[ContextPart]]
    """Each sentence, cut where a kept word begins and ends."""
    words: list[ContextWord]
    """Words of at least two sentences: first the last of those that stand in most of them, for a reader to begin with;
    then the others, by how much their vectors differ after the last layer."""
    others: list[ContextWord]
    """Words of one sentence, as points only."""
    shared: int
    """How many words stand in at least two sentences; of many, those that change most are kept."""
    plane: list[float]
    """Which share of all differences between the vectors of these words the plane shows, at the input and after each
    layer."""
    layers: int

    def to_dict(self) -> dict[str, Any]:
        """The facts as the page's data.js says them: cosines to seven digits, points to four figures."""
        facts: dict[str, Any] = plain(self)
        facts["plane"] = [round(share, 4) for share in self.plane]
        for word in facts["words"] + facts["others"]:
            for other in word["cosines"]:
                other["cosine"] = [round(cosine, 7) for cosine in other["cosine"]]
            word["points"] = [
                None if points is None else [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in points]
                for points in word["points"]
            ]
        return facts


@torch.no_grad()
def context(texts: Sequence[str], model: Pretrained) -> Context:
    """The words that sentences share, and how far apart their vectors are in them, layer by layer.

    A word is found as `regard.explain` finds it, whatever its case, at its first place in each sentence; the vector of
    a word of several tokens is their mean. Marks such as "." count only where no word is shared. The points are those
    of the plane in which the kept words of all sentences differ most in a layer: their first two principal components.

    Args:
        texts: two sentences or more.
        model: what `regard.load` returned. Of an encoder-decoder it is the encoder that reads them.

    Raises:
        ValueError: fewer than two texts.
        InputError: no two of them share a word; a text that is empty or too long.
    """
    if isinstance(texts, str) or not isinstance(model, Pretrained):
        raise TypeError(f"context wants a list of texts and what regard.load returned; got {texts!r} and {model!r}")
    if len(texts) < 2:
        raise ValueError(f"words are compared between two texts or more; got {len(texts)}")
    sides = [Sides.of(text, model, "decoder" if model.kind == "decoder" else "encoder") for text in texts]
    read = [side.words for side in sides]
    places = [words.places() for words in read]
    shared, lone = _sorted(places)
    if not shared:
        listed = "; ".join(words.listed() for words in read)
        raise InputError(f"no two of the texts share a word. Their words are, text by text: {listed}")
    states = [states_of(side.stack, side.words) for side in sides]
    tracks = {
        word: {number: vectors(states[number], place[word]) for number, place in enumerate(places) if word in place}
        for word in shared + lone
    }
    compared = {word: _compared(tracks[word]) for word in shared}
    # What a reader compares sentences for mostly stands at their end: "a river bank", "a loan in a bank".
    last = max(enumerate(shared), key=lambda each: (len(tracks[each[1]]), each[0]))[1]
    by_change = sorted(shared, key=lambda word: min(other.cosine[-1] for other in compared[word]))
    kept = [last, *(word for word in by_change if word != last)][:MOST]
    # A plane in which words differ that are not drawn would say little about those that are.
    points, plane = _plane({(word, number): track for word in kept + lone for number, track in tracks[word].items()})

    def told(word: str) -> ContextWord:
        first = min(tracks[word])
        at = [points.get((word, number)) for number in range(len(texts))]
        return ContextWord(read[first].written(places[first][word]), compared.get(word, []), at)

    return Context(
        [_cut(words, place, kept) for words, place in zip(read, places, strict=True)],
        [told(word) for word in kept],
        [told(word) for word in lone],
        len(shared),
        plane,
        sides[0].stack.config.num_layers,
    )


def _sorted(places: list[dict[str, list[int]]]) -> tuple[list[str], list[str]]:
    """The words of at least two sentences, and the first ones of each sentence that stand in no other."""
    count = Counter(word for place in places for word in place)
    shared = [word for word in count if count[word] > 1]
    alone = [[word for word in place if count[word] == 1 and not _is_mark(word)] for place in places]
    return (
        [word for word in shared if not _is_mark(word)] or shared,
        [word for each in alone for word in each[: MOST // len(places)]],
    )


def _is_mark(word: str) -> bool:
    """Whether a word is punctuation or a sign such as "<" alone. Emoji, which are other symbols, say something."""
    return all(unicodedata.category(character) in MARKS for character in word)


def _compared(tracks: dict[int, Tensor]) -> list[ContextCosine]:
    """A word in its other sentences, held against the first that it stands in."""
    (_, first), *others = tracks.items()
    return [ContextCosine(number, cosines(first, track)) for number, track in others]


def _plane(tracks: dict[tuple[str, int], Tensor]) -> tuple[dict[tuple[str, int], list[Point]], list[float]]:
    """Each vector's place in the plane of its state, and how much of the differences the planes show.

    Principal components have no sign. That of the first state is free; each later one takes the sign that moves the
    points least, so that what is drawn layer by layer does not flip.
    """
    before = None
    points: dict[tuple[str, int], list[Point]] = {name: [] for name in tracks}
    shares = []
    for state in torch.stack(list(tracks.values()), dim=1):
        left, lengths, _ = torch.linalg.svd(state - state.mean(0), full_matrices=False)
        at = left[:, :2] * lengths[:2]
        before = at if before is None else before
        at = torch.where((at * before).sum(0) < 0, -at, at)
        before = at
        for name, (x, y) in zip(tracks, at.tolist(), strict=True):
            points[name].append((x, y))
        shares.append((lengths[:2].square().sum() / lengths.square().sum().clamp(min=TINY)).item())
    return points, shares


def _cut(words: Words, place: dict[str, list[int]], kept: list[str]) -> list[ContextPart]:
    """A text in parts: the kept words at their first places, and what stands between them."""
    parts: list[ContextPart] = []
    end = 0
    for pieces, number in sorted((place[word], number) for number, word in enumerate(kept) if word in place):
        written = words.written(pieces)
        start = words.text.index(written, words.spans[pieces[0]][0])  # some tokens begin with the space before them
        if start >= end:
            parts += [ContextPart(words.text[end:start], None), ContextPart(written, number)]
            end = start + len(written)
    return [part for part in (*parts, ContextPart(words.text[end:], None)) if part.text]
