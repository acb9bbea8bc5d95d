"""A GGUF file as a checkpoint that `regard.load` reads like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from regard.errors import InputError, install_hint
from regard.pretrained.gguf.architectures import config_json, stored_tensors
from regard.pretrained.gguf.header import Header, read_header, shown
from regard.pretrained.gguf.tensors import StoredTensor
from regard.pretrained.gguf.tokenizer import PREFIX, read_gguf_tokenizer

SPECIAL_TOKENS = {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}
"""Keys of config.json by those of the tokenizer in a GGUF file."""
END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The end of a text, of a turn, of a message: a model writes any of them when it is done."""
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
"""The end of a turn in the chats of Qwen and SmolLM, Llama 3 and Gemma. Most files do not name it; llama.cpp too knows
it by its text."""
CHAT_TEMPLATE = "tokenizer.chat_template"
UNQUANTIZED = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, eq=False)
class GGUFCheckpoint:
    """What a GGUF file holds, in the form of a checkpoint of transformers."""

    header: Header
    config_json: Mapping[str, Any]
    tokenizer: Tokenizer | None
    tokenizer_error: str
    """Why there is no tokenizer; empty if there is one."""
    chat_template: str | None

    @property
    def quantization(self) -> str:
        """The types in which the weights are stored, the commonest first, such as ``Q4_1, Q8_0``; empty for none."""
        counts = Counter[str]()
        for tensor in self.header.tensors.values():
            counts[tensor.type.name] += tensor.num_bytes
        return ", ".join(name for name, _ in counts.most_common() if name not in UNQUANTIZED)

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor under its name in a checkpoint of transformers, dequantised when it is copied.

        Raises:
            InputError: a tensor that regard does not know.
        """
        return stored_tensors(self.header, self.config_json)


def read_gguf(path: Path) -> GGUFCheckpoint:
    """Read a GGUF file, but for the values of its tensors.

    Raises:
        InputError: the package gguf is not installed; no GGUF file, or one that is damaged; an architecture or a
            setting that regard does not know. The message names it.
    """
    try:
        import_module("gguf")
    except ImportError as error:
        raise InputError(
            f"{path} is a GGUF file, and gguf, which reads it, is not installed: {install_hint('gguf')}"
        ) from error
    header = read_header(path)
    config = config_json(header)
    tokenizer, tokenizer_error = read_gguf_tokenizer(header)
    template = header.metadata.get(CHAT_TEMPLATE)
    if template is not None and not isinstance(template, str):
        raise InputError(f"{path}: {CHAT_TEMPLATE} is {shown(template)}; it must be a text")
    config |= _special_tokens(header, tokenizer if template else None)
    return GGUFCheckpoint(header, config, tokenizer, tokenizer_error, template)


def _special_tokens(header: Header, chat_tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The keys of config.json for special tokens.

    Args:
        header: of the file.
        chat_tokenizer: the tokenizer of a model that chats; None for any other model.
    """
    ids: dict[str, int] = {}
    for name in (*SPECIAL_TOKENS, *END_TOKENS):
        value = header.metadata.get(f"{PREFIX}{name}")
        if value is not None and type(value) is not int:
            raise InputError(f"{header.path}: {PREFIX}{name} is {shown(value)}; it must be a whole number")
        ids |= {} if value in (None, -1) else {name: value}  # some files write -1 for none
    ends = [ids[name] for name in END_TOKENS if name in ids]
    if chat_tokenizer is not None and "eot_token_id" not in ids:
        special = {token.content: id_ for id_, token in chat_tokenizer.get_added_tokens_decoder().items()}
        ends += [special[token] for token in END_OF_TURN if token in special]
    ends = list(dict.fromkeys(ends))
    config: dict[str, Any] = {key: ids[name] for name, key in SPECIAL_TOKENS.items() if name in ids}
    return config | ({"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {})
