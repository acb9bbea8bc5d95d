"""The token ids with a meaning of their own, from config.json and generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.pretrained.config_json import Settings
from regard.transformer import SpecialTokens

__all__ = ["special_of"]

NAMES = {
    "decoder_start_token_id": "decoder_start",
    "eos_token_id": "eos",
    "pad_token_id": "pad",
    "forced_bos_token_id": "forced_bos",
    "forced_eos_token_id": "forced_eos",
}


def special_of(
    settings: Settings, generation: Mapping[str, Any], generation_source: Path | None, vocab_size: int
) -> SpecialTokens:
    """The special tokens; where ``generation_config.json`` says one, that holds.

    Nothing else is read of ``generation_config.json``: beams, temperatures, suppressed tokens and the like are the
    strategy of whoever generates, and no part of the model.

    Args:
        settings: of config.json, with the family's defaults.
        generation: of generation_config.json; empty where there is none.
        generation_source: where that lies.
        vocab_size: ids are below it.

    Raises:
        InputError: an id that is none, or no token of the model.
    """
    found: dict[str, Any] = {}
    for name, ours in NAMES.items():
        told = generation.get(name) is not None
        value = generation[name] if told else settings.get(name)
        source = generation_source if told else settings.source
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if ids == [-1]:
            ids = []  # how some files write "none"
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise InputError(f"{source}: {name} is {value!r}; the model's tokens are 0 to {vocab_size - 1}")
        if ours != "eos" and len(ids) > 1:
            raise InputError(f"{source}: {name} is {value!r}; regard supports one token there")
        found[ours] = tuple(ids) if ours == "eos" else next(iter(ids), None)
    return SpecialTokens(**found)
