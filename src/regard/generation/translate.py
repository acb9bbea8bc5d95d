"""Many texts through an encoder-decoder, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from regard.errors import InputError, quoted
from regard.generation.generate import generate
from regard.generation.strategy import Beam, Strategy
from regard.pretrained import Pretrained
from regard.transformer import EncoderDecoder

__all__ = ["translate"]

AHEAD = 8
"""So many batches are read at once, and sorted, so that texts of a length come together and little is padded."""

MOST = 512
"""New tokens of a text, where the model's positions allow that many."""

BEAM = Beam(width=4)


def translate(
    model: Pretrained,
    texts: str | Iterable[str],
    *,
    strategy: Strategy = BEAM,
    max_new_tokens: int | None = None,
    batch_size: int = 16,
) -> Iterator[str]:
    """What an encoder-decoder writes for each text, in order: a translation, a summary, whatever it was trained for.

    Args:
        model: what `regard.load` returned.
        texts: one text or any number of them; they are read as they are needed. An empty one stays empty.
        strategy: a `Beam` of 4 by default.
        max_new_tokens: the most tokens of one; by default 512, or as many as the model has positions.
        batch_size: texts that go through the model together.

    Yields:
        One text for each.

    Raises:
        InputError: a text that is too long or not valid; it names which.
        TypeError: a model that is no encoder-decoder.
        ValueError: a batch size below 1.
    """
    if not isinstance(model, Pretrained) or not isinstance(model.model, EncoderDecoder):
        kind = model.kind if isinstance(model, Pretrained) else type(model).__name__
        raise InputError(f"translating needs an encoder-decoder (Marian, BART, T5) from regard.load; this is a {kind}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    positions = model.model.decoder.config.max_positions
    limit = max_new_tokens or min(MOST, positions or MOST)
    return _translated(model, iter([texts] if isinstance(texts, str) else texts), strategy, limit, batch_size)


def _translated(
    model: Pretrained, texts: Iterator[str], strategy: Strategy, limit: int, batch_size: int
) -> Iterator[str]:
    done = 0
    while window := list(islice(texts, AHEAD * batch_size)):
        written = [""] * len(window)
        lengths = {n: _length(model, text, done + n) for n, text in enumerate(window) if text.strip()}
        order = sorted(lengths, key=lengths.__getitem__)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            found = generate(model, [window[n] for n in batch], max_new_tokens=limit, strategy=strategy)
            for n, text in zip(batch, found, strict=True):
                written[n] = text if isinstance(text, str) else text[0]  # the best of several
        yield from written
        done += len(window)


def _length(model: Pretrained, text: str, number: int) -> int:
    try:
        return len(model.encode(text).ids)
    except InputError as error:
        raise InputError(f"text {number} ({quoted(text)}): {error}") from error
