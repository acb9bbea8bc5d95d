"""The special token ids, from config.json and generation_config.json."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.pretrained.config_json import ConfigJSON
from regard.transformer import SpecialTokens

FIELDS = {
    "decoder_start_token_id": "decoder_start",
    "eos_token_id": "eos",
    "pad_token_id": "pad",
    "forced_bos_token_id": "forced_bos",
    "forced_eos_token_id": "forced_eos",
}
"""Fields of `SpecialTokens` by their keys in the files."""

UNUSED = ("bos_token_id",)
"""Keys that must hold an id as well, though the tokenizer, not the model, writes this token."""


def read_special_tokens(
    config_json: ConfigJSON, generation: Mapping[str, Any], generation_path: Path | None, vocab_size: int
) -> SpecialTokens:
    """The special tokens; ``generation_config.json`` goes before ``config.json``.

    Nothing else is read of ``generation_config.json``: beams, temperatures, suppressed tokens and the like are the
    caller's strategy, and no part of the model. Its ids beyond the vocabulary, which no model can write, are left out
    with a warning: some checkpoints were given another vocabulary and kept the old file.

    Args:
        config_json: of config.json, with the family's defaults.
        generation: the values of generation_config.json; empty where there is no such file.
        generation_path: the path of generation_config.json.
        vocab_size: every id is below it.

    Raises:
        InputError: a value is no id; in config.json, no token of the model.
    """
    fields: dict[str, Any] = {}
    for key, name in [*FIELDS.items(), *((key, "") for key in UNUSED)]:
        in_generation = generation.get(key) is not None
        value = generation[key] if in_generation else config_json.get(key)
        path = generation_path if in_generation else config_json.path
        # Some files write -1 for "none".
        ids = value if isinstance(value, list) else [] if value is None or value == -1 else [value]
        if in_generation and (beyond := [token for token in ids if type(token) is int and token >= vocab_size]):
            warnings.warn(
                f"{path}: {key} is {value!r}, and the model's tokens are 0 to {vocab_size - 1}; "
                f"left out: {', '.join(map(str, beyond))}",
                stacklevel=4,
            )
            ids = [token for token in ids if token not in beyond]
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise InputError(f"{path}: {key} is {value!r}; the model's tokens are 0 to {vocab_size - 1}")
        if not name:
            continue
        if name != "eos" and len(ids) > 1:
            raise InputError(f"{path}: {key} is {value!r}; regard supports one token there")
        fields[name] = tuple(ids) if name == "eos" else next(iter(ids), None)
    return SpecialTokens(**fields)
