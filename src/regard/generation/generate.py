"""The door: a model and a prompt in, what the model writes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from regard._shapes import Int
from regard.errors import InputError
from regard.generation.beam import Hypothesis, search
from regard.generation.choose import chooser_of
from regard.generation.constraints import Constraints
from regard.generation.loop import tokens
from regard.generation.reader import Reader
from regard.generation.strategy import Beam, Greedy, Phrase, Sample, Strategy
from regard.generation.text import StopStrings, Writer, phrase_ids
from regard.pretrained import Pretrained
from regard.transformer import Decoder, Encoder, EncoderDecoder, Special

__all__ = ["generate", "hypotheses", "stream"]

Prompt = str | Sequence[int] | Int[Tensor, " tokens"]
Stop = int | str | Sequence[int | str]
Written = Tensor | str | list[Any]


def generate(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompt | Sequence[Prompt] | Int[Tensor, "batch tokens"],
    *,
    max_new_tokens: int,
    strategy: Strategy = Greedy(),
    stop: Stop | None = None,
    start: int | None = None,
    pad: int | None = None,
) -> Written:
    """What a model writes: the continuation of a prompt, or with an encoder-decoder the answer to a source.

    What comes back has the form of what went in. Ids hold what the decoder has read and written: the prompt, or an
    encoder-decoder's start token, and then the new tokens with the stop token. Text is what is new, without special
    tokens.

    Args:
        model: a decoder, an encoder-decoder, or what `regard.load` returned.
        ids: token ids, ``(tokens,)`` or ``(batch, tokens)`` or a list; several lists of different lengths make a
            ragged batch. With a loaded model also a text, or a list of texts.
        max_new_tokens: the most tokens that are written.
        strategy: `Greedy`, `Sample` or `Beam`.
        stop: token ids that end a text, and with a loaded model also strings; the text ends before such a string.
            By default those that the model was trained with; ``()`` for none.
        start: the first token that an encoder-decoder's decoder reads; by default the model's own.
        pad: what shorter rows of a tensor are filled with; by default the model's own, or the first stop token.

    Returns:
        For a tensor ``(tokens,)`` or ``(batch, tokens)``, for lists a list of ids or of such lists, for text a text or
        a list of texts. With ``Beam(n_best=n)`` above 1 there are n in the place of each, the best first.

    Raises:
        InputError: an empty prompt; ids outside the vocabulary; more tokens than the model has positions; constraints
            that no text can meet.
        TypeError: a model that writes nothing; text for a model without a tokenizer.
        ValueError: max_new_tokens below 1.
    """
    asked = _asked(model, ids, max_new_tokens, stop, start, pad)
    found = _found(asked, strategy)
    n_best = strategy.n_best if isinstance(strategy, Beam) else 1
    before = [[asked.start] if asked.start is not None else prompt for prompt in asked.prompts]
    if asked.form.is_text:
        assert asked.pretrained is not None
        written: list[Any] = [
            [asked.text_of(hypothesis.ids, n) for hypothesis in row[:n_best]] for n, row in enumerate(found)
        ]
    else:
        written = [
            [[*prompt, *hypothesis.ids] for hypothesis in row[:n_best]]
            for prompt, row in zip(before, found, strict=True)
        ]
    return asked.form.back(written, n_best, asked.pad)


def hypotheses(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompt | Sequence[Prompt] | Int[Tensor, "batch tokens"],
    *,
    max_new_tokens: int,
    strategy: Beam,
    stop: Stop | None = None,
    start: int | None = None,
) -> list[list[Hypothesis]]:
    """The texts that a beam search finished, for each prompt, the best first: their new ids and their scores.

    Args:
        model: as in `generate`, and so is the rest.
        ids: see `generate`.
        max_new_tokens: see `generate`.
        strategy: a `Beam`.
        stop: see `generate`.
        start: see `generate`.
    """
    return _found(_asked(model, ids, max_new_tokens, stop, start, None), strategy)


@overload
def stream(model: Pretrained, ids: str, **options: Any) -> Iterator[str]: ...
@overload
def stream(model: Decoder | EncoderDecoder | Pretrained, ids: Sequence[int] | Tensor, **options: Any) -> Iterator[int]: ...
def stream(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompt,
    *,
    max_new_tokens: int,
    strategy: Greedy | Sample = Greedy(),
    stop: Stop | None = None,
    start: int | None = None,
) -> Iterator[int] | Iterator[str]:
    """What `generate` returns, while it is written: the new tokens one by one, or the text piece by piece.

    A piece of text comes as soon as it is certain: a letter that is made of several tokens when it is whole, what
    could be the beginning of a stop string when it is none.

    Args:
        model: as in `generate`.
        ids: one prompt: ids, or with a loaded model a text.
        max_new_tokens: see `generate`.
        strategy: `Greedy` or `Sample`; what a beam search writes is known at its end only.
        stop: see `generate`.
        start: see `generate`.
    """
    if isinstance(strategy, Beam):
        raise TypeError("a beam search knows what it writes at its end only: use generate, or stream a Greedy or Sample")
    asked = _asked(model, ids, max_new_tokens, stop, start, None)
    if len(asked.prompts) != 1 or asked.form.is_batch:
        raise ValueError(f"stream writes one text; got {len(asked.prompts)} prompts")
    new = (step[0] for step in _steps(asked, strategy))
    return asked.writer(0).pieces(new) if asked.form.is_text else new


@dataclass(frozen=True)
class _Form:
    """The form in which the prompts came, for what goes back."""

    is_text: bool
    is_batch: bool
    is_tensor: bool

    def back(self, written: list[Any], n_best: int, pad: int) -> Written:
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
class _Asked:
    """What was asked for, checked."""

    model: Decoder | EncoderDecoder
    pretrained: Pretrained | None
    prompts: list[list[int]]
    form: _Form
    limit: int
    special: Special
    strings: tuple[str, ...]
    start: int | None
    pad: int

    def reader(self) -> Reader:
        return Reader(self.model, self.prompts, self.start)

    def ended(self) -> Callable[[list[int]], bool]:
        """Whether new tokens hold a stop string."""
        if not self.strings:
            return lambda ids: False
        assert self.pretrained is not None
        stop, decode = StopStrings(self.strings), self.pretrained.decode
        return lambda ids: stop.first(decode(ids)) is not None

    def text_of(self, ids: list[int], row: int) -> str:
        """New tokens as text."""
        return "".join(self.writer(row).pieces(iter(ids)))

    def writer(self, row: int) -> Writer:
        """What turns the new tokens of a row into text, as they come."""
        return Writer(lambda ids: self.decoded(ids, row), StopStrings(self.strings))

    def decoded(self, ids: list[int], row: int) -> str:
        """New tokens as text, as they read behind the prompt: there a space may stand that a beginning has not."""
        assert self.pretrained is not None
        if self.start is not None:
            return self.pretrained.decode(ids)
        prompt = self.prompts[row]
        return self.pretrained.decode([*prompt, *ids])[len(self.pretrained.decode(prompt)) :]


def _steps(asked: _Asked, strategy: Greedy | Sample) -> Iterator[dict[int, int]]:
    before = asked.prompts if asked.start is None else [[asked.start] for _ in asked.prompts]
    choose = chooser_of(strategy, len(asked.prompts))
    return tokens(asked.reader(), before, choose, asked.limit, asked.special, asked.ended())


def _found(asked: _Asked, strategy: Strategy) -> list[list[Hypothesis]]:
    if isinstance(strategy, (Greedy, Sample)):
        new: list[list[int]] = [[] for _ in asked.prompts]
        for step in _steps(asked, strategy):
            for row, token in step.items():
                new[row].append(token)
        return [[Hypothesis(row, 0.0)] for row in new]
    if not isinstance(strategy, Beam):
        raise TypeError(f"strategy must be a Greedy, Sample or Beam; got {strategy!r}")
    decoder = asked.model.decoder if isinstance(asked.model, EncoderDecoder) else asked.model
    must, never = (
        [ids for phrase in phrases for ids in phrase_ids(phrase, name, asked.pretrained, decoder.config.vocab_size)]
        for name, phrases in (("must", strategy.must), ("never", strategy.never))
    )
    try:
        constraints = Constraints(must, never, asked.special.stop, asked.limit)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = search(
        asked.reader(), len(asked.prompts), strategy, asked.limit, asked.special, constraints, asked.ended()
    )
    for row in found:
        if len(row) < strategy.n_best:
            raise InputError(
                f"the search found {len(row)} texts of up to {asked.limit} tokens that meet must={strategy.must!r} and "
                f"never={strategy.never!r}, and n_best={strategy.n_best} were asked for: allow more tokens or a "
                f"larger width than {strategy.width}"
            )
    return found


def _asked(
    model: object, ids: Any, max_new_tokens: int, stop: Stop | None, start: int | None, pad: int | None
) -> _Asked:
    pretrained = model if isinstance(model, Pretrained) else None
    runs = pretrained.model if pretrained is not None else model
    if isinstance(runs, Encoder):
        raise TypeError("an encoder reads text and writes none: generate needs a decoder or an encoder-decoder")
    if not isinstance(runs, (Decoder, EncoderDecoder)):
        raise TypeError(f"model must be a regard Decoder, EncoderDecoder or what regard.load returned; got {model!r}")
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number, at least 1")
    decoder = runs.decoder if isinstance(runs, EncoderDecoder) else runs
    special = decoder.config.special
    stop_ids, strings = _stops(stop, special, pretrained, decoder.config.vocab_size)
    special = replace(special, stop=stop_ids)
    if isinstance(runs, EncoderDecoder):
        start = special.start if start is None else start
        if start is None:
            raise InputError("this encoder-decoder does not say which token its decoder starts with: give start=ID")
        if not 0 <= start < decoder.config.vocab_size:
            raise InputError(f"start={start}: the vocabulary has ids 0 to {decoder.config.vocab_size - 1}")
    elif start is not None:
        raise ValueError(f"start={start}: a decoder-only model begins with its prompt")
    prompts, form = _prompts(ids, pretrained)
    reads = runs.encoder.config if isinstance(runs, EncoderDecoder) else decoder.config
    for n, prompt in enumerate(prompts):
        _check_prompt(prompt, f" {n}" if len(prompts) > 1 else "", reads.vocab_size)
    longest = max(map(len, prompts))
    if isinstance(runs, EncoderDecoder):
        _check_length("the source", longest, 0, reads.max_positions)
        _check_length("the text", 1, max_new_tokens, decoder.config.max_positions)
    else:
        _check_length("the prompt", longest, max_new_tokens, reads.max_positions)
    fill = pad if pad is not None else special.pad if special.pad is not None else stop_ids[0] if stop_ids else 0
    return _Asked(runs, pretrained, prompts, form, max_new_tokens, special, strings, start, fill)


def _stops(
    stop: Stop | None, special: Special, pretrained: Pretrained | None, vocab_size: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Stop ids and stop strings."""
    if stop is None:
        return special.stop, ()
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
    return (ids if ids or not strings else special.stop), strings


def _prompts(ids: Any, pretrained: Pretrained | None) -> tuple[list[list[int]], _Form]:
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"ids must be whole numbers (tokens,) or (batch, tokens); got {ids.dtype} {tuple(ids.shape)}")
        rows = ids.tolist() if ids.ndim == 2 else [ids.tolist()]
        form = _Form(is_text=False, is_batch=ids.ndim == 2, is_tensor=True)
    elif isinstance(ids, str):
        rows, form = [_encoded(ids, pretrained)], _Form(is_text=True, is_batch=False, is_tensor=False)
    elif isinstance(ids, Sequence) and ids and all(isinstance(text, str) for text in ids):
        rows, form = [_encoded(text, pretrained) for text in ids], _Form(is_text=True, is_batch=True, is_tensor=False)
    elif isinstance(ids, Sequence) and all(type(token) is int for token in ids):
        rows, form = [list(ids)], _Form(is_text=False, is_batch=False, is_tensor=False)
    elif isinstance(ids, Sequence):
        rows = [row.tolist() if isinstance(row, Tensor) else list(row) for row in ids]
        form = _Form(is_text=False, is_batch=True, is_tensor=False)
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
        f"{what} has {tokens} tokens; with {more} more the model would need {needed} positions, and it has {positions}: "
        f"max_new_tokens={positions - tokens + 1} at the most"
    )
