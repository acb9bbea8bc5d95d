"""Loading a pretrained model with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from regard._shapes import Float
from regard.attention import mask
from regard.errors import InputError
from regard.pretrained import bert
from regard.pretrained.checkpoint import read_object, read_tokenizer, read_weights
from regard.pretrained.locate import CONFIG, DEFAULT, TOKENIZER, WEIGHTS, locate
from regard.pretrained.pooling import Pooling, read_pooling
from regard.transformer import Config, Encoder

__all__ = ["Pretrained", "load"]


@dataclass(frozen=True)
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
    pooling: Pooling
    """How `embed` makes one vector of a text."""
    unused: list[str]
    """Weights of the checkpoint that stand on top of the encoder and are not part of it."""

    def encode(self, text: str) -> Encoding:
        """The tokens of a text.

        Raises:
            InputError: not a text that can be encoded; more tokens than the model has positions.
        """
        try:
            encoding = self.tokenizer.encode(text)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"{text!r} is not valid text: {error}") from error
        if len(encoding.ids) > self.config.max_positions:
            raise InputError(
                f"the text has {len(encoding.ids)} tokens, and {self.name} has positions for "
                f"{self.config.max_positions}; it begins {text[:40]!r}. Shorten it or split it"
            )
        return encoding

    @torch.inference_mode()
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
            InputError: a text that is too long or not valid.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        encoded = [torch.tensor(self.encode(text).ids) for text in texts]
        vectors = torch.empty(len(texts), self.config.d_model)
        by_length = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        for start in range(0, len(texts), batch_size):
            rows = by_length[start : start + batch_size]
            lengths = torch.tensor([len(encoded[i]) for i in rows])
            ids = torch.nn.utils.rnn.pad_sequence([encoded[i] for i in rows], batch_first=True)
            states = self.model(ids, mask=mask.padding(lengths))
            vectors[rows] = self.pooling(states, lengths)
        return vectors

    def __repr__(self) -> str:
        unused = f", unused={len(self.unused)} weights on top of the encoder" if self.unused else ""
        return f"Pretrained({self.name!r}, {self.config}{unused})"


def load(name: str = DEFAULT) -> Pretrained:
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
    folder = locate(name)
    config = bert.config_of(read_object(folder / CONFIG), folder / CONFIG)
    tokenizer = read_tokenizer(folder / TOKENIZER)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise InputError(
            f"{folder / TOKENIZER} has {tokenizer.get_vocab_size()} tokens, the model has {config.vocab_size}"
        )
    model, unused = bert.encoder_of(config, read_weights(folder), folder / WEIGHTS)
    return Pretrained(name, model, tokenizer, config, read_pooling(folder), unused)
