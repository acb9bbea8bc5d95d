"""Watching a model read a text, and asking every head about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording
from regard.lens.text.overview import Head, Layer, Looked, Most, Overview, Pair
from regard.lens.text.streams import Sides, segments_of
from regard.lens.text.words import Words
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder

__all__ = ["Run", "heads_of", "layers_of", "read_text", "run"]

FARTHEST = 4
"""A layer's number has at most so many digits."""


@dataclass(frozen=True)
class Run:
    """One forward pass over a text, watched."""

    pretrained: Pretrained
    sides: Sides
    recording: Recording
    """With the tokens attached."""

    @property
    def words(self) -> Words:
        """The words of the text."""
        return self.sides.words if self.sides.source is None else self.sides.source

    @property
    def read(self) -> Words:
        """What a decoder beside an encoder reads: the start token, and what is written but for the last."""
        return self.sides.words.after(self.sides.start, self.sides.ids[0]).first(len(self.sides.ids))

    @property
    def tokens(self) -> int:
        """How many tokens the longest text has."""
        return max(len(self.words.ids), len(self.sides.ids))

    @torch.no_grad()
    def overview(self, each: Callable[[Iterable[str]], Iterable[str]] = lambda paths: paths) -> Overview:
        """Ask every attention.

        Args:
            each: what the paths go through while they are asked one by one: a progress bar.
        """
        layers = []
        sums: dict[tuple[str, str], list[tuple[int, Tensor]]] = {}
        for path in each(list(self.recording)):
            entry = self.recording.entry(path)
            m = entry.map()
            assert isinstance(m, AttentionMap)
            looks, seen = self.between(entry.kind, entry.stack)
            layers.append(_layer(self.recording, path, m, looks, seen))
            sums.setdefault((entry.stack, entry.kind), []).append((entry.layer or 0, m.received()[0] / m.shape[2]))
        most = [
            Most(stack, kind, _most(each_layer, self.between(kind, stack)[1]))
            for (stack, kind), each_layer in sums.items()
        ]
        sides = self.sides
        beside = sides.source is not None
        return Overview(
            self.pretrained.name,
            self.words.text,
            sides.target,
            self.words.tokens,
            self.read.tokens if beside else None,
            layers,
            most,
        )

    def show_words(self) -> None:
        """Label the recording with what stands in the texts, in place of how the tokenizer writes its tokens."""
        for path in self.recording:
            entry = self.recording.entry(path)
            queries, keys = self.between(entry.kind, entry.stack)
            entry.label((queries.shown(), keys.shown()))

    def between(self, kind: str, stack: str) -> tuple[Words, Words]:
        """The words that look and those that are looked at.

        A row of cross-attention is that of the position which writes the word.
        """
        if self.sides.source is None:
            return self.words, self.words
        if kind == "cross":
            return self.sides.words, self.words
        return (self.read, self.read) if stack.startswith("decoder") else (self.words, self.words)


@torch.no_grad()
def run(text: str, pretrained: Pretrained, layers: Sequence[int] | None = None, target: str | None = None) -> Run:
    """Run a model over a text once, watched.

    Args:
        text: what it reads; of an encoder-decoder the source.
        pretrained: a model and its tokenizer.
        layers: which layers to keep, of each stack; all by default.
        target: what an encoder-decoder writes for the text; by default it first writes that by itself.

    Raises:
        InputError: no such layer; an empty or too long text; a target for a model that reads one text.
    """
    model = pretrained.model
    config = pretrained.config
    count = max(config.num_layers, config.decoder.num_layers if config.decoder is not None else 0)
    for layer in layers or ():
        if layer >= count:
            raise InputError(f"there is no layer {layer}: this model has layers 0 to {count - 1}")
    sides = Sides.of(text, pretrained, target=target)
    device = pretrained.device
    ids = torch.tensor([list(sides.ids)], device=device)
    with watch(model, layers=layers) as recording:
        if isinstance(model, EncoderDecoder):
            assert sides.source is not None
            model(torch.tensor([sides.source.ids], device=device), ids)
        elif isinstance(model, Encoder):
            segments = segments_of(model, sides.words)
            model(ids, None if segments is None else segments[None])
        else:
            model(ids, last=1)
    seen = Run(pretrained, sides, recording)
    for path in recording:
        entry = recording.entry(path)
        queries, keys = seen.between(entry.kind, entry.stack)
        entry.label((queries.tokens, keys.tokens))
    return seen


def layers_of(said: str) -> list[int]:
    """The numbers that "0,3-5" names.

    Raises:
        InputError: something else.
    """
    numbers: list[int] = []
    for part in said.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdecimal() and len(end) <= FARTHEST for end in ends) or int(ends[0]) > int(
            ends[1]
        ):
            raise InputError(f"layers {said!r}: numbers from 0 and ranges of them, such as 0,3-5")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return sorted(set(numbers))


def heads_of(said: str) -> list[tuple[int, int]]:
    """The layers and heads that "3.5,4.0" names.

    Raises:
        InputError: something else.
    """
    heads = []
    for part in said.split(","):
        layer, dot, head = part.strip().partition(".")
        if not dot or not all(n.isascii() and n.isdecimal() and len(n) <= FARTHEST for n in (layer, head)):
            raise InputError(f"heads {said!r}: LAYER.HEAD, both from 0, and more behind commas, such as 3.5,4.0")
        heads.append((int(layer), int(head)))
    return heads


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except (OSError, ValueError) as error:  # the latter for names that no file can have
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _layer(recording: Recording, path: str, m: AttentionMap, looks: Words, seen: Words) -> Layer:
    entry = recording.entry(path)
    kinds, far, entropy = entry.head_types(), m.distance(), m.entropy()
    cross = entry.kind == "cross"
    pairs = _pairs(m, looks, seen, cross=cross)
    heads = [
        Head(
            head,
            name,
            {kind: None if score is None else float(score[head]) for kind, score in kinds.scores.items()},
            float(entropy[:, head].mean()),
            None if cross else float(far.mean[:, head].mean()),
            None if cross else float(far.spread[:, head].mean()),
            pairs[head],
        )
        for head, name in enumerate(kinds.names)
    ]
    _, _, queries, keys = m.shape
    return Layer(
        path, entry.kind, entry.layer or 0, queries, keys, entry.mask, entry.kernel, m.error, m.verified, heads
    )


def _pairs(m: AttentionMap, looks: Words, seen: Words, *, cross: bool) -> list[Pair]:
    """The largest weight of each head between two tokens of the text, or any where there are no two."""
    around = [key for key in range(len(seen.tokens)) if not seen.ordinary(key)]
    # Beside those around the text and itself, one more is the one wanted.
    found = m.top(min(m.shape[3], len(around) + 2))
    weights, keys = found.weights[0], found.keys[0]
    itself = torch.arange(m.shape[2], device=m.device) + m.shape[3] - m.shape[2]
    no = (
        torch.isin(keys, torch.tensor(around, device=m.device))
        | torch.tensor([not looks.ordinary(query) for query in range(len(looks.tokens))], device=m.device)[:, None]
    )
    if not cross:
        no = no | (keys == itself[:, None])
    pairs = []
    for head in range(m.shape[1]):
        some = weights[head] if bool(no[head].all()) else weights[head].masked_fill(no[head], -1.0)
        query, place = divmod(int(some.argmax()), some.shape[-1])
        key = int(keys[head, query, place])
        pairs.append(Pair(looks.tokens[query], query, seen.tokens[key], key, float(weights[head, query, place])))
    return pairs


def _most(layers: list[tuple[int, Tensor]], words: Words) -> list[Looked]:
    """The words by what they received: for each layer (heads, keys), of which a head's sum to 1 without sinks."""
    shares = torch.stack([received for _, received in layers]).double()
    groups = words.groups()
    grouped = {token for group in groups for token in group}
    found = []
    for group in [*groups, *([token] for token in range(len(words.tokens)) if token not in grouped)]:
        own = shares[..., group].sum(-1)
        layer, head = divmod(int(own.argmax()), own.shape[1])
        found.append(
            Looked(
                words.written(group) or words.tokens[group[0]],
                group,
                words.ordinary(group[0]),
                float(own.mean()),
                layers[layer][0],
                head,
                float(own.max()),
            )
        )
    return sorted(found, key=lambda looked: -looked.share)
