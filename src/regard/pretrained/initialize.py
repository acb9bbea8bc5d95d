"""A model that was never trained, in the format of a family: where training begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from regard.errors import InputError
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import MODELS, config_of
from regard.pretrained.hub import CONFIG, TOKENIZER, WEIGHTS
from regard.pretrained.load import Pretrained, load
from regard.pretrained.renames import back, every
from regard.pretrained.save import write_json

__all__ = ["fresh"]

# What stands on top of a family's model bears no prefix in its files.
ON_TOP = ("lm_head.", "cls.", "final_logits_bias")
# Parts that a family's files may lack; a model that is trained here has them.
PARTS = {
    "bert": "cls.predictions.transform.dense.weight",
    "roberta": "lm_head.dense.weight",
    "marian": "final_logits_bias",
    "bart": "final_logits_bias",
}


def fresh(
    folder: Path,
    settings: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    seed: int,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> Pretrained:
    """Write a model with random weights, and load it.

    Args:
        folder: where to; made if it is not there. config.json, tokenizer.json and model.safetensors are put there.
        settings: of config.json, in the words of the family that ``model_type`` names.
        tokenizer: text to ids.
        seed: the same seed, the same weights.
        beside: other JSON files of the format, such as preprocessor_config.json, by their names.

    Raises:
        InputError: settings that make no model, or a folder that cannot be written.
    """
    family = FAMILIES[settings["model_type"]]
    part = PARTS.get(settings["model_type"])
    config = config_of(family, settings, folder / CONFIG)
    config = family.settle(config, {} if part is None else {part: torch.empty(0)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[family.kind](config)
    layers = {"n": config.num_layers, "m": (config.decoder or config).num_layers}
    tensors = back(model, list(every(family.renames(config), layers)))
    named = {name if name.startswith(ON_TOP) else family.prefix + name: tensor for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in {CONFIG: settings, **(beside or {})}.items():
            write_json(folder / name, value)
        tokenizer.save(str(folder / TOKENIZER))
        save_file(named, folder / WEIGHTS, metadata={"format": "pt"})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
    return load(folder)
