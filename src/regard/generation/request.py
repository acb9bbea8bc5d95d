"""What `generate` was asked for: a model, prompts and limits, brought into one form and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.generation.session import Reader
from regard.generation.streaming import StopStrings, Writer
from regard.pretrained import Pretrained
from regard.pretrained.image_processor import Picture
from regard.transformer import Decoder, Encoder, EncoderDecoder, SpecialTokens

__all__ = ["Asked", "Form", "Prompt", "Prompts", "Stop", "Written", "ask", "room"]

Prompt = str | Sequence[int] | Int[Tensor, " tokens"] | Picture | Float[Tensor, "channels height width"]
Prompts = Prompt | Sequence[Prompt] | Int[Tensor, "batch tokens"] | Float[Tensor, "batch channels height width"]
Stop = int | str | Sequence[int | str]
Written = Tensor | str | list[Any]


@dataclass(frozen=True)
class Form:
    """The form in which the prompts came, for what goes back."""

    is_text: bool
    is_batch: bool
    is_tensor: bool

    def back(self, written: list[Any], n_best: int, pad: int) -> Written:
        """The best texts of each prompt in the form in which the prompts came, shorter rows of a tensor padded."""
        if n_best == 1:
            written = [best for (best,) in written]
        if self.is_tensor:
            rows = written if n_best == 1 else [text for texts in written for text in texts]
            longest = max(map(len, rows))
            filled = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
            if n_best > 1:
                filled = filled.view(len(written), n_best, longest)
            return filled if self.is_batch else filled[0]
        return written if self.is_batch else written[0]


@dataclass(frozen=True)
class Asked:
    """What was asked for, checked."""

    model: Decoder | EncoderDecoder
    pretrained: Pretrained | None
    prompts: list[list[int]]
    """Token ids; nothing where an image is read."""
    images: list[Tensor]
    """The pixels of each, where the model reads images."""
    form: Form
    limit: int
    special: SpecialTokens
    strings: tuple[str, ...]
    start: int | None
    pad: int

    def reader(self, width: int = 1) -> Reader:
        """The model at the beginning of the prompts, each of which becomes so many rows."""
        return Reader(
            self.model, self.images or self.prompts, self.start, rows=len(self.prompts) * width, steps=self.limit
        )

    @property
    def decoder(self) -> Decoder:
        """What writes."""
        return self.model.decoder if isinstance(self.model, EncoderDecoder) else self.model

    @property
    def read(self) -> list[list[int]]:
        """What the decoder has read of each text before it writes: the prompt, or the start token."""
        return self.prompts if self.start is None else [[self.start] for _ in self.prompts]

    def ended(self, row: int, ids: list[int]) -> bool:
        """Whether the new tokens of a row hold a stop string."""
        return bool(self.strings) and StopStrings(self.strings).first(self.decoded(row, ids)) is not None

    def writer(self, row: int) -> Writer:
        """What turns the new tokens of a row into text, as they come."""
        return Writer(lambda ids: self.decoded(row, ids), StopStrings(self.strings))

    def decoded(self, row: int, ids: list[int]) -> str:
        """New tokens as text, as they read behind the prompt: there a space may stand that a beginning has not."""
        assert self.pretrained is not None
        if self.start is not None:
            return self.pretrained.decode(ids)
        prompt = self.prompts[row]
        return self.pretrained.decode([*prompt, *ids])[len(self.pretrained.decode(prompt)) :]


def ask(model: object, ids: Any, max_new_tokens: int, stop: Stop | None, start: int | None, pad: int | None) -> Asked:
    """Bring what was asked for into one form; arguments, and what is raised, as `regard.generate` says."""
    pretrained = model if isinstance(model, Pretrained) else None
    runs = pretrained.model if pretrained is not None else model
    if isinstance(runs, Encoder):
        said = "an encoder reads text and writes none: a decoder or an encoder-decoder is needed"
        raise TypeError(said) if pretrained is None else InputError(f"{pretrained.name} is an encoder; {said}")
    if not isinstance(runs, (Decoder, EncoderDecoder)):
        raise TypeError(f"model must be a regard Decoder, EncoderDecoder or what regard.load returned; got {model!r}")
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number, at least 1")
    decoder = runs.decoder if isinstance(runs, EncoderDecoder) else runs
    special = decoder.config.special_tokens
    stop_ids, strings = _stops(stop, special, pretrained, decoder.config.vocab_size)
    special = replace(special, eos=stop_ids)
    if isinstance(runs, EncoderDecoder):
        start = special.decoder_start if start is None else start
        if start is None:
            raise InputError("this encoder-decoder does not say which token its decoder starts with: give start=ID")
        if not 0 <= start < decoder.config.vocab_size:
            raise InputError(f"start={start}: the vocabulary has ids 0 to {decoder.config.vocab_size - 1}")
    elif start is not None:
        raise ValueError(f"start={start}: a decoder-only model begins with its prompt")
    reads = runs.encoder.config if isinstance(runs, EncoderDecoder) else decoder.config
    images: list[Tensor] = []
    if reads.patches is not None:
        images, form = _images(ids, pretrained)
        prompts: list[list[int]] = [[] for _ in images]
    else:
        prompts, form = _prompts(ids, pretrained)
        for n, prompt in enumerate(prompts):
            _check_prompt(prompt, f" {n}" if len(prompts) > 1 else "", reads.vocab_size)
    longest = max(map(len, prompts))
    if isinstance(runs, EncoderDecoder):
        _check_length("the source", longest, 0, reads.max_positions)
        _check_length("the text", 1, max_new_tokens, decoder.config.max_positions)
    else:
        _check_length("the prompt", longest, max_new_tokens, reads.max_positions)
    fill = pad if pad is not None else special.pad if special.pad is not None else stop_ids[0] if stop_ids else 0
    return Asked(runs, pretrained, prompts, images, form, max_new_tokens, special, strings, start, fill)


def room(model: Decoder | EncoderDecoder | Pretrained, ids: Prompt) -> int:
    """The most new tokens that a model has positions for behind a prompt; a large number where any length has them.

    Raises:
        InputError: as `regard.generate` does.
    """
    asked = ask(model, ids, 1, None, None, None)
    positions = asked.decoder.config.max_positions
    return 2**31 if positions is None else positions - max(map(len, asked.read)) + 1


def _stops(
    stop: Stop | None, special: SpecialTokens, pretrained: Pretrained | None, vocab_size: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Stop ids and stop strings."""
    if stop is None:
        return special.eos, ()
    given = [stop] if isinstance(stop, (int, str)) else list(stop)
    ids = tuple(s for s in given if type(s) is int)
    strings = tuple(s for s in given if isinstance(s, str))
    if len(ids) + len(strings) < len(given) or "" in strings:
        raise TypeError(f"stop={stop!r} wants token ids and strings, none of them empty")
    if any(not 0 <= s < vocab_size for s in ids):
        raise InputError(f"stop={stop!r}: the vocabulary has ids 0 to {vocab_size - 1}")
    if strings and pretrained is None:
        raise TypeError(f"stop={stop!r}: stop strings need a tokenizer, and a bare model has none; use regard.load")
    # Strings come beside the model's own stop tokens, ids instead of them.
    return (ids if ids or not strings else special.eos), strings


def _images(images: Any, pretrained: Pretrained | None) -> tuple[list[Tensor], Form]:
    """The pixels of each image. What is written comes back as text, where images came and no pixels."""
    if isinstance(images, Tensor):
        if images.ndim not in (3, 4) or not images.is_floating_point():
            raise TypeError(
                "this model reads images: floating-point pixels (channels, height, width) or a batch of them; got "
                f"{images.dtype} {tuple(images.shape)}"
            )
        if not images.numel():
            raise InputError(f"there is no image in pixels of shape {tuple(images.shape)}")
        form = Form(is_text=False, is_batch=images.ndim == 4, is_tensor=True)
        return list(images if form.is_batch else images[None]), form
    if pretrained is None:
        raise TypeError("a bare model reads pixels; for images hand over what regard.load returned")
    pixels = pretrained.pixels(images)
    pretrained.decode([])  # without a tokenizer nothing could be said of them
    return list(pixels), Form(is_text=True, is_batch=isinstance(images, list | tuple), is_tensor=False)


def _prompts(ids: Any, pretrained: Pretrained | None) -> tuple[list[list[int]], Form]:
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(
                f"ids must be whole numbers (tokens,) or (batch, tokens); got {ids.dtype} {tuple(ids.shape)}"
            )
        rows = ids.tolist() if ids.ndim == 2 else [ids.tolist()]
        form = Form(is_text=False, is_batch=ids.ndim == 2, is_tensor=True)
    elif isinstance(ids, str):
        rows, form = [_encoded(ids, pretrained)], Form(is_text=True, is_batch=False, is_tensor=False)
    elif isinstance(ids, Sequence) and ids and all(isinstance(text, str) for text in ids):
        rows, form = [_encoded(text, pretrained) for text in ids], Form(is_text=True, is_batch=True, is_tensor=False)
    elif isinstance(ids, Sequence) and all(type(token) is int for token in ids):
        rows, form = [list(ids)], Form(is_text=False, is_batch=False, is_tensor=False)
    elif isinstance(ids, Sequence):
        odd = [row for row in ids if isinstance(row, str) or not isinstance(row, (Sequence, Tensor))]
        if odd:
            raise TypeError(f"ids must be token ids, or texts, or lists of token ids; got a list with {odd[0]!r} in it")
        rows = [row.tolist() if isinstance(row, Tensor) else list(row) for row in ids]
        form = Form(is_text=False, is_batch=True, is_tensor=False)
    else:
        raise TypeError(f"ids must be a tensor, a list of token ids or a text; got {type(ids).__name__}")
    if not rows:
        raise InputError("there is no prompt: ids has no rows")
    return rows, form


def _encoded(text: str, pretrained: Pretrained | None) -> list[int]:
    if pretrained is None:
        raise TypeError(f"a bare model reads token ids; for the text {text[:40]!r} hand over what regard.load returned")
    return list(pretrained.encode(text).ids)


def _check_prompt(prompt: list[Any], which: str, vocab_size: int) -> None:
    if not prompt:
        raise InputError(f"prompt{which} is empty: a model goes on from at least one token")
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InputError(f"prompt{which} has the id {token!r}; the vocabulary has ids 0 to {vocab_size - 1}")


def _check_length(what: str, tokens: int, more: int, positions: int | None) -> None:
    # The last token that is written is not read again, so it needs no position.
    needed = tokens + max(more - 1, 0)
    if positions is None or needed <= positions:
        return
    if tokens > positions or not more:
        raise InputError(f"{what} has {tokens} tokens, and the model has positions for {positions}: shorten it")
    raise InputError(
        f"{what} has {tokens} tokens; with {more} more the model would need {needed} positions, and it has "
        f"{positions}: max_new_tokens={positions - tokens + 1} at the most"
    )
