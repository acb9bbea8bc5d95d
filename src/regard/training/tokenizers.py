"""Tokenizers that are trained on the texts they will read."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

__all__ = ["BYTES", "trained"]

BYTES = 256
"""Tokens that every vocabulary has: with one for each byte, no text is unknown."""

PIECES = Regex(
    r" ?[\p{L}\p{M}]+"  # a word, with the space before it
    r"|\p{N}"  # digits one by one
    r"| ?[^\s\p{L}\p{M}\p{N}]+"  # signs
    r"|\s+(?!\S)|\s+"  # spaces, but for the last, which goes with the word
)
"""What a text is cut into first; no token reaches across. Marks belong to words: vowels are, in Hindi."""


def trained(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special: Sequence[str],
    start: str | None = None,
    stop: str | None = None,
) -> Tokenizer:
    """Train byte-level byte-pair encoding (Sennrich et al. 2016, section 3.2; Radford et al. 2019, section 2.2).

    Plain byte pairs would tear letters of several bytes apart and join halves of two. Here the pairs of bytes that make
    the texts' letters come first, and pairs are counted among letters. What is written out is byte-level as
    everywhere.

    The same texts give the same tokenizer, byte for byte. Decoding gives back every text in which no special token is
    written out: that would be read as the token.

    Args:
        texts: to count in. They are read twice; an iterator is kept in a temporary file meanwhile.
        vocab_size: tokens, at most: few texts have few pairs.
        special: tokens that stand for no text; they have the first ids, in this order.
        start: of these, what is added before every text.
        stop: of these, what is added behind it.

    Raises:
        ValueError: no room for the special tokens and the bytes; special tokens that are empty or given twice; a
            ``start`` or ``stop`` that is none of them; no text.
        TypeError: one text instead of many.
    """
    _hold(texts, vocab_size, special, start, stop)
    with _twice(texts) as again:
        counted: Counter[str] = Counter()
        for text in again:
            counted.update(text)
        if not counted:
            raise ValueError("there is no text to train a tokenizer on")
        tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        letters, merges = _letters(counted, (vocab_size - len(tokens)) // 2)
        tokens += ["".join(pair) for pair in merges]
        alphabet = [*filter(str.isascii, counted), *letters]
        for pair in _pairs(again, alphabet, vocab_size - len(tokens)):
            left, right = map(_as_bytes, pair)
            merges.append((left, right))
            tokens.append(left + right)
    # Two pairs may make one token; it has the number of the first.
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if start is not None or stop is not None:
        framed = [token for token in (start, "$A", stop) if token is not None]
        ids = [(token, vocabulary[token]) for token in special if token in (start, stop)]
        tokenizer.post_processor = processors.TemplateProcessing(single=framed, special_tokens=ids)
    return tokenizer


def _hold(texts: Iterable[str], vocab_size: int, special: Sequence[str], start: str | None, stop: str | None) -> None:
    if isinstance(texts, str):
        raise TypeError("texts are many: hand over [text]")
    if len(set(special)) != len(special) or not all(special):
        raise ValueError(f"special tokens are different texts, and none is empty; not {list(special)}")
    for name, token in (("start", start), ("stop", stop)):
        if token is not None and token not in special:
            raise ValueError(f"{name}={token!r} is none of the special tokens {list(special)}")
    least = BYTES + len(special)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size={vocab_size} has no room for {BYTES} bytes and {len(special)} special tokens: "
            f"give at least {least}"
        )


def _letters(counted: Counter[str], room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """The letters of several bytes that have a token of their own, the most frequent first, and the pairs they take.

    Args:
        counted: how often each letter is there; one that is there once gets none.
        room: for so many tokens.
    """
    letters: list[str] = []
    merges: dict[tuple[str, str], None] = {}
    for letter, number in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        if letter.isascii() or number < 2:
            continue
        written = _as_bytes(letter)
        parts = list(accumulate(written))  # its first byte, its first two, ...
        new = dict.fromkeys(pair for pair in zip(parts, written[1:], strict=False) if pair not in merges)
        if len(merges) + len(new) > room:
            break
        merges |= new
        letters.append(letter)
    return letters, list(merges)


def _pairs(texts: Iterable[str], alphabet: Sequence[str], room: int) -> list[tuple[str, str]]:
    """The pairs that byte-pair encoding joins among letters, in their order, to make so many tokens."""
    counting = Tokenizer(models.BPE())
    counting.pre_tokenizer = pre_tokenizers.Split(PIECES, "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + room,
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    counting.train_from_iterator(texts, trainer)
    return [(left, right) for left, right in json.loads(counting.to_str())["model"]["merges"]]


def _as_bytes(text: str) -> str:
    """A text as byte-level tokens write it: a letter for each byte."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


@contextmanager
def _twice(texts: Iterable[str]) -> Iterator[Iterable[str]]:
    """Texts that can be read more than once."""
    if iter(texts) is not texts:
        yield texts
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps(text) + "\n")

        class Kept:
            def __iter__(self) -> Iterator[str]:
                file.seek(0)
                return map(json.loads, file)

        yield Kept()
