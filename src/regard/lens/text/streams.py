"""The two sides of an attention: the words that look, and the words that they look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError, quoted
from regard.lens.text.activations import Pass, forward
from regard.lens.text.words import Words
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder, ImageEncoder
from regard.transformer.stack import Stack

__all__ = ["ATTENTIONS", "Sides", "segments_of"]

ATTENTIONS = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder-decoder": ("cross", "decoder", "encoder"),
}
"""The attentions of each kind of model; the first is taken where none is named."""

_A = {"encoder": "an encoder", "decoder": "a decoder", "encoder-decoder": "an encoder-decoder"}

WRITTEN = 20
"""Where no target is given, a model writes one of at most twice the source's tokens, and so many more."""


@dataclass(frozen=True)
class Sides:
    """An attention of a model, and the words on its two sides."""

    kind: str
    """A key of `ATTENTIONS`."""
    stack: Stack
    """The half of the model that the attention is in."""
    ids: Sequence[int]
    """What it reads."""
    words: Words
    """The words that look: a row for each token. In cross-attention the row is that of the position which writes the
    token; it has read the one before."""
    keys: Words
    """The words that are looked at: the same, or in cross-attention those of the source."""
    encoder: Encoder | None = None
    """What encodes the source, where the stack is the decoder of an encoder-decoder."""
    source: Words | None = None
    target: str | None = None
    start: str = ""
    """The token that such a decoder reads first."""

    @classmethod
    def of(cls, text: str, pretrained: Pretrained, attention: str | None = None, target: str | None = None) -> Sides:
        """The sides of the attention that was asked for.

        Args:
            text: what the model reads; an encoder-decoder's source.
            pretrained: a model and its tokenizer.
            attention: one of its `ATTENTIONS`.
            target: what an encoder-decoder writes; by default what it writes by itself, the likeliest token each time.

        Raises:
            InputError: an attention that the model has not; a target that it cannot have; an empty or too long text.
        """
        model = pretrained.model
        kind = pretrained.kind
        attention = ATTENTIONS[kind][0] if attention is None else attention
        if attention not in ATTENTIONS[kind]:
            raise InputError(
                f"there is no attention {attention!r} in {pretrained.name}: as {_A[kind]} it has "
                f"{', '.join(ATTENTIONS[kind])}"
            )
        if target is not None and kind != "encoder-decoder":
            raise InputError(f"{pretrained.name} is {_A[kind]} and reads one text: leave the target out")
        if target is not None and attention == "encoder":
            raise InputError("attention='encoder' is within the source, without a word of the target: leave that out")
        if isinstance(model, EncoderDecoder) and isinstance(model.encoder, ImageEncoder):
            raise InputError(
                f"{pretrained.name} reads images, and their patches are no words: run it under regard.watch, and hand "
                "the image to Recording.to_html"
            )
        words = Words.of(text, pretrained)
        if not isinstance(model, EncoderDecoder):
            return cls(kind, model, words.ids, words, words)
        assert isinstance(model.encoder, Encoder)
        if attention == "encoder":
            return cls(kind, model.encoder, words.ids, words, words)
        target = _written(words, pretrained, model) if target is None else target
        return _of_decoder(
            model, words, Words.of(target, pretrained, target=True), pretrained, cross=attention == "cross"
        )

    @property
    def cross(self) -> bool:
        """Whether the words of one text look at those of another."""
        return self.keys is not self.words

    @property
    def reads(self) -> list[str] | None:
        """In cross-attention the token that is read at each position, where the one of ``words`` is written."""
        if not self.cross:
            return None
        return [self.start, *self.words.tokens[:-1]]

    def run(self) -> Pass:
        """One forward pass of the model as it is, kept."""
        context = None
        if self.encoder is not None and self.source is not None:
            context = self.encoder(_on(self.encoder, self.source.ids), segments_of(self.encoder, self.source))
        segments = segments_of(self.stack, self.words)
        return forward(self.stack, _on(self.stack, self.ids), segments, context, cross=self.cross)

    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What is added for each token that the stack reads: its own vector, its position's, its segment's."""
        return self.stack.embeddings.components(_on(self.stack, self.ids), segments_of(self.stack, self.words))


def segments_of(stack: Stack, words: Words) -> Tensor | None:
    """The segment of each token, in a model that has any."""
    return _on(stack, words.segments) if stack.config.num_token_types else None


def _on(stack: Stack, numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, device=stack.embeddings.token.weight.device)


def _of_decoder(model: EncoderDecoder, source: Words, target: Words, pretrained: Pretrained, *, cross: bool) -> Sides:
    """The decoder reads its start token, then the target. At each position it writes what it reads at the next one."""
    start, limit = model.decoder.config.special_tokens.decoder_start, model.decoder.config.max_positions
    if start is None:
        raise InputError(f"{pretrained.name} does not say which token its decoder reads first (decoder_start_token_id)")
    assert pretrained.tokenizer is not None  # it has read the texts
    first = pretrained.tokenizer.id_to_token(start) or f"[{start}]"
    read = target.after(first, start)
    if cross or not target.ordinary(-1):
        read = read.first(len(target.ids))  # what is written last is read no more
    if limit is not None and len(read.ids) > limit:
        raise InputError(
            f"the target has {len(read.ids)} tokens, and the decoder of {pretrained.name} has positions for {limit}; "
            f"it is {quoted(target.text)}. Shorten it or split it"
        )
    assert isinstance(model.encoder, Encoder)
    words = target if cross else read
    keys = source if cross else words
    return Sides("encoder-decoder", model.decoder, read.ids, words, keys, model.encoder, source, target.text, first)


def _written(source: Words, pretrained: Pretrained, model: EncoderDecoder) -> str:
    """What the model writes for a source, the likeliest token each time."""
    from regard.generation import generate  # only here, and only where no target is given

    limit = model.decoder.config.max_positions
    most = 2 * len(source.ids) + WRITTEN
    written = generate(pretrained, source.text, max_new_tokens=most if limit is None else min(most, limit - 1))
    assert isinstance(written, str)
    if not written.strip():
        raise InputError(f"{pretrained.name} writes nothing for {quoted(source.text)}: give a target")
    return written
