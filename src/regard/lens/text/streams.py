"""The text streams of an attention: which words are its queries and which words are its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError, errors_of_argument, short_repr
from regard.lens.text.words import Words
from regard.pretrained import Pretrained
from regard.transformer import Encoder, EncoderDecoder, ImageEncoder
from regard.transformer.stack import Stack

ATTENTIONS = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder-decoder": ("cross", "decoder", "encoder"),
}
"""The attentions of each kind of model; the first one is the default."""

_WITH_ARTICLE = {"encoder": "an encoder", "decoder": "a decoder", "encoder-decoder": "an encoder-decoder"}

EXTRA_TARGET_TOKENS = 20
"""A target that the model generates has at most twice as many tokens as the source, plus this number."""


@dataclass(frozen=True)
class Streams:
    """One attention of a model, with the words of its queries and of its keys."""

    kind: str
    """A key of `ATTENTIONS`."""
    stack: Stack
    """The encoder or decoder that contains the attention."""
    input_ids: Sequence[int]
    """What the stack reads."""
    query_words: Words
    """One token per query. In cross-attention query i is the position that writes token i; it reads token i - 1."""
    key_words: Words
    """One token per key: those of the queries, or in cross-attention those of the source."""
    encoder: Encoder | None = None
    """The encoder of the source, where the stack is the decoder of an encoder-decoder."""
    source: Words | None = None
    target: str | None = None
    start_token: str = ""
    """The token that such a decoder reads first."""

    @classmethod
    def of(cls, text: str, pretrained: Pretrained, attention: str | None = None, target: str | None = None) -> Streams:
        """The streams of one attention.

        Args:
            text: what the model reads; the source of an encoder-decoder.
            pretrained: a model and its tokenizer.
            attention: one of the model's `ATTENTIONS`.
            target: the output of an encoder-decoder; by default the model generates it with greedy decoding.

        Raises:
            InputError: the model has no such attention or takes no target; an empty or too long text.
        """
        model = pretrained.model
        kind = pretrained.kind
        attention = ATTENTIONS[kind][0] if attention is None else attention
        if attention not in ATTENTIONS[kind]:
            raise InputError(
                f"there is no attention {attention!r} in {pretrained.name}: as {_WITH_ARTICLE[kind]} it has "
                f"{', '.join(ATTENTIONS[kind])}",
                "attention",
            )
        if target is not None and kind != "encoder-decoder":
            raise InputError(
                f"{pretrained.name} is {_WITH_ARTICLE[kind]} and reads one text: leave the target out", "target"
            )
        if target is not None and attention == "encoder":
            raise InputError("the attention encoder reads the source only: leave the target out", "target")
        if isinstance(model, EncoderDecoder) and isinstance(model.encoder, ImageEncoder):
            raise InputError(
                f"{pretrained.name} reads images, and image patches are not words: run it under regard.watch, and "
                "pass the image to Recording.to_html"
            )
        words = Words.of(text, pretrained)
        if not isinstance(model, EncoderDecoder):
            return cls(kind, model, words.ids, words, words)
        assert isinstance(model.encoder, Encoder)
        if attention == "encoder":
            return cls(kind, model.encoder, words.ids, words, words)
        target = _generate_target(words, pretrained, model) if target is None else target
        with errors_of_argument("target"):
            target_words = Words.of(target, pretrained, target=True)
        return _decoder_streams(model, words, target_words, pretrained, cross=attention == "cross")

    def of_source(self) -> Streams:
        """The self-attention of an encoder-decoder's encoder, over the source."""
        assert self.encoder is not None
        assert self.source is not None
        return Streams(self.kind, self.encoder, self.source.ids, self.source, self.source)

    @property
    def cross(self) -> bool:
        """Whether the queries and the keys belong to two texts."""
        return self.key_words is not self.query_words

    @property
    def decoder_inputs(self) -> list[str] | None:
        """In cross-attention the token that the decoder reads at each position, where it writes the query's token."""
        return [self.start_token, *self.query_words.tokens[:-1]] if self.cross else None

    @property
    def input_tensors(self) -> tuple[Tensor, Tensor | None]:
        """The token ids and the token type ids that the stack reads."""
        return _tensor_for(self.stack, self.input_ids), token_type_ids_of(self.stack, self.query_words)

    def encode_source(self) -> Tensor | None:
        """The encoder's output for the source, where the stack is the decoder of an encoder-decoder."""
        if self.encoder is None or self.source is None:
            return None
        return self.encoder(_tensor_for(self.encoder, self.source.ids), token_type_ids_of(self.encoder, self.source))  # type: ignore[no-any-return]


def token_type_ids_of(stack: Stack, words: Words) -> Tensor | None:
    """The token type of each token; None where the model has no token types."""
    return _tensor_for(stack, words.token_type_ids) if stack.config.num_token_types else None


def _tensor_for(stack: Stack, numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, device=stack.embeddings.token.weight.device)


def _decoder_streams(
    model: EncoderDecoder, source: Words, target: Words, pretrained: Pretrained, *, cross: bool
) -> Streams:
    """A decoder reads its start token, then the target. At each position it writes the token that it reads next."""
    start, limit = model.decoder.config.special_tokens.decoder_start, model.decoder.config.max_positions
    if start is None:
        raise InputError(f"{pretrained.name} does not say which token its decoder reads first (decoder_start_token_id)")
    assert pretrained.tokenizer is not None  # it has tokenized the texts
    start_token = pretrained.tokenizer.id_to_token(start) or f"[{start}]"
    decoder_words = target.prepend(start_token, start)
    if cross or not target.is_text(-1):
        decoder_words = decoder_words.truncate(len(target.ids))  # the decoder does not read the last token
    if limit is not None and len(decoder_words.ids) > limit:
        raise InputError(
            f"the target has {len(decoder_words.ids)} tokens, and the decoder of {pretrained.name} has positions for "
            f"{limit}; it is {short_repr(target.text)}. Shorten it or split it",
            "target",
        )
    assert isinstance(model.encoder, Encoder)
    queries = target if cross else decoder_words
    keys = source if cross else decoder_words
    ids = decoder_words.ids
    return Streams(
        "encoder-decoder", model.decoder, ids, queries, keys, model.encoder, source, target.text, start_token
    )


def _generate_target(source: Words, pretrained: Pretrained, model: EncoderDecoder) -> str:
    """What the model generates for a source with greedy decoding."""
    from regard.generation import generate  # imported late: most calls need no generation

    limit = model.decoder.config.max_positions
    max_tokens = 2 * len(source.ids) + EXTRA_TARGET_TOKENS
    target = generate(
        pretrained, source.text, max_new_tokens=max_tokens if limit is None else min(max_tokens, limit - 1)
    )
    assert isinstance(target, str)
    if not target.strip():
        raise InputError(f"{pretrained.name} writes nothing for {short_repr(source.text)}: give a target", "target")
    return target
