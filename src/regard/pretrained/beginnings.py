"""Tokens of very long texts: where a model reads only the first tokens of a text, only its beginning is tokenized.

A tokenizer needs about 150 bytes of memory for each character of English, and 750 for each of Chinese.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType

from tokenizers import Encoding, Tokenizer, normalizers, pre_tokenizers

CHARACTERS_PER_TOKEN = 16
"""Characters of the first beginning, for each token that the model reads: three times as many as English needs."""
GROWTH = 4
"""The factor from one beginning to the next."""
OPEN_WORDS = 8
"""The last words of a beginning that the rest of the text could change: the one that is cut, and what the pattern of
`ByteLevel` makes of it (``'`` and ``r`` instead of ``'re``)."""


def encode_beginnings(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int | None) -> list[tuple[str, Encoding]]:
    """Tokenize texts, or only so much of a text that its first tokens are known.

    Args:
        tokenizer: which neither truncates nor pads.
        texts: any texts.
        max_tokens: the most tokens that the model reads.

    Returns:
        Of each text the part that was tokenized, and its tokens. It is the whole text, or a beginning which shows that
        the whole text has more than `max_tokens` tokens, and has the same first `max_tokens` tokens.
    """
    if max_tokens is None or not _is_local(tokenizer):
        return list(zip(texts, tokenizer.encode_batch(texts), strict=True))
    num_open = OPEN_WORDS + max(
        (len(token.content) for token in tokenizer.get_added_tokens_decoder().values()), default=0
    )
    found: dict[int, tuple[str, Encoding]] = {}
    waiting, length = list(range(len(texts))), CHARACTERS_PER_TOKEN * max_tokens
    while waiting:
        beginnings = [texts[index][: length if len(texts[index]) > 2 * length else None] for index in waiting]
        for index, beginning, encoding in zip(waiting, beginnings, tokenizer.encode_batch(beginnings), strict=True):
            if len(beginning) == len(texts[index]) or num_settled(encoding, num_open) > max_tokens:
                found[index] = beginning, encoding
        waiting = [index for index in waiting if index not in found]
        length *= GROWTH
    return [found[index] for index in range(len(texts))]


def num_settled(encoding: Encoding, num_open: int) -> int:
    """How many first tokens of a beginning are those of every text that begins so.

    Args:
        encoding: of the beginning.
        num_open: the number of its last words that what follows could change.
    """
    words = encoding.word_ids
    last = max((word for word in words if word is not None), default=-1)
    return next((n for n, word in enumerate(words) if word is not None and word > last - num_open), 0)


def _is_local(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a word depend on nothing that is far behind it.

    That is known of the tokenizers of BERT and RoBERTa: they split a text into words at spaces and punctuation, and
    each word into tokens by itself. A token that was added to the vocabulary is as many words as it has characters, at
    most.
    """
    return isinstance(tokenizer.normalizer, NoneType | normalizers.BertNormalizer) and isinstance(
        tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer | pre_tokenizers.ByteLevel
    )
