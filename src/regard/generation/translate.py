"""`translate`: many texts through an encoder-decoder, in batches of similar lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from regard.decoding import Beam, Strategy
from regard.errors import InputError, short_repr
from regard.generation.generate import generate
from regard.generation.hypothesis import Hypothesis
from regard.pretrained import Pretrained
from regard.transformer import EncoderDecoder

SORTED_BATCHES = 8
"""This many batches of texts are sorted by length together, so that little is padded."""

DEFAULT_MAX_NEW_TOKENS = 512

BEAM = Beam(num_beams=4)


def translate(
    model: Pretrained,
    texts: str | Iterable[str],
    *,
    strategy: Strategy = BEAM,
    max_new_tokens: int | None = None,
    batch_size: int = 16,
    return_hypotheses: bool = False,
) -> Iterator[Any]:
    """The target of each text, in order: a translation, a summary, whatever the encoder-decoder was trained for.

    Args:
        model: what `regard.load` returned.
        texts: one text or any number of them, read as they are needed. An empty text stays empty.
        strategy: a `Beam` of 4 by default.
        max_new_tokens: the most tokens of one target; by default 512, or as many as the model has positions.
        batch_size: the number of texts that go through the model together.
        return_hypotheses: yield each target as a `Hypothesis`, with its score, its tokens, and why it ended.

    Yields:
        One target for each text, a string; with ``Beam(num_return_sequences=n)`` above 1 a list of n, the best first.

    Raises:
        InputError: a model that is no encoder-decoder; a text that is too long or not valid, with its number.
        ValueError: a batch size below 1.
    """
    if not isinstance(model, Pretrained) or not isinstance(model.model, EncoderDecoder):
        found = f"{model.name} is of the kind {model.kind}" if isinstance(model, Pretrained) else type(model).__name__
        raise InputError(f"translating needs an encoder-decoder (Marian, BART, T5), as regard.load returns it: {found}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    max_positions = model.model.decoder.config.max_positions or DEFAULT_MAX_NEW_TOKENS
    max_new_tokens = max_new_tokens or min(DEFAULT_MAX_NEW_TOKENS, max_positions)
    sources = iter([texts] if isinstance(texts, str) else texts)
    return _translate(model, sources, strategy, max_new_tokens, batch_size, return_hypotheses)


def _translate(
    model: Pretrained,
    texts: Iterator[str],
    strategy: Strategy,
    max_new_tokens: int,
    batch_size: int,
    return_hypotheses: bool,
) -> Iterator[Any]:
    num_done = 0
    num_return_sequences = getattr(strategy, "num_return_sequences", 1)
    empty: Any = Hypothesis([], None, "") if return_hypotheses else ""
    if num_return_sequences > 1:
        empty = [empty] * num_return_sequences
    while sources := list(islice(texts, SORTED_BATCHES * batch_size)):
        targets = [empty] * len(sources)
        lengths = {n: _num_tokens(model, text, num_done + n) for n, text in enumerate(sources) if text.strip()}
        order = sorted(lengths, key=lengths.__getitem__)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            results = generate(
                model,
                [sources[n] for n in batch],
                max_new_tokens=max_new_tokens,
                strategy=strategy,
                return_hypotheses=return_hypotheses,
            )
            for n, result in zip(batch, results, strict=True):
                targets[n] = result
        yield from targets
        num_done += len(sources)


def _num_tokens(model: Pretrained, text: str, number: int) -> int:
    try:
        return len(model.encode(text).ids)
    except InputError as error:
        raise InputError(f"text {number} ({short_repr(text)}): {error}") from error
