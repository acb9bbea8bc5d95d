"""Loading a pretrained model with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard._shapes import Float
from regard.attention import mask
from regard.errors import InputError, quoted
from regard.pretrained import bert
from regard.pretrained.checkpoint import read_object, read_tokenizer, read_weights
from regard.pretrained.locate import CONFIG, DEFAULT, TOKENIZER, WEIGHTS, UnknownError, locate
from regard.pretrained.pooling import Pooling, read_pooling
from regard.transformer import Config, Encoder

__all__ = ["Pretrained", "load"]


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with trained weights, and the tokenizer that it was trained with."""

    name: str
    """What it was loaded by."""
    model: Encoder
    """The encoder, in evaluation mode."""
    tokenizer: Tokenizer
    """Text to ids; never truncates or pads."""
    config: Config
    """The encoder's sizes."""
    pooling: Pooling | None
    """How `embed` makes one vector of a text; None where the Hub could not be asked for it."""
    unused: list[str]
    """Weights of the checkpoint that stand on top of the encoder and are not part of it."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embeddings.token.weight.device

    def encode(self, text: str) -> Encoding:
        """The tokens of a text, checked to be something that the model can read.

        Raises:
            InputError: not a text that can be encoded; more tokens than the model has positions; a model in training
                mode, whose dropout would make every answer another.
        """
        if self.model.training:
            raise InputError(f"{self.name} is in training mode, where dropout changes every answer; call .model.eval()")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{quoted(text)} is not valid text: it holds bytes that are not UTF-8") from None
        try:
            encoding = self.tokenizer.encode(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"the tokenizer of {self.name} cannot read {quoted(text)}: {error}") from error
        if len(encoding.ids) > self.config.max_positions:
            raise InputError(
                f"the text has {len(encoding.ids)} tokens, and {self.name} has positions for "
                f"{self.config.max_positions}; it is {quoted(text)}. Shorten it or split it"
            )
        ranges = (
            ("id", encoding.ids, self.config.vocab_size),
            ("segment", encoding.type_ids, self.config.num_segments),
        )
        for what, numbers, count in ranges:
            if max(numbers, default=0) >= count:
                raise InputError(
                    f"the tokenizer of {self.name} gives the {what} {max(numbers)}, the model has {count} of them"
                )
        return encoding

    @torch.no_grad()
    def embed(self, texts: str | Sequence[str], *, batch_size: int = 32) -> Float[Tensor, "texts d_model"]:
        """One vector per text.

        A text is never cut: where sentence-transformers truncates at its own, shorter limit, the whole text counts
        here, and one that is longer than the model's positions is refused.

        Args:
            texts: one text or several.
            batch_size: texts that go through the model together, sorted by length so that little is padded.

        Returns:
            ``(texts, d_model)`` in the order given.

        Raises:
            InputError: a text that is too long or not valid; a model whose pooling could not be read.
            ValueError: a batch size below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if self.pooling is None:
            raise InputError(
                f"how {self.name} makes one vector of a text is not known: when it was loaded, the Hub could not be "
                "asked. Load it once with a network"
            )
        encoded = [self.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        weight = self.model.embeddings.token.weight
        vectors = torch.empty(len(encoded), self.config.d_model, dtype=weight.dtype, device=weight.device)
        by_length = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
        for start in range(0, len(encoded), batch_size):
            rows = by_length[start : start + batch_size]
            lengths = torch.tensor([len(encoded[i].ids) for i in rows], device=weight.device)
            ids = pad_sequence([torch.tensor(encoded[i].ids) for i in rows], batch_first=True).to(weight.device)
            segments = pad_sequence([torch.tensor(encoded[i].type_ids) for i in rows], batch_first=True)
            states = self.model(ids, segments.to(weight.device), mask=mask.padding(lengths))
            vectors[rows] = self.pooling(states, lengths)
        return vectors

    def __repr__(self) -> str:
        unused = f", unused={len(self.unused)} weights on top of the encoder" if self.unused else ""
        return f"Pretrained({self.name!r}, {self.config}{unused})"


def load(name: str | Path = DEFAULT) -> Pretrained:
    """A pretrained encoder by its name.

    Args:
        name: a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors``, or a name on the Hugging
            Face Hub. Families: BERT.

    Returns:
        The model in evaluation mode, in float32 on the CPU, with its tokenizer.

    Raises:
        InputError: no such model; a file that is missing, damaged or pickled; a setting or a weight that regard does
            not know. The message names it.
    """
    name = str(name)
    source = locate(name)
    settings = source.need(CONFIG)
    config = bert.config_of(read_object(settings), settings)
    vocabulary = source.need(TOKENIZER)
    tokenizer = read_tokenizer(vocabulary)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab_size:
        raise InputError(f"{vocabulary} has tokens up to id {largest}, the model has {config.vocab_size} of them")
    weights = source.need(WEIGHTS)
    model, unused = bert.encoder_of(config, read_weights(weights), weights)
    try:
        pooling = read_pooling(source)
    except UnknownError:
        pooling = None
    return Pretrained(name, model, tokenizer, config, pooling, unused)
