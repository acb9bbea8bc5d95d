"""The tokenizer of Marian checkpoints: two SentencePiece models and one vocabulary, through `sentencepiece`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import InputError, install_hint
from regard.pretrained.checkpoint import read_json_object
from regard.pretrained.hub import ModelFiles

MARIAN_TOKENIZER_FILES = ("source.spm", "target.spm", "vocab.json")
"""The files of a Marian checkpoint, which has no tokenizer.json."""
TARGET_VOCAB_FILE = "target_vocab.json"
"""The target language's own vocabulary, in checkpoints that share none; `MarianTokenizer` does not support it."""

SPACE_MARK = "▁"
EOS, PAD, UNK = "</s>", "<pad>", "<unk>"


@dataclass(frozen=True)
class MarianEncoding:
    """The tokens of a text; the part of tokenizers' `Encoding` that regard reads."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """Start and end of each token in the text; (0, 0) for an added token."""
    word_ids: list[int | None]
    """The word of each token; words begin at spaces. None for an added token."""

    @property
    def type_ids(self) -> list[int]:
        """The token type of each token: there is only one type."""
        return [0] * len(self.ids)


class MarianTokenizer:
    """Texts to ids and back (Kudo and Richardson 2018).

    The source language's model splits a text into pieces, the vocabulary gives the id of each piece, and ``</s>``
    follows. A language code in front, ``>>de<<``, stays one token.

    Raises:
        InputError: sentencepiece is not installed; a file that is missing or damaged; a vocabulary without ``</s>`` or
            ``<unk>``.
    """

    def __init__(self, files: ModelFiles) -> None:
        source, target, vocabulary = (files.require(file) for file in MARIAN_TOKENIZER_FILES)
        self.source, self.target = _processor(source), _processor(target)
        self.vocab: dict[str, int] = read_json_object(vocabulary)
        for token, id_ in self.vocab.items():
            if type(id_) is not int or id_ < 0:
                raise InputError(f"{vocabulary}: {token!r} has the id {id_!r}; ids are whole numbers from 0")
        for token in (EOS, UNK):
            if token not in self.vocab:
                raise InputError(f"{vocabulary} lacks {token!r}, which every Marian vocabulary has")
        self.tokens = {id_: token for token, id_ in self.vocab.items()}

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        return dict(self.vocab)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token; None if there is no such token."""
        return self.vocab.get(token)

    def id_to_token(self, number: int) -> str | None:
        """The token of an id; None if there is no such id."""
        return self.tokens.get(number)

    def encode(self, text: str, *, target: bool = False, add_special_tokens: bool = True) -> MarianEncoding:
        """The tokens of a text in the source or the target language; ``</s>`` is the special token, at the end."""
        start = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        tokens, offsets = ([text[:start]], [(0, start)]) if start else ([], [])
        words: list[int | None] = [0] if start else []
        word = 0 if start else -1
        processor = self.target if target else self.source
        pieces = processor.encode(text[start:], return_type="offset_mapping")
        for piece, (begin, end) in zip(pieces["pieces"], pieces["offsets"], strict=True):
            if piece.startswith(SPACE_MARK) or word < 0:
                word += 1
            tokens.append(piece)
            offsets.append((start + begin, start + end))
            words.append(word)
        if add_special_tokens:
            tokens, offsets, words = [*tokens, EOS], [*offsets, (0, 0)], [*words, None]
        ids = [self.vocab.get(token, self.vocab[UNK]) for token in tokens]
        return MarianEncoding(ids, tokens, offsets, words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids, made by the target language's model.

        Args:
            ids: of tokens; an id without a token counts as ``<unk>``.
            skip_special_tokens: whether ``</s>``, ``<pad>`` and ``<unk>`` are left out.
        """
        text, pieces = "", []
        for token in (self.tokens.get(int(number), UNK) for number in ids):
            if token not in (EOS, PAD, UNK):
                pieces.append(token)
            elif not skip_special_tokens:
                text += self._decode_pieces(pieces) + token + " "
                pieces = []
        return (text + self._decode_pieces(pieces)).strip()

    def _decode_pieces(self, pieces: Iterable[str]) -> str:
        text: str = self.target.decode_pieces(list(pieces))
        return text.replace(SPACE_MARK, " ")


def _processor(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(
            f"{path} is read with the library sentencepiece, which is not installed: {install_hint('marian')}"
        ) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} cannot be read as a SentencePiece model: {error}") from error
