"""The tokenizer of a checkpoint, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from regard.errors import InputError
from regard.pretrained.checkpoint import read_tokenizer
from regard.pretrained.hub import TOKENIZER_FILE, FileMissingError, ModelFiles
from regard.pretrained.marian_tokenizer import TARGET_VOCAB_FILE, MarianTokenizer
from regard.transformer import Config


def find_tokenizer(
    files: ModelFiles, config: Config, *, is_marian: bool
) -> tuple[Tokenizer | MarianTokenizer | None, str]:
    """The tokenizer of a checkpoint, or the reason why there is none.

    Args:
        files: the checkpoint's files.
        config: of the model, which must have all tokens.
        is_marian: whether the model is one of Marian's, whose tokenizer is in files of another format.

    Raises:
        InputError: a file that is no tokenizer, or one with tokens that the model does not have.
    """
    tokenizer: Tokenizer | MarianTokenizer
    try:
        path = files.require(TOKENIZER_FILE)
        tokenizer = read_tokenizer(path)
    except FileMissingError as error:
        if not is_marian:
            return None, str(error)
        try:
            path = files.require("vocab.json")
            if not config.shared_embedding and (second := files.find(TARGET_VOCAB_FILE)) is not None:
                return None, f"{second} is a second vocabulary, and regard reads texts with one for both languages"
            tokenizer = MarianTokenizer(files)
        except FileMissingError as marian_error:
            return None, f"{error}; {marian_error}"
    check_vocabulary(tokenizer, config, path)
    return tokenizer, ""


def check_vocabulary(tokenizer: Tokenizer | MarianTokenizer, config: Config, path: Path) -> None:
    """Refuse a tokenizer with tokens that the model does not have.

    Raises:
        InputError: it has one; the message names `path`.
    """
    largest_id = max(tokenizer.get_vocab().values(), default=0)
    vocab_size = max(config.vocab_size, (config.decoder or config).vocab_size)
    if largest_id >= vocab_size:
        raise InputError(f"{path} has tokens up to id {largest_id}, the model has {vocab_size} of them")
