"""`GenerationRequest`: the arguments of `generate`, validated and in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.generation.hypothesis import Hypothesis
from regard.generation.session import DecodeSession
from regard.generation.streaming import StopStrings, TextStreamer
from regard.pretrained import Pretrained
from regard.pretrained.chat import MESSAGE_FORM, Message
from regard.pretrained.image_processor import ImageInput
from regard.transformer import Decoder, Encoder, EncoderDecoder, SpecialTokens

Chat = Sequence[Message]
Prompt = str | Sequence[int] | Int[Tensor, " tokens"] | Chat | ImageInput | Float[Tensor, "channels height width"]
Prompts = Prompt | Sequence[Prompt] | Int[Tensor, "batch tokens"] | Float[Tensor, "batch channels height width"]
Stop = int | str | Sequence[int | str]
Generated = Tensor | str | Hypothesis | list[Any]


@dataclass(frozen=True)
class PromptFormat:
    """The format of the prompts, which is also the format of what `generate` returns."""

    is_text: bool
    is_batch: bool
    is_tensor: bool

    def restore(self, generated: Sequence[Sequence[Any]], num_return_sequences: int) -> Generated:
        """What was generated for each prompt, in lists like those of the prompts."""
        results: list[Any] = [best for (best,) in generated] if num_return_sequences == 1 else list(generated)
        return results if self.is_batch else results[0]

    def pad(self, generated: Sequence[Sequence[list[int]]], num_return_sequences: int, pad: int) -> Tensor:
        """The tokens that were generated for each prompt as one tensor; shorter rows are padded."""
        rows = [torch.tensor(ids) for texts in generated for ids in texts]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        if num_return_sequences > 1:
            padded = padded.view(len(generated), num_return_sequences, -1)
        return padded if self.is_batch else padded[0]


@dataclass(frozen=True)
class GenerationRequest:
    """The validated arguments of `generate`."""

    model: Decoder | EncoderDecoder
    pretrained: Pretrained | None
    prompts: list[list[int]]
    """Token ids; empty lists where the model reads images."""
    pixel_values: list[Tensor]
    """The pixels of each image, where the model reads images."""
    format: PromptFormat
    max_new_tokens: int
    special_tokens: SpecialTokens
    stop_strings: StopStrings
    decoder_start: int | None
    pad: int

    def start_session(self, num_beams: int = 1) -> DecodeSession:
        """A session for the prompts, with `num_beams` rows for each."""
        prompts, batch_size = self.pixel_values or self.prompts, len(self.prompts) * num_beams
        return DecodeSession(
            self.model, prompts, self.decoder_start, batch_size=batch_size, max_steps=self.max_new_tokens
        )

    @property
    def decoder(self) -> Decoder:
        """The model, or the decoder of an encoder-decoder."""
        return self.model.decoder if isinstance(self.model, EncoderDecoder) else self.model

    @property
    def decoder_prompts(self) -> list[list[int]]:
        """What the decoder reads of each row before the first new token: the prompt, or the start token."""
        return self.prompts if self.decoder_start is None else [[self.decoder_start] for _ in self.prompts]

    def has_stop_string(self, row: int, ids: list[int]) -> bool:
        """Whether the new tokens of a row contain a stop string."""
        return bool(self.stop_strings.strings) and self.stop_strings.find(self.decode(row, ids)) is not None

    def streamer(self, row: int) -> TextStreamer:
        """A streamer for the new tokens of a row."""
        return TextStreamer(lambda ids: self.decode(row, ids), self.stop_strings)

    def decode(self, row: int, ids: list[int]) -> str:
        """New tokens as text after the prompt, where it may begin with a space."""
        assert self.pretrained is not None
        if self.decoder_start is not None:
            return self.pretrained.decode(ids)
        prompt = self.prompts[row]
        return self.pretrained.decode([*prompt, *ids])[len(self.pretrained.decode(prompt)) :]


def build_request(
    model: object,
    ids: Any,
    max_new_tokens: int,
    stop: Stop | None = None,
    decoder_start: int | None = None,
    pad: int | None = None,
) -> GenerationRequest:
    """Validate the arguments of `regard.generate`, whose documentation describes them and the errors."""
    pretrained = model if isinstance(model, Pretrained) else None
    module = pretrained.model if pretrained is not None else model
    if isinstance(module, Encoder):
        message = "an encoder reads text and writes none: a decoder or an encoder-decoder is needed"
        raise TypeError(message) if pretrained is None else InputError(f"{pretrained.name} is an encoder; {message}")
    if not isinstance(module, (Decoder, EncoderDecoder)):
        raise TypeError(f"model must be a regard Decoder, EncoderDecoder or what regard.load returned; got {model!r}")
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number, at least 1")
    decoder = module.decoder if isinstance(module, EncoderDecoder) else module
    special_tokens, vocab_size = decoder.config.special_tokens, decoder.config.vocab_size
    stop_ids, stop_strings = _split_stop(stop, special_tokens, pretrained, vocab_size)
    special_tokens = replace(special_tokens, eos=stop_ids)
    if isinstance(module, EncoderDecoder):
        decoder_start = special_tokens.decoder_start if decoder_start is None else decoder_start
        if decoder_start is None:
            raise InputError(
                "this encoder-decoder does not say its decoder's start token: give decoder_start=ID, or write "
                "decoder_start_token_id into its config.json"
            )
        if not 0 <= decoder_start < vocab_size:
            raise InputError(f"decoder_start={decoder_start}: the vocabulary has ids 0 to {vocab_size - 1}")
    elif decoder_start is not None:
        raise ValueError(f"decoder_start={decoder_start}: a decoder-only model begins with its prompt")
    input_config = module.encoder.config if isinstance(module, EncoderDecoder) else decoder.config
    pixel_values: list[Tensor] = []
    if input_config.patches is not None:
        pixel_values, prompt_format = _read_images(ids, pretrained)
        prompts: list[list[int]] = [[] for _ in pixel_values]
    else:
        prompts, prompt_format = _read_prompts(ids, pretrained)
        for n, prompt in enumerate(prompts):
            _check_prompt(prompt, f" {n}" if len(prompts) > 1 else "", input_config.vocab_size)
    longest = max(map(len, prompts))
    if isinstance(module, EncoderDecoder):
        _check_length("the source", longest, 0, input_config.max_positions)
        _check_length("the text", 1, max_new_tokens, decoder.config.max_positions)
    else:
        _check_length("the prompt", longest, max_new_tokens, input_config.max_positions)
    if pad is None:
        pad = special_tokens.pad if special_tokens.pad is not None else stop_ids[0] if stop_ids else 0
    return GenerationRequest(
        module,
        pretrained,
        prompts,
        pixel_values,
        prompt_format,
        max_new_tokens,
        special_tokens,
        StopStrings(stop_strings),
        decoder_start,
        pad,
    )


def max_new_tokens_left(model: Decoder | EncoderDecoder | Pretrained, ids: Prompt) -> int:
    """The most new tokens that the model has positions for after a prompt; 2**31 for a model without such a limit.

    Raises:
        InputError: as `regard.generate` does.
    """
    request = build_request(model, ids, max_new_tokens=1)
    max_positions = request.decoder.config.max_positions
    return 2**31 if max_positions is None else max_positions - max(map(len, request.decoder_prompts)) + 1


def _split_stop(
    stop: Stop | None, special_tokens: SpecialTokens, pretrained: Pretrained | None, vocab_size: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Stop ids and stop strings."""
    if stop is None:
        return special_tokens.eos, ()
    stops = [stop] if isinstance(stop, (int, str)) else list(stop)
    ids = tuple(s for s in stops if type(s) is int)
    strings = tuple(s for s in stops if isinstance(s, str))
    if len(ids) + len(strings) < len(stops):
        raise TypeError(f"stop={stop!r} wants token ids and strings")
    if "" in strings:
        raise InputError("stop='' is empty: give the text that generation ends before")
    if any(not 0 <= s < vocab_size for s in ids):
        raise InputError(f"stop={stop!r}: the vocabulary has ids 0 to {vocab_size - 1}")
    if strings and pretrained is None:
        raise TypeError(f"stop={stop!r}: stop strings need a tokenizer, and a bare model has none; use regard.load")
    # Ids replace the model's own stop tokens; strings alone do not.
    return (ids if ids or not strings else special_tokens.eos), strings


def _read_images(images: Any, pretrained: Pretrained | None) -> tuple[list[Tensor], PromptFormat]:
    """The pixels of each image. For images `generate` returns texts, for pixels token ids."""
    if isinstance(images, Tensor):
        if images.ndim not in (3, 4) or not images.is_floating_point():
            raise TypeError(
                "this model reads images: floating-point pixels (channels, height, width) or a batch of them; got "
                f"{images.dtype} {tuple(images.shape)}"
            )
        if not images.numel():
            raise InputError(f"there is no image in pixels of shape {tuple(images.shape)}")
        prompt_format = PromptFormat(is_text=False, is_batch=images.ndim == 4, is_tensor=True)
        return list(images if prompt_format.is_batch else images[None]), prompt_format
    if pretrained is None:
        raise TypeError("a bare model reads pixels; for images hand over what regard.load returned")
    pixels = pretrained.pixel_values(images)
    pretrained.decode([])  # raises without a tokenizer, which texts need
    return list(pixels), PromptFormat(is_text=True, is_batch=isinstance(images, list | tuple), is_tensor=False)


def _read_prompts(ids: Any, pretrained: Pretrained | None) -> tuple[list[list[int]], PromptFormat]:
    """The token ids of each prompt."""
    is_text, is_batch, is_tensor = False, False, isinstance(ids, Tensor)
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
            shape = tuple(ids.shape)
            raise TypeError(f"ids must be whole numbers (tokens,) or (batch, tokens); got {ids.dtype} {shape}")
        is_batch = ids.ndim == 2
        rows = ids.tolist() if is_batch else [ids.tolist()]
    elif isinstance(ids, str):
        is_text = True
        rows = [_encode(ids, pretrained)]
    elif isinstance(ids, Sequence) and ids and all(isinstance(text, str) for text in ids):
        is_text = is_batch = True
        rows = [_encode(text, pretrained) for text in ids]
    elif _is_chat(ids):
        is_text = True
        rows = [_encode_chat(ids, pretrained)]
    elif isinstance(ids, Sequence) and any(map(_is_chat, ids)):
        is_text = is_batch = True
        rows = _encode_chats(ids, pretrained)
    elif isinstance(ids, Sequence) and all(type(token) is int for token in ids):
        rows = [list(ids)]
    elif isinstance(ids, Sequence):
        is_batch = True
        invalid = [row for row in ids if isinstance(row, str) or not isinstance(row, (Sequence, Tensor))]
        if invalid:
            raise TypeError(
                f"ids must be token ids, texts, messages or lists of those; got a list with {invalid[0]!r} in it"
            )
        rows = [row.tolist() if isinstance(row, Tensor) else list(row) for row in ids]
    else:
        raise TypeError(
            f"ids must be a tensor, a list of token ids, a text or a list of messages {MESSAGE_FORM}; got "
            f"{type(ids).__name__}"
        )
    if not rows:
        raise InputError("there is no prompt: ids has no rows")
    return rows, PromptFormat(is_text, is_batch, is_tensor)


def _encode(text: str, pretrained: Pretrained | None) -> list[int]:
    if pretrained is None:
        raise TypeError(f"a bare model reads token ids; for the text {text[:40]!r} hand over what regard.load returned")
    return list(pretrained.encode(text).ids)


def _is_chat(prompt: object) -> bool:
    """Whether a prompt has a message in it; whether all of it are messages, the chat template's reader says."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return False
    return any(isinstance(message, Mapping) for message in prompt)


def _encode_chat(messages: Chat, pretrained: Pretrained | None) -> list[int]:
    if pretrained is None:
        raise TypeError("a bare model reads token ids; for messages hand over what regard.load returned")
    return pretrained.apply_chat_template(messages)


def _encode_chats(chats: Sequence[Any], pretrained: Pretrained | None) -> list[list[int]]:
    rows = []
    for n, messages in enumerate(chats):
        if not _is_chat(messages):
            raise TypeError(f"prompt {n} of several chats is no list of messages {MESSAGE_FORM}; got {messages!r}")
        try:
            rows.append(_encode_chat(messages, pretrained))
        except InputError as error:
            raise InputError(f"prompt {n}: {error}") from error
    return rows


def _check_prompt(prompt: list[Any], number: str, vocab_size: int) -> None:
    if not prompt:
        raise InputError(f"prompt{number} is empty: a model continues at least one token")
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InputError(f"prompt{number} has the id {token!r}; the vocabulary has ids 0 to {vocab_size - 1}")


def _check_length(name: str, num_tokens: int, max_new_tokens: int, max_positions: int | None) -> None:
    # The model never reads the last new token, so this token needs no position.
    num_positions = num_tokens + max(max_new_tokens - 1, 0)
    if max_positions is None or num_positions <= max_positions:
        return
    if num_tokens > max_positions or not max_new_tokens:
        raise InputError(f"{name} has {num_tokens} tokens, and the model has positions for {max_positions}: shorten it")
    raise InputError(
        f"{name} has {num_tokens} tokens; with {max_new_tokens} more the model would need {num_positions} positions, "
        f"and it has {max_positions}: max_new_tokens={max_positions - num_tokens + 1} at the most"
    )
