"""The door: a model and a prompt in, what the model writes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.errors import InputError
from regard.generation.beam import Hypothesis, Rules, search
from regard.generation.constraints import Constraints
from regard.generation.loop import tokens
from regard.generation.request import Asked, Prompt, Prompts, Stop, Written, ask
from regard.generation.sampling import chooser_of
from regard.generation.strategy import Beam, Greedy, Sample, Strategy
from regard.generation.streaming import Unwanted, phrase_ids
from regard.pretrained import Pretrained
from regard.transformer import Decoder, EncoderDecoder

__all__ = ["generate", "hypotheses", "stream"]

GREEDY = Greedy()


def generate(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompts,
    *,
    max_new_tokens: int,
    strategy: Strategy = GREEDY,
    stop: Stop | None = None,
    start: int | None = None,
    pad: int | None = None,
) -> Written:
    """What a model writes: the continuation of a prompt, or with an encoder-decoder the answer to a source.

    What comes back has the form of what went in. Ids hold what the decoder has read and written: the prompt, or an
    encoder-decoder's start token, and then the new tokens with the stop token. Text is what is new, without special
    tokens. A model that reads images writes texts for images, and ids for pixels.

    Args:
        model: a decoder, an encoder-decoder, or what `regard.load` returned.
        ids: token ids, ``(tokens,)`` or ``(batch, tokens)`` or a list; several lists of different lengths make a
            ragged batch. With a loaded model also a text, or a list of texts. For a model that reads images: what
            `Pretrained.pixels` takes, one or a list of them, or pixels ``(channels, height, width)`` or ``(batch,
            channels, height, width)``.
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
        TypeError: a model that writes nothing; text for a model without a tokenizer; an image that is none.
        ValueError: max_new_tokens below 1.
    """
    asked = ask(model, ids, max_new_tokens, stop, start, pad)
    found = _texts(asked, strategy)
    written: list[Any]
    if asked.form.is_text:
        written = [["".join(asked.writer(n).pieces(iter(new))) for new in texts] for n, texts in enumerate(found)]
    else:
        written = [[[*read, *new] for new in texts] for read, texts in zip(asked.read, found, strict=True)]
    return asked.form.back(written, strategy.n_best if isinstance(strategy, Beam) else 1, asked.pad)


def hypotheses(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompts,
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
    if not isinstance(strategy, Beam):
        raise TypeError(f"strategy must be a Beam: of other texts there is one, and no score; got {strategy!r}")
    return _searched(ask(model, ids, max_new_tokens, stop, start, None), strategy)


def stream(
    model: Decoder | EncoderDecoder | Pretrained,
    ids: Prompt,
    *,
    max_new_tokens: int,
    strategy: Greedy | Sample = GREEDY,
    stop: Stop | None = None,
    start: int | None = None,
) -> Iterator[int] | Iterator[str]:
    """What `generate` returns, while it is written: the new tokens one by one, or the text piece by piece.

    A piece of text comes as soon as it is certain: a letter that is made of several tokens when it is whole, what
    could be the beginning of a stop string when it is none.

    Args:
        model: as in `generate`.
        ids: one prompt: ids, or with a loaded model a text; an image for a model that reads images.
        max_new_tokens: see `generate`.
        strategy: `Greedy` or `Sample`; what a beam search writes is known at its end only.
        stop: see `generate`.
        start: see `generate`.
    """
    if isinstance(strategy, Beam):
        raise TypeError(
            "a beam search knows what it writes at its end only: use generate, or stream a Greedy or Sample"
        )
    if not isinstance(strategy, (Greedy, Sample)):
        raise TypeError(f"strategy must be a Greedy or a Sample; got {strategy!r}")
    asked = ask(model, ids, max_new_tokens, stop, start, None)
    if len(asked.prompts) != 1 or asked.form.is_batch:
        raise ValueError(f"stream writes one text; got {len(asked.prompts)} prompts")
    new = (step[0] for step in _steps(asked, strategy))
    return asked.writer(0).pieces(new) if asked.form.is_text else new


def _texts(asked: Asked, strategy: Strategy) -> list[list[list[int]]]:
    """The new tokens of each prompt's texts, the best first; one text, but for a beam search that is asked for more."""
    if isinstance(strategy, Beam):
        return [[hypothesis.ids for hypothesis in texts[: strategy.n_best]] for texts in _searched(asked, strategy)]
    if not isinstance(strategy, (Greedy, Sample)):
        raise TypeError(f"strategy must be a Greedy, Sample or Beam; got {strategy!r}")
    new: list[list[int]] = [[] for _ in asked.prompts]
    for step in _steps(asked, strategy):
        for row, token in step.items():
            new[row].append(token)
    return [[row] for row in new]


def _steps(asked: Asked, strategy: Greedy | Sample) -> Iterator[dict[int, int]]:
    choose = chooser_of(strategy, len(asked.prompts))
    return tokens(asked.reader(), asked.read, choose, asked.limit, asked.special, asked.ended)


def _searched(asked: Asked, strategy: Beam) -> list[list[Hypothesis]]:
    vocab_size, pretrained = asked.decoder.config.vocab_size, asked.pretrained
    must = [phrase_ids(phrase, "must", pretrained, vocab_size) for phrase in strategy.must]
    words = [phrase for phrase in strategy.never if isinstance(phrase, str)]
    never = [phrase_ids(phrase, "never", pretrained, vocab_size) for phrase in strategy.never if phrase not in words]
    if words and pretrained is None:
        raise TypeError(f"never={words}: words need a tokenizer, and a bare model has none; use regard.load")
    unwanted = Unwanted(words, asked.decoded)
    for phrase, ids in zip(strategy.must, must, strict=True):
        if unwanted(0, ids):
            raise InputError(f"must={phrase!r} and never={words} contradict each other")
    try:
        constraints = Constraints(must, never, asked.special.eos, asked.limit)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = search(
        asked.reader(strategy.width),
        len(asked.prompts),
        Rules(strategy, asked.limit, asked.special, constraints, asked.ended, unwanted),
    )
    for texts in found:
        if len(texts) < strategy.n_best:
            raise InputError(
                f"the search found {len(texts)} texts of up to {asked.limit} tokens with must={strategy.must!r} and "
                f"never={strategy.never!r}, and n_best={strategy.n_best} were asked for: allow more tokens or a "
                f"larger width than {strategy.width}"
            )
    return found
