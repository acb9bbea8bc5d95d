"""A GGUF file as a checkpoint that `regard.load` reads like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.gguf.architectures import checkpoint_tensors, config_json
from regard.pretrained.gguf.header import Header, read_header
from regard.pretrained.gguf.tokenizer import PREFIX, read_gguf_tokenizer

SPECIAL_TOKENS = {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}
"""Keys of config.json by those of the tokenizer in a GGUF file."""
END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The end of a text, of a turn, of a message: a model writes any of them when it is done."""
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

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor, dequantised, under its name in a checkpoint of transformers.

        Raises:
            InputError: a tensor of a type that `gguf` cannot dequantise.
        """
        return checkpoint_tensors(self.header, self.config_json, dtype)


def read_gguf(path: Path) -> GGUFCheckpoint:
    """Read a GGUF file, but for the values of its tensors.

    Raises:
        InputError: the package gguf is not installed; no GGUF file, or one that is damaged; an architecture or a
            setting that regard does not know. The message names it.
    """
    if find_spec("gguf") is None:
        raise InputError(
            f"{path} is a GGUF file, and gguf, which reads it, is not installed: pip install 'regard[gguf]'"
        )
    header = read_header(path)
    config = config_json(header)
    settings = {key.removeprefix(PREFIX): v for key, v in header.metadata.items() if key.startswith(PREFIX)}
    config |= {key: settings[name] for name, key in SPECIAL_TOKENS.items() if name in settings}
    ends = list(dict.fromkeys(settings[name] for name in END_TOKENS if name in settings))
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    tokenizer, error = read_gguf_tokenizer(header)
    template = header.metadata.get("tokenizer.chat_template")
    return GGUFCheckpoint(header, config, tokenizer, error, template if isinstance(template, str) else None)
