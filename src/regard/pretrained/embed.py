"""Texts to vectors: packed side by side into rows without padding, where each text sees itself only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention import mask
from regard.errors import InputError
from regard.pretrained.hub import DEFAULT
from regard.pretrained.pooling import Pooling
from regard.transformer import Encoder

if TYPE_CHECKING:
    from regard.pretrained.load import Pretrained

__all__ = ["ROW", "Embedder", "TextError"]

ROW = 2048
"""Tokens that go through the model together: enough for its products, and few enough for what lies between them to stay
in the caches."""


class TextError(InputError):
    """A text that the model cannot read."""

    def __init__(self, message: str, place: int, *, too_long: bool) -> None:
        super().__init__(message)
        self.place = place
        """Which of the texts it is."""
        self.too_long = too_long
        """Whether cutting it would help."""


class Embedder:
    """An encoder and how it makes vectors of texts.

    Args:
        pretrained: an encoder with its tokenizer.

    Raises:
        InputError: a model of another kind.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        if not isinstance(pretrained.model, Encoder):
            raise InputError(
                f"{pretrained.name} is of the kind {pretrained.kind}; one vector of a text is what an encoder makes, "
                f"for example {DEFAULT}"
            )
        self.pretrained = pretrained
        self.model: Encoder = pretrained.model
        self.limit = self.model.config.max_positions
        self._cutter: Tokenizer | None = None

    def pooling(self) -> Pooling:
        """The model's own.

        Raises:
            InputError: it could not be read.
        """
        if self.pretrained.pooling is None:
            raise InputError(
                f"how {self.pretrained.name} makes one vector of a text is not known: when it was loaded, the Hub "
                "could not be asked. Load it once with a network"
            )
        return self.pretrained.pooling

    def read(self, texts: Sequence[str], *, cut: bool = False) -> tuple[list[Any], list[int]]:
        """The tokens of texts, all at once, which is faster than one by one; and the places of texts that were cut.

        Args:
            texts: any.
            cut: whether a text that is too long is cut to what the model has positions for, special tokens kept.

        Raises:
            TextError: a text that the model cannot read, as `Pretrained.encode` says it.
        """
        read, were_cut = [], []
        for place, (text, encoding) in enumerate(zip(texts, self._tokens(list(texts)), strict=True)):
            if cut and encoding is not None and self._is_long(encoding):
                encoding = self._cut(text)
                were_cut.append(place)
            if encoding is None or not self._fits(encoding):
                try:
                    encoding = self.pretrained.encode(text)  # which says what is wrong with it
                except InputError as error:
                    too_long = encoding is not None and self._is_long(encoding)
                    raise TextError(str(error), place, too_long=too_long) from error
            read.append(encoding)
        return read, were_cut

    def hidden_states(
        self, encodings: Sequence[Any], *, most: int | None = None
    ) -> Iterator[tuple[list[int], Float[Tensor, "tokens d_model"], Int[Tensor, " texts"]]]:
        """The vectors of all tokens, some texts at a time.

        Args:
            encodings: of texts, from `read`.
            most: the most texts that go through the model together; by default as many as have `ROW` tokens.

        Yields:
            Which texts these are, by their places; the vectors of their tokens, one text after the other; how many
            tokens each has.
        """
        counts = [len(encoding.ids) for encoding in encodings]
        device = self.pretrained.device
        segmented = bool(self.model.config.num_token_types)
        for places in rows(counts, most):
            lengths = torch.tensor([counts[i] for i in places], device=device)
            ids = torch.tensor(list(chain.from_iterable(encodings[i].ids for i in places)), device=device)
            if not len(ids):  # tokenizers without special tokens make none of an empty text
                yield places, torch.empty(0, self.model.config.d_model, dtype=self.dtype, device=device), lengths
                continue
            token_type_ids = None
            if segmented:
                types = list(chain.from_iterable(encodings[i].type_ids for i in places))
                token_type_ids = torch.tensor(types, device=device)[None]
            text = torch.arange(len(places), device=device).repeat_interleave(lengths)
            positions = torch.arange(len(ids), device=device) - (lengths.cumsum(0) - lengths)[text]
            with torch.no_grad():
                hidden_states = self.model(ids[None], token_type_ids, mask.documents(text), positions=positions)[0]
            yield places, hidden_states, lengths

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        return self.model.embeddings.token.weight.dtype

    def _tokens(self, texts: list[str]) -> Sequence[Any]:
        """The tokens of each text, None where there are none to be had."""
        tokenizer = self.pretrained.tokenizer
        if tokenizer is None or self.model.training:
            return [None] * len(texts)
        assert isinstance(tokenizer, Tokenizer), "only encoder-decoders have another"
        try:
            return tokenizer.encode_batch(texts)
        except Exception:  # tokenizers raises bare Exception, and does not say which text it was
            return [None] * len(texts)

    def _is_long(self, encoding: Any) -> bool:
        return self.limit is not None and len(encoding.ids) > self.limit

    def _fits(self, encoding: Any) -> bool:
        config = self.model.config
        ids, token_type_ids = max(encoding.ids, default=0), max(encoding.type_ids, default=0)
        known = ids < config.vocab_size and (not config.num_token_types or token_type_ids < config.num_token_types)
        return known and not self._is_long(encoding)

    def _cut(self, text: str) -> Any:
        if self._cutter is None:
            assert isinstance(self.pretrained.tokenizer, Tokenizer)
            assert self.limit is not None
            self._cutter = Tokenizer.from_str(self.pretrained.tokenizer.to_str())
            self._cutter.enable_truncation(self.limit)
        return self._cutter.encode(text)


def rows(counts: Sequence[int], most: int | None = None) -> Iterator[list[int]]:
    """Texts by their number of tokens, so that attention computes those of one length together, cut into rows.

    Args:
        counts: how many tokens each text has.
        most: the most texts of a row.

    Yields:
        Places of texts that together have at most `ROW` tokens, or of one text that has more.
    """
    row: list[int] = []
    tokens = 0
    for place in sorted(range(len(counts)), key=counts.__getitem__):
        if row and (tokens + counts[place] > ROW or len(row) == most):
            yield row
            row, tokens = [], 0
        row.append(place)
        tokens += counts[place]
    if row:
        yield row
