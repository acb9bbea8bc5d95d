"""Byte-level BPE tokenizers, trained on the texts of a run."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

NUM_BYTES = 256
"""Every vocabulary has a token for each byte, so that no text is unknown."""

PRETOKENS = Regex(
    r" ?[\p{L}\p{M}]+"  # a word, with the space before it
    r"|\p{N}"  # digits one by one
    r"| ?[^\s\p{L}\p{M}\p{N}]+"  # signs
    r"|\s+(?!\S)|\s+"  # spaces, but for the last, which goes with the word
)
"""The text is split into these first; no token crosses their limits. Vowels of Hindi are marks, and belong to words."""


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    bos_token: str | None = None,
    eos_token: str | None = None,
) -> Tokenizer:
    """Train byte-level byte-pair encoding (Sennrich et al. 2016, section 3.2; Radford et al. 2019, section 2.2).

    Plain byte pairs would split characters of several bytes and join halves of two. Here the pairs of bytes that make
    the characters of the texts come first, and the other pairs are pairs of characters. The file of the tokenizer is
    that of any byte-level BPE.

    The same texts give the same tokenizer, byte for byte. Decoding gives back every text, except one that contains the
    text of a special token: that is encoded as the token.

    Args:
        texts: to count in. They are read twice; an iterator is kept in a temporary file meanwhile.
        vocab_size: the largest number of tokens; few texts have few pairs.
        special_tokens: tokens without a text; they have the first ids, in this order.
        bos_token: the special token that is added before every text.
        eos_token: the special token that is added after every text.

    Raises:
        ValueError: a vocabulary too small for the special tokens and the bytes; special tokens that are empty or given
            twice; a ``bos_token`` or ``eos_token`` that is not among them; no text.
        TypeError: one text instead of a list.
    """
    _validate(texts, vocab_size, special_tokens, bos_token, eos_token)
    with _rereadable(texts) as corpus:
        counts: Counter[str] = Counter()
        for text in corpus:
            counts.update(text)
        if not counts:
            raise ValueError("there is no text to train a tokenizer on")
        tokens = [*special_tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        characters, merges = _character_merges(counts, (vocab_size - len(tokens)) // 2)
        tokens += ["".join(pair) for pair in merges]
        alphabet = [*filter(str.isascii, counts), *characters]
        for pair in _bpe_merges(corpus, alphabet, vocab_size - len(tokens)):
            left, right = map(_as_bytes, pair)
            merges.append((left, right))
            tokens.append(left + right)
    # Two pairs may make the same token; it has the id of the first.
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special_tokens])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(PRETOKENS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if bos_token is not None or eos_token is not None:
        template = [token for token in (bos_token, "$A", eos_token) if token is not None]
        ids = [(token, vocab[token]) for token in special_tokens if token in (bos_token, eos_token)]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return tokenizer


def _validate(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str], bos_token: str | None, eos_token: str | None
) -> None:
    if isinstance(texts, str):
        raise TypeError("texts is a list of texts: pass [text]")
    if len(set(special_tokens)) != len(special_tokens) or not all(special_tokens):
        raise ValueError(f"special tokens must differ, and none may be empty; not {list(special_tokens)}")
    for name, token in (("bos_token", bos_token), ("eos_token", eos_token)):
        if token is not None and token not in special_tokens:
            raise ValueError(f"{name}={token!r} is not one of the special tokens {list(special_tokens)}")
    min_size = NUM_BYTES + len(special_tokens)
    if vocab_size < min_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small for {NUM_BYTES} bytes and {len(special_tokens)} special tokens: "
            f"give at least {min_size}"
        )


def _character_merges(counts: Counter[str], max_merges: int) -> tuple[list[str], list[tuple[str, str]]]:
    """The characters of several bytes that have their own token, the most frequent first, and the merges they need.

    Args:
        counts: how often each character occurs; one that occurs once has no token.
        max_merges: the number of tokens there is space for.
    """
    characters: list[str] = []
    merges: dict[tuple[str, str], None] = {}
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if character.isascii() or count < 2:
            continue
        as_bytes = _as_bytes(character)
        prefixes = list(accumulate(as_bytes))  # its first byte, its first two, ...
        new = dict.fromkeys(pair for pair in zip(prefixes, as_bytes[1:], strict=False) if pair not in merges)
        if len(merges) + len(new) > max_merges:
            break
        merges |= new
        characters.append(character)
    return characters, list(merges)


def _bpe_merges(texts: Iterable[str], alphabet: Sequence[str], max_merges: int) -> list[tuple[str, str]]:
    """The pairs that byte-pair encoding merges over an alphabet of characters, in their order."""
    counter = Tokenizer(models.BPE())
    counter.pre_tokenizer = pre_tokenizers.Split(PRETOKENS, "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + max_merges,
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    counter.train_from_iterator(texts, trainer)
    return [(left, right) for left, right in json.loads(counter.to_str())["model"]["merges"]]


def _as_bytes(text: str) -> str:
    """A text as byte-level tokens write it: a character for each byte."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


@contextmanager
def _rereadable(texts: Iterable[str]) -> Iterator[Iterable[str]]:
    """Texts that can be read more than once."""
    if iter(texts) is not texts:
        yield texts
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps(text) + "\n")

        class FileTexts:
            def __iter__(self) -> Iterator[str]:
                file.seek(0)
                return map(json.loads, file)

        yield FileTexts()
