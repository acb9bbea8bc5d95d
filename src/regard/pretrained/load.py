"""Loading a pretrained model with its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, quoted
from regard.pretrained.checkpoint import read_object, read_tokenizer, read_weights
from regard.pretrained.embed import Embedder
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import Family, Kind, Layout, config_of, model_of, settings_of_tokens
from regard.pretrained.hub import CONFIG, DEFAULT, TOKENIZER, MissingError, Source, UnknownError, locate
from regard.pretrained.image_processor import PREPROCESSOR, Picture, Pixels
from regard.pretrained.pooling import Pooling, read_pooling
from regard.pretrained.renames import DTYPES
from regard.pretrained.save import GENERATION, write
from regard.pretrained.sentencepieces import Pieces, SentencePieces
from regard.pretrained.special_tokens import special_of
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

__all__ = ["Checkpoint", "Pretrained", "load"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `Pretrained.save` needs to write a model back as it was read."""

    source: Source
    settings: Mapping[str, Any]
    """config.json, as it was read."""
    layout: Layout
    shards: Mapping[str, str]
    no_tokenizer: str
    """Why there is no tokenizer, where there is none."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with trained weights, and the tokenizer that it was trained with."""

    name: str
    """What it was loaded by."""
    kind: Kind
    """Which of the three transformers it is: ``encoder``, ``decoder`` or ``encoder-decoder``."""
    model: Encoder | Decoder | EncoderDecoder
    """The model, in evaluation mode."""
    tokenizer: Tokenizer | SentencePieces | None
    """Text to ids; never truncates or pads. None where the checkpoint has none: the model then works with ids."""
    config: Config
    """The model's sizes; an encoder-decoder's are the encoder's, with the decoder's in ``config.decoder``."""
    pooling: Pooling | None
    """How `embed` makes one vector of a text; None where the Hub could not be asked for it, and beside encoders."""
    unused: list[str]
    """Weights of the checkpoint that stand on top of the model and are not part of it; `save` writes them back."""
    checkpoint: Checkpoint
    """Where it was read from."""
    preprocess: Pixels | None = None
    """What `pixels` does to images; None beside models of texts, and where the checkpoint does not say it."""

    @property
    def reads(self) -> Literal["text", "images"]:
        """What the model is given: texts, or images that it writes about."""
        return "text" if self.config.patches is None else "images"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._token.device

    @property
    def _token(self) -> Tensor:
        stack = self.model.decoder if isinstance(self.model, EncoderDecoder) else self.model
        return stack.embeddings.token.weight

    def encode(self, text: str, *, target: bool = False) -> Encoding | Pieces:
        """The tokens of a text, checked to be something that the model can read.

        Args:
            text: any text.
            target: whether it is what an encoder-decoder writes: Marian has a tokenizer of its own for that.

        Raises:
            InputError: no tokenizer; not a text that can be encoded; more tokens than the model has positions; a model
                in training mode, whose dropout would make every answer another.
        """
        if self.model.training:
            raise InputError(f"{self.name} is in training mode, where dropout changes every answer; call .model.eval()")
        if self.reads == "images" and not target:
            raise InputError(f"{self.name} reads images, not texts: see Pretrained.pixels")
        tokenizer = self._tokenizer()
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{quoted(text)} is not valid text: it holds bytes that are not UTF-8") from None
        try:
            if isinstance(tokenizer, SentencePieces):
                encoding: Encoding | Pieces = tokenizer.encode(text, target=target)
            else:
                encoding = tokenizer.encode(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"the tokenizer of {self.name} cannot read {quoted(text)}: {error}") from error
        config = self.config.decoder or self.config if target else self.config
        limit = config.max_positions
        if limit is not None and len(encoding.ids) > limit:
            raise InputError(
                f"the text has {len(encoding.ids)} tokens, and {self.name} has positions for {limit}; it is "
                f"{quoted(text)}. Shorten it or split it"
            )
        ranges = [("id", encoding.ids, config.vocab_size)]
        if config.num_token_types:
            ranges.append(("segment", encoding.type_ids, config.num_token_types))
        for what, numbers, count in ranges:
            if max(numbers, default=0) >= count:
                raise InputError(
                    f"the tokenizer of {self.name} gives the {what} {max(numbers)}, the model has {count} of them"
                )
        return encoding

    def pixels(self, images: Picture | Sequence[Picture]) -> Float[Tensor, "images channels height width"]:
        """Images as the model reads them: resized, rescaled and normalized as its preprocessor_config.json says.

        Args:
            images: one image or several, of any sizes: paths, numpy arrays of uint8 ``(height, width)`` or ``(height,
                width, channels)``, or PIL images. Grey ones become coloured and coloured ones grey, as the model wants
                them; files are turned upright.

        Returns:
            ``(images, channels, height, width)``, in the model's dtype and where it is; one image is a batch of one.

        Raises:
            InputError: a model of texts; one that does not say how images become pixels; an image that cannot be read;
                Pillow is not installed.
            TypeError: something that is no image.
        """
        if self.reads != "images":
            raise InputError(f"{self.name} reads texts, not images")
        if self.preprocess is None:
            raise InputError(
                f"how {self.name} makes pixels of an image is not known: it has no {PREPROCESSOR}, or the Hub could "
                "not be asked for it. So it takes pixels only"
            )
        return self.preprocess(images).to(self._token)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of ids that the model wrote, special tokens left out.

        Args:
            ids: token ids of one text.

        Raises:
            InputError: no tokenizer; ids that are no whole numbers from 0.
        """
        tokenizer = self._tokenizer()
        numbers = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
            raise InputError(f"the ids of one text are a row of whole numbers from 0; got {quoted(str(numbers))}")
        return str(tokenizer.decode(numbers, skip_special_tokens=True))

    def pieces(self, text: str) -> list[int]:
        """The ids of a part of a text that the model writes, without special tokens.

        Raises:
            InputError: no tokenizer.
        """
        tokenizer = self._tokenizer()
        if isinstance(tokenizer, SentencePieces):
            return tokenizer.encode(text, target=True, add_special_tokens=False).ids
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _tokenizer(self) -> Tokenizer | SentencePieces:
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer, so it works with ids only: {self.checkpoint.no_tokenizer}")
        return self.tokenizer

    @torch.no_grad()
    def embed(self, texts: str | Sequence[str], *, batch_size: int | None = None) -> Float[Tensor, "texts d_model"]:
        """One vector per text.

        A text is never cut: where sentence-transformers truncates at its own, shorter limit, the whole text counts
        here, and one that is longer than the model's positions is refused.

        Args:
            texts: one text or several.
            batch_size: the most texts that go through the model together, packed without padding; by default as many
                as have 2,048 tokens.

        Returns:
            ``(texts, d_model)`` in the order given.

        Raises:
            InputError: a model that is no encoder; a text that is too long or not valid; a model whose pooling could
                not be read.
            ValueError: a batch size below 1.
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        embedder = Embedder(self)
        pooling = embedder.pooling()
        texts = [texts] if isinstance(texts, str) else list(texts)
        each = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        vectors = torch.empty(len(each), self.config.d_model, dtype=embedder.dtype, device=self.device)
        for places, states, lengths in embedder.hidden_states(embedder.read(list(each))[0], most=batch_size):
            vectors[places] = pooling(states, lengths)
        return vectors if len(each) == len(texts) else vectors[[each[text] for text in texts]]

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder, in the format that it was read in.

        config.json as it was (what it says of the dtype is made true), the weights under the checkpoint's own names and
        in its own files, those on top of the model included, and the tokenizer and whatever else lay beside.
        `transformers` reads it with the same numbers, and `load` gives the same weights, bit by bit.

        Everything is written under other names first: on a full disk, or when it is interrupted, what was in the
        folder stays as it was.

        Args:
            folder: where to; made if it is not there.

        Raises:
            InputError: it cannot be written; the folder holds files of another model.
        """
        checkpoint = self.checkpoint
        tensors = checkpoint.layout.tensors(self.model)
        write(Path(folder), checkpoint.settings, tensors, checkpoint.shards, checkpoint.source, self._token.dtype)

    def __repr__(self) -> str:
        unused = f", unused={len(self.unused)} weights on top of the {self.kind}" if self.unused else ""
        return f"Pretrained({self.name!r}, {self.config}{unused})"


def load(name: str | Path = DEFAULT, *, dtype: torch.dtype = torch.float32) -> Pretrained:
    """A pretrained transformer by its name.

    Args:
        name: a folder with ``config.json``, ``model.safetensors`` (or its shards with their index) and, to read and
            write text, ``tokenizer.json`` (Marian: ``source.spm``, ``target.spm``, ``vocab.json``); or a name on the
            Hugging Face Hub. Families: BERT, RoBERTa (encoders); GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2
            (decoders); Marian, BART, T5 (encoder-decoders); vision-encoder-decoder (a ViT that reads an image and a
            GPT-2 that writes about it). For example ``FacebookAI/roberta-base``,
            ``openai-community/gpt2``, ``Qwen/Qwen2.5-0.5B-Instruct``, ``Helsinki-NLP/opus-mt-en-de``,
            ``facebook/bart-base``, ``google/flan-t5-small``.
        dtype: of the weights: torch.float32, bfloat16, float16 or float64.

    Returns:
        The model in evaluation mode, on the CPU, with its tokenizer.

    Raises:
        InputError: no such model; a file that is missing, damaged or pickled; a setting or a weight that regard does
            not know. The message names it.
        ValueError: another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: weights are one of {', '.join(map(str, DTYPES))}")
    name = str(name)
    source = locate(name)
    path = source.need(CONFIG)
    settings = read_object(path)
    family = _family(settings, path)
    config = _with_special(config_of(family, settings, path), family, settings, path, source)
    tokenizer, why_none = _tokenizer(source, family, config)
    weights = read_weights(source)
    model, layout = model_of(family, config, weights.tensors, dtype=dtype, source=weights.path)
    pooling = None
    if family.kind == "encoder":
        try:
            pooling = read_pooling(source)
        except UnknownError:
            pooling = None
    checkpoint = Checkpoint(source, settings, layout, weights.shards, why_none)
    unused = list(layout.unused)
    preprocess = _preprocess(source, config)
    return Pretrained(name, family.kind, model, tokenizer, model.config, pooling, unused, checkpoint, preprocess)


def _family(settings: Mapping[str, Any], path: Path) -> Family:
    kind = settings.get("model_type", "bert")  # the first BERT's files do not say it
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(f"{path}: model_type is {kind!r}; regard supports {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def _with_special(config: Config, family: Family, settings: Mapping[str, Any], path: Path, source: Source) -> Config:
    generation: Mapping[str, Any] = {}
    where = None
    if family.kind != "encoder":
        where = source.may_have(GENERATION)
        generation = {} if where is None else read_object(where)
    decoder = config.decoder
    size = (decoder or config).vocab_size
    special = special_of(settings_of_tokens(family, settings, path), generation, where, size)
    if decoder is not None:
        return replace(config, special_tokens=special, decoder=replace(decoder, special_tokens=special))
    return replace(config, special_tokens=special)


def _preprocess(source: Source, config: Config) -> Pixels | None:
    """What is done to images, where the model reads any and the checkpoint says it."""
    if config.patches is None:
        return None
    try:
        path = source.may_have(PREPROCESSOR)
    except UnknownError:
        return None
    return None if path is None else Pixels.of(read_object(path), path, config.patches)


def _tokenizer(source: Source, family: Family, config: Config) -> tuple[Tokenizer | SentencePieces | None, str]:
    """The tokenizer, or why there is none."""
    tokenizer: Tokenizer | SentencePieces
    try:
        vocabulary = source.need(TOKENIZER)
        tokenizer = read_tokenizer(vocabulary)
    except MissingError as error:
        if family.name != "Marian":
            return None, str(error)
        try:
            vocabulary = source.need("vocab.json")
            tokenizer = SentencePieces(source)
        except MissingError as also:
            return None, f"{error}; {also}"
    largest = max(tokenizer.get_vocab().values(), default=0)
    size = max(config.vocab_size, (config.decoder or config).vocab_size)
    if largest >= size:
        raise InputError(f"{vocabulary} has tokens up to id {largest}, the model has {size} of them")
    return tokenizer, ""
