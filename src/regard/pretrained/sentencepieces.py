"""The tokenizer of Marian's checkpoints: two SentencePiece models and one vocabulary, through `sentencepiece`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.pretrained.checkpoint import read_object
from regard.pretrained.hub import Source

__all__ = ["FILES", "Pieces", "SentencePieces"]

FILES = ("source.spm", "target.spm", "vocab.json")
"""What a checkpoint has instead of a tokenizer.json."""

SPACE = "▁"
END, PAD, UNKNOWN = "</s>", "<pad>", "<unk>"


@dataclass(frozen=True)
class Pieces:
    """The tokens of a text; as much of the `Encoding` of tokenizers as regard reads."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """Where each stands in the text; (0, 0) for what was added."""
    word_ids: list[int | None]
    """Which word each belongs to; words begin at spaces. None for what was added."""

    @property
    def type_ids(self) -> list[int]:
        """The segment of each: there is one."""
        return [0] * len(self.ids)


class SentencePieces:
    """Texts to ids and back (Kudo and Richardson 2018).

    A text is cut by the source language's model, an id is what the vocabulary says of the piece, and ``</s>`` follows.
    A language code in front, ``>>de<<``, stays one token.

    Raises:
        InputError: sentencepiece is not installed; a file that is missing or damaged; a vocabulary without ``</s>`` or
            ``<unk>``.
    """

    def __init__(self, source: Source) -> None:
        spm_source, spm_target, vocabulary = (source.need(file) for file in FILES)
        self.source, self.target = _processor(spm_source), _processor(spm_target)
        self.vocab: dict[str, int] = read_object(vocabulary)
        for piece, number in self.vocab.items():
            if type(number) is not int or number < 0:
                raise InputError(f"{vocabulary}: {piece!r} has the id {number!r}; ids are whole numbers from 0")
        for needed in (END, UNKNOWN):
            if needed not in self.vocab:
                raise InputError(f"{vocabulary} lacks {needed!r}, which every Marian vocabulary has")
        self.pieces = {number: piece for piece, number in self.vocab.items()}

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        return dict(self.vocab)

    def token_to_id(self, token: str) -> int | None:
        """A token's id, if there is such a token."""
        return self.vocab.get(token)

    def id_to_token(self, number: int) -> str | None:
        """An id's token, if there is such an id."""
        return self.pieces.get(number)

    def encode(self, text: str, *, target: bool = False, add_special_tokens: bool = True) -> Pieces:
        """The tokens of a text in the source language or in the target's, ``</s>`` last if special tokens are added."""
        start = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        tokens, offsets = ([text[:start]], [(0, start)]) if start else ([], [])
        words: list[int | None] = [0] if start else []
        word = 0 if start else -1
        processor = self.target if target else self.source
        cut = processor.encode(text[start:], return_type="offset_mapping")
        for piece, (begin, end) in zip(cut["pieces"], cut["offsets"], strict=True):
            if piece.startswith(SPACE) or word < 0:
                word += 1
            tokens.append(piece)
            offsets.append((start + begin, start + end))
            words.append(word)
        if add_special_tokens:
            tokens, offsets, words = [*tokens, END], [*offsets, (0, 0)], [*words, None]
        ids = [self.vocab.get(token, self.vocab[UNKNOWN]) for token in tokens]
        return Pieces(ids, tokens, offsets, words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids, put together by the target language's model.

        Args:
            ids: of tokens; one that is no token's counts as ``<unk>``.
            skip_special_tokens: whether ``</s>``, ``<pad>`` and ``<unk>`` are left out.
        """
        text, run = "", []
        for piece in (self.pieces.get(int(number), UNKNOWN) for number in ids):
            if piece not in (END, PAD, UNKNOWN):
                run.append(piece)
            elif not skip_special_tokens:
                text += self._joined(run) + piece + " "
                run = []
        return (text + self._joined(run)).strip()

    def _joined(self, pieces: Iterable[str]) -> str:
        joined: str = self.target.decode_pieces(list(pieces))
        return joined.replace(SPACE, " ")


def _processor(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(
            f"{path} is read with the library sentencepiece, which is not installed: pip install 'regard[marian]'"
        ) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} cannot be read as a SentencePiece model: {error}") from error
