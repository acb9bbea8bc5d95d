"""Run a model on a text under `regard.watch`, and summarize every head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import InputError, errors_of_argument, short_repr
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.head_selection import resolve_heads
from regard.lens.recording.recording import Recording
from regard.lens.text.head_survey import HeadSurvey
from regard.lens.text.overview import MostAttended, Overview
from regard.lens.text.overview_statistics import layer_overview, received_words, word_attention
from regard.lens.text.streams import Streams
from regard.lens.text.word_selection import TextWord, select_word
from regard.lens.text.words import Words
from regard.lens.watch import watch
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder


@dataclass(frozen=True)
class TextRun:
    """One forward pass over a text under `regard.watch`."""

    pretrained: Pretrained
    streams: Streams
    recording: Recording
    """Labelled with the tokens."""
    output: Tensor
    """What the model returned: of an encoder the tokens' vectors, (1, tokens, d_model), of a decoder the logits after
    the last token, (1, 1, vocab_size), of an encoder-decoder those after each token of the target."""

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
    def select_word(self, token: str | int | None = None, compare: Sequence[str] = ()) -> TextWord:
        """A word, and the head of the recording in which it is most informative to see what the word attends to.

        Of an encoder-decoder it is a word of the target, or one of the source where the target does not have it.

        Args:
            token: the word or the position of a token; by default the last word that all texts share.
            compare: other texts that the model reads, which have the word, too.

        Raises:
            InputError: no such word or position; the texts share no word; the model computes NaN or infinities.
        """
        streams, paths = self.streams, self._paths_of(self.streams)
        with errors_of_argument("compare"):
            others = [Words.of(text, self.pretrained) for text in compare]
        is_of_source = isinstance(token, str) and not streams.query_words.contains(token) and self.words.contains(token)
        if streams.source is not None and (others or is_of_source or not paths):
            streams = streams.of_source()
            paths = self._paths_of(streams)
        word = select_word(token, streams, others)
        if not paths:
            raise InputError(f"no attention is recorded in which {short_repr(word.text)} is a query")
        maps = [m for path in paths if isinstance(m := self.recording[path], AttentionMap)]
        survey = HeadSurvey.of_maps(maps, streams, word.token_index)
        chosen, _ = survey.most_informative_head(None, None)
        path, head = [(path, head) for path, m in zip(paths, maps, strict=True) for head in range(m.shape[1])][chosen]
        return TextWord(word, streams, path, head, survey.patterns[chosen][0], survey.weights[chosen, 0])

    def _paths_of(self, streams: Streams) -> list[str]:
        """The attentions whose queries and keys are those of some streams."""
        is_source = streams.source is None and self.streams.source is not None
        return [
            path
            for path in self.recording
            if (entry := self.recording.entry(path)).kind == ("cross" if streams.cross else "self")
            and (not is_source or entry.stack.startswith("encoder"))
        ]

    @torch.no_grad()
    def overview(
        self,
        progress: Callable[[Iterable[str]], Iterable[str]] = lambda paths: paths,
        *,
        token: str | int | None = None,
    ) -> Overview:
        """Summarize every attention.

        Args:
            progress: wraps the iteration over the paths of the attentions, such as a progress bar.
            token: a word whose strongest keys are listed, too.

        Raises:
            InputError: no such word.
        """
        word = None if token is None else self.select_word(token)
        layers = []
        received: dict[tuple[str, str], list[tuple[list[tuple[int, int]], Tensor]]] = {}
        for path in progress(list(self.recording)):
            entry = self.recording.entry(path)
            m = entry.map()
            assert isinstance(m, AttentionMap)
            layers.append(layer_overview(entry, m, *self.words_of(entry.kind, entry.stack)))
            share = m.received()[0] / m.shape[2]
            heads = [(entry.layer or 0, number) for number in entry.head_numbers]
            received.setdefault((entry.stack, entry.kind), []).append((heads, share))
        most_attended = [
            MostAttended(stack, kind, received_words(shares, self.words_of(kind, stack)[1]))
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
            None if word is None else word_attention(self.recording.entry(word.path), word),
        )


@torch.no_grad()
def run(
    text: str,
    pretrained: Pretrained,
    layers: Sequence[int] | None = None,
    target: str | None = None,
    *,
    heads: Sequence[int | tuple[int, int]] | None = None,
) -> TextRun:
    """Run a model on a text once, under `regard.watch`.

    Args:
        text: what the model reads; the source of an encoder-decoder.
        pretrained: a model and its tokenizer.
        layers: the layers of each stack to record; all by default.
        target: the output of an encoder-decoder; by default the model generates it first.
        heads: the heads to record, as numbers of heads in each layer or as (layer, head); all by default.

    Raises:
        InputError: no such layer or head; an empty or too long text; a target for a model that reads one text.
    """
    model = pretrained.model
    config = pretrained.config
    count = max(config.num_layers, config.decoder.num_layers if config.decoder is not None else 0)
    require_layers(layers, count)
    if layers is None and heads is not None:
        named = [head[0] for head in heads if isinstance(head, tuple) and 0 <= head[0] < count]
        layers = named if len(named) == len(heads) else None  # others need not be recorded
    streams = Streams.of(text, pretrained, target=target)
    ids, token_type_ids = (None if t is None else t[None] for t in streams.input_tensors)
    with watch(model, layers=layers) as recording:
        if isinstance(model, EncoderDecoder):
            assert streams.source is not None
            output = model(torch.tensor([streams.source.ids], device=pretrained.device), ids)
        elif isinstance(model, Encoder):
            output = model(ids, token_type_ids)
        else:
            output = model(ids, logits_to_keep=1)
    text_run = TextRun(pretrained, streams, recording, output)
    for path in recording:
        entry = recording.entry(path)
        queries, keys = text_run.words_of(entry.kind, entry.stack)
        entry.label((queries.tokens, keys.tokens))
    if heads is None:
        return text_run
    return replace(text_run, recording=recording.select(heads=find_heads(recording, heads)))


def require_layers(layers: Sequence[int] | None, count: int) -> None:
    """Refuse layers that a model does not have.

    Raises:
        InputError: one of them is `count` or more.
    """
    for layer in layers or ():
        if layer >= count:
            raise InputError(f"there is no layer {layer}: this model has layers 0 to {count - 1}", "layer")


def find_heads(recording: Recording, heads: Sequence[int | tuple[int, int]]) -> list[tuple[str, int]]:
    """The paths and map indices of heads, as `resolve_heads`.

    Raises:
        InputError: no such layer or head.
    """
    try:
        return resolve_heads(recording, heads)
    except LookupError as error:
        raise InputError(str(error.args[0]), "head") from error
