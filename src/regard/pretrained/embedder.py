"""Texts to vectors: texts packed one after the other without padding, where each text attends to itself only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention import mask
from regard.errors import InputError, short_repr
from regard.pretrained.beginnings import encode_beginnings
from regard.pretrained.pooling import SENTENCE_FILE, Pooling
from regard.transformer import Encoder

TOKENS_PER_BATCH = 2048
"""How many tokens go through the model together: enough for efficient matrix products, and few enough for the
activations to stay in the processor's caches."""


class TextError(InputError):
    """A text that the model cannot read."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index
        """The index of the text."""


class Embedder:
    """An encoder that makes vectors of texts.

    Args:
        model: the encoder.
        tokenizer: text to ids, if there is one.
        encode: the tokens of one text; raises the `InputError` of a text that the model cannot read.
        pooling: how the vectors of a text's tokens become one vector, if that is known.
        max_seq_length: the most tokens of a text that make its vector, if there are fewer than positions.
        name: the model's name, for errors.
    """

    def __init__(
        self,
        model: Encoder,
        tokenizer: Tokenizer | None,
        encode: Callable[[str], Any],
        *,
        pooling: Pooling | None,
        max_seq_length: int | None,
        name: str,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        limits = [limit for limit in (model.config.max_positions, max_seq_length) if limit is not None]
        self.max_tokens = min(limits, default=None)
        """The most tokens of a text; None for any number."""
        self._max_seq_length = max_seq_length
        self._encode, self._pooling, self._name = encode, pooling, name
        self._truncating: Tokenizer | None = None

    def pooling(self) -> Pooling:
        """The model's own pooling.

        Raises:
            InputError: the pooling could not be read.
        """
        if self._pooling is None:
            raise InputError(
                f"how {self._name} makes one vector of a text is not known: when it was loaded, the Hub "
                "could not be reached. Load it once with a network"
            )
        return self._pooling

    def tokenize(self, texts: Sequence[str], *, truncate: bool = False) -> tuple[list[Any], list[int]]:
        """The tokens of all texts at once, which is faster than one by one, and the indices of the truncated texts.

        Args:
            texts: any texts.
            truncate: whether a text with more tokens than the model takes is cut there, as sentence-transformers cuts
                it; special tokens stay.

        Raises:
            TextError: a text that the model cannot read.
        """
        encodings, truncated = [], []
        for index, (text, (read, encoding)) in enumerate(zip(texts, self._batch_encode(texts), strict=True)):
            too_long = encoding is not None and self._is_too_long(encoding)
            if truncate and too_long:
                encoding = self._truncate(read)
                truncated.append(index)
            elif too_long:
                # To count all its tokens would take the memory that reading its beginning saves.
                count = str(len(encoding.ids)) if read == text else f"more than {self.max_tokens}"
                raise TextError(self._too_long(text, count), index)
            if encoding is None or not self._is_valid(encoding):
                try:
                    encoding = self._encode(text)  # raises the error that says what is wrong
                except InputError as error:
                    raise TextError(str(error), index) from error
            encodings.append(encoding)
        return encodings, truncated

    def hidden_states(
        self, encodings: Sequence[Any], *, batch_size: int | None = None
    ) -> Iterator[tuple[list[int], Float[Tensor, "tokens d_model"], Int[Tensor, " texts"]]]:
        """The vectors of all tokens, some texts at a time.

        Args:
            encodings: of texts, from `tokenize`.
            batch_size: the most texts that go through the model together; by default as many as have
                `TOKENS_PER_BATCH` tokens.

        Yields:
            The indices of some texts; the vectors of their tokens, one text after the other; the number of tokens of
            each text.
        """
        counts = [len(encoding.ids) for encoding in encodings]
        device = self.model.embeddings.token.weight.device
        has_token_types = bool(self.model.config.num_token_types)
        for indices in batches_by_length(counts, batch_size):
            lengths = torch.tensor([counts[i] for i in indices], device=device)
            ids = torch.tensor(list(chain.from_iterable(encodings[i].ids for i in indices)), device=device)
            if not len(ids):  # an empty text with a tokenizer that adds no special tokens
                yield indices, torch.empty(0, self.model.config.d_model, dtype=self.dtype, device=device), lengths
                continue
            token_type_ids = None
            if has_token_types:
                types = list(chain.from_iterable(encodings[i].type_ids for i in indices))
                token_type_ids = torch.tensor(types, device=device)[None]
            text = torch.arange(len(indices), device=device).repeat_interleave(lengths)
            positions = torch.arange(len(ids), device=device) - (lengths.cumsum(0) - lengths)[text]
            with torch.no_grad():
                hidden_states = self.model(ids[None], token_type_ids, mask.documents(text), positions=positions)[0]
            yield indices, hidden_states, lengths

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vectors."""
        return self.model.embeddings.token.weight.dtype

    def _batch_encode(self, texts: Sequence[str]) -> Sequence[tuple[str, Any]]:
        """What was read of each text, and its tokens; None for them where the tokenizer or the model cannot be used."""
        if self.tokenizer is None or self.model.training:
            return [(text, None) for text in texts]
        try:
            for text in texts:
                text.encode()  # also what is not tokenized has to be valid
            return encode_beginnings(self.tokenizer, texts, self.max_tokens)
        except Exception:  # tokenizers raises bare Exception, and does not name the text
            return [(texts[0], None)] if len(texts) == 1 else [self._batch_encode([text])[0] for text in texts]

    def _is_too_long(self, encoding: Any) -> bool:
        return self.max_tokens is not None and len(encoding.ids) > self.max_tokens

    def _too_long(self, text: str, count: str) -> str:
        if self.max_tokens == self._max_seq_length:
            source = f"makes a vector of {self.max_tokens} at most (max_seq_length in its {SENTENCE_FILE})"
        else:
            source = f"has positions for {self.max_tokens}"
        return (
            f"the text has {count} tokens, and {self._name} {source}; it is {short_repr(text)}. Shorten it, split it, "
            "or cut it with truncate=True"
        )

    def _is_valid(self, encoding: Any) -> bool:
        config = self.model.config
        largest_id, largest_type = max(encoding.ids, default=0), max(encoding.type_ids, default=0)
        return largest_id < config.vocab_size and (not config.num_token_types or largest_type < config.num_token_types)

    def _truncate(self, text: str) -> Any:
        if self._truncating is None:
            assert self.tokenizer is not None
            assert self.max_tokens is not None
            self._truncating = Tokenizer.from_str(self.tokenizer.to_str())
            self._truncating.enable_truncation(self.max_tokens)
        return self._truncating.encode(text)


def batches_by_length(counts: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Batches of texts in the order of their lengths, so that attention computes texts of one length together.

    Args:
        counts: how many tokens each text has.
        batch_size: the most texts of a batch.

    Yields:
        The indices of texts that together have at most `TOKENS_PER_BATCH` tokens, or of one text that has more.
    """
    batch: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(counts)), key=counts.__getitem__):
        if batch and (num_tokens + counts[index] > TOKENS_PER_BATCH or len(batch) == batch_size):
            yield batch
            batch, num_tokens = [], 0
        batch.append(index)
        num_tokens += counts[index]
    if batch:
        yield batch
