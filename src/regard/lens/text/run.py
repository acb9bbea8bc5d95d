"""Run a model on a text under `regard.watch`, and summarize every head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.recording import Recording
from regard.lens.text.overview import HeadOverview, LayerOverview, MostAttended, Overview, ReceivedWord, TokenPair
from regard.lens.text.streams import Streams
from regard.lens.text.words import Words
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder

MAX_INDEX_DIGITS = 4
"""The most digits in the number of a layer or head on the command line."""


@dataclass(frozen=True)
class TextRun:
    """One forward pass over a text under `regard.watch`."""

    pretrained: Pretrained
    streams: Streams
    recording: Recording
    """Labelled with the tokens."""

    @property
    def words(self) -> Words:
        """The words of the text."""
        return self.streams.query_words if self.streams.source is None else self.streams.source

    @property
    def decoder_words(self) -> Words:
        """What the decoder of an encoder-decoder reads: the start token, then the target without its last token."""
        ids = self.streams.input_ids
        return self.streams.query_words.prepend(self.streams.start_token, ids[0]).truncate(len(ids))

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the longest text."""
        return max(len(self.words.ids), len(self.streams.input_ids))

    def words_of(self, kind: str, stack: str) -> tuple[Words, Words]:
        """The words of an attention's queries and of its keys.

        In cross-attention a query is the position that writes the word.
        """
        if self.streams.source is None:
            return self.words, self.words
        if kind == "cross":
            return self.streams.query_words, self.words
        return (self.decoder_words, self.decoder_words) if stack.startswith("decoder") else (self.words, self.words)

    def label_surface_forms(self) -> None:
        """Label the recording with the characters of the texts instead of the tokenizer's spelling."""
        for path in self.recording:
            entry = self.recording.entry(path)
            queries, keys = self.words_of(entry.kind, entry.stack)
            entry.label((queries.display_tokens(), keys.display_tokens()))

    @torch.no_grad()
    def overview(self, progress: Callable[[Iterable[str]], Iterable[str]] = lambda paths: paths) -> Overview:
        """Summarize every attention.

        Args:
            progress: wraps the iteration over the paths of the attentions, such as a progress bar.
        """
        layers = []
        received: dict[tuple[str, str], list[tuple[int, Tensor]]] = {}
        for path in progress(list(self.recording)):
            entry = self.recording.entry(path)
            m = entry.map()
            assert isinstance(m, AttentionMap)
            layers.append(_layer_overview(self.recording, path, m, *self.words_of(entry.kind, entry.stack)))
            share = m.received()[0] / m.shape[2]
            received.setdefault((entry.stack, entry.kind), []).append((entry.layer or 0, share))
        most_attended = [
            MostAttended(stack, kind, _received_words(shares, self.words_of(kind, stack)[1]))
            for (stack, kind), shares in received.items()
        ]
        return Overview(
            self.pretrained.name,
            self.words.text,
            self.streams.target,
            self.words.tokens,
            None if self.streams.source is None else self.decoder_words.tokens,
            layers,
            most_attended,
        )


@torch.no_grad()
def run(text: str, pretrained: Pretrained, layers: Sequence[int] | None = None, target: str | None = None) -> TextRun:
    """Run a model on a text once, under `regard.watch`.

    Args:
        text: what the model reads; the source of an encoder-decoder.
        pretrained: a model and its tokenizer.
        layers: the layers of each stack to record; all by default.
        target: the output of an encoder-decoder; by default the model generates it first.

    Raises:
        InputError: no such layer; an empty or too long text; a target for a model that reads one text.
    """
    model = pretrained.model
    config = pretrained.config
    count = max(config.num_layers, config.decoder.num_layers if config.decoder is not None else 0)
    for layer in layers or ():
        if layer >= count:
            raise InputError(f"there is no layer {layer}: this model has layers 0 to {count - 1}")
    streams = Streams.of(text, pretrained, target=target)
    ids, token_type_ids = (None if t is None else t[None] for t in streams.input_tensors)
    with watch(model, layers=layers) as recording:
        if isinstance(model, EncoderDecoder):
            assert streams.source is not None
            model(torch.tensor([streams.source.ids], device=pretrained.device), ids)
        elif isinstance(model, Encoder):
            model(ids, token_type_ids)
        else:
            model(ids, logits_to_keep=1)
    text_run = TextRun(pretrained, streams, recording)
    for path in recording:
        entry = recording.entry(path)
        queries, keys = text_run.words_of(entry.kind, entry.stack)
        entry.label((queries.tokens, keys.tokens))
    return text_run


def parse_layers(text: str) -> list[int]:
    """The layers of a list such as "0,3-5".

    Raises:
        InputError: the text is no such list.
    """
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)) or int(first) > int(last):
            raise InputError(f"layers {text!r}: numbers from 0 and ranges of them, such as 0,3-5")
        layers += range(int(first), int(last) + 1)
    return sorted(set(layers))


def parse_heads(text: str) -> list[tuple[int, int]]:
    """The (layer, head) pairs of a list such as "3.5,4.0".

    Raises:
        InputError: the text is no such list.
    """
    heads = []
    for part in text.split(","):
        layer, _, head = part.strip().partition(".")
        if not (_is_index(layer) and _is_index(head)):
            raise InputError(f"heads {text!r}: LAYER.HEAD, both from 0, separated by commas, such as 3.5,4.0")
        heads.append((int(layer), int(head)))
    return heads


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_INDEX_DIGITS


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except (OSError, ValueError) as error:  # a ValueError is for names that no file can have
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _layer_overview(recording: Recording, path: str, m: AttentionMap, queries: Words, keys: Words) -> LayerOverview:
    entry = recording.entry(path)
    types, distance, entropy = entry.head_types(), m.distance(), m.entropy()
    cross = entry.kind == "cross"
    pairs = _strongest_pairs(m, queries, keys, cross=cross)
    heads = [
        HeadOverview(
            head,
            name,
            {name: None if score is None else float(score[head]) for name, score in types.scores.items()},
            float(entropy[:, head].mean()),
            None if cross else float(distance.mean[:, head].mean()),
            None if cross else float(distance.spread[:, head].mean()),
            pairs[head],
        )
        for head, name in enumerate(types.names)
    ]
    _, _, num_queries, num_keys = m.shape
    return LayerOverview(
        path,
        entry.kind,
        entry.layer or 0,
        num_queries,
        num_keys,
        entry.mask,
        entry.kernel,
        m.error,
        m.verified,
        heads,
    )


def _strongest_pairs(m: AttentionMap, queries: Words, keys: Words, *, cross: bool) -> list[TokenPair]:
    """For each head the largest weight between two tokens of the text, or between any tokens if there are no two."""
    special_keys = [key for key in range(len(keys.tokens)) if not keys.is_text(key)]
    # The special tokens and the query itself do not count, so one key more than those is enough.
    top = m.top(min(m.shape[3], len(special_keys) + 2))
    weights, indices = top.weights[0], top.keys[0]
    special_queries = [not queries.is_text(query) for query in range(len(queries.tokens))]
    excluded = (
        torch.isin(indices, torch.tensor(special_keys, device=m.device))
        | torch.tensor(special_queries, device=m.device)[:, None]
    )
    if not cross:
        own_key = torch.arange(m.shape[2], device=m.device) + m.shape[3] - m.shape[2]
        excluded = excluded | (indices == own_key[:, None])
    pairs = []
    for head in range(m.shape[1]):
        all_excluded = bool(excluded[head].all())
        candidates = weights[head] if all_excluded else weights[head].masked_fill(excluded[head], -1.0)
        query, rank = divmod(int(candidates.argmax()), candidates.shape[-1])
        key = int(indices[head, query, rank])
        pairs.append(TokenPair(queries.tokens[query], query, keys.tokens[key], key, float(weights[head, query, rank])))
    return pairs


def _received_words(layers: list[tuple[int, Tensor]], words: Words) -> list[ReceivedWord]:
    """The words by the attention that they received.

    Args:
        layers: each layer's number, and the share of each key as (heads, keys); without sinks a head's shares sum to 1.
        words: the words of the keys.
    """
    shares = torch.stack([share for _, share in layers]).double()
    groups = words.word_positions()
    in_words = {position for positions in groups for position in positions}
    groups += [[position] for position in range(len(words.tokens)) if position not in in_words]
    received = []
    for positions in groups:
        share = shares[..., positions].sum(-1)
        layer, head = divmod(int(share.argmax()), share.shape[1])
        received.append(
            ReceivedWord(
                words.surface_form(positions) or words.tokens[positions[0]],
                positions,
                words.is_text(positions[0]),
                float(share.mean()),
                layers[layer][0],
                head,
                float(share.max()),
            )
        )
    return sorted(received, key=lambda word: -word.received_share)
