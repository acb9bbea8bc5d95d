"""A model with random weights in the format of a family, to train from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from regard.errors import InputError
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import MODEL_CLASSES, build_config
from regard.pretrained.hub import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from regard.pretrained.load import Pretrained, load
from regard.pretrained.renames import expand_layers, export_weights
from regard.pretrained.save import write_config

HEAD_PREFIXES = ("lm_head.", "cls.", "final_logits_bias")
"""Prefixes of the weights of heads, whose names in a file lack the family's prefix."""

OPTIONAL_WEIGHTS = {
    "bert": "cls.predictions.transform.dense.weight",
    "roberta": "lm_head.dense.weight",
    "marian": "final_logits_bias",
    "bart": "final_logits_bias",
}
"""A weight of the head that some checkpoints of a family lack; a model that is trained here has the head."""


def initialize_model(
    folder: Path,
    values: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    seed: int,
    side_files: Mapping[str, Mapping[str, Any]] | None = None,
) -> Pretrained:
    """Write a model with random weights, and load it.

    Args:
        folder: gets config.json, tokenizer.json and model.safetensors; made if it is not there.
        values: of config.json, with the keys of the family that ``model_type`` names.
        tokenizer: text to ids.
        seed: the same seed gives the same weights.
        side_files: other JSON files of the format, such as preprocessor_config.json, by their names.

    Raises:
        InputError: the values make no model, or the folder cannot be written.
    """
    family = FAMILIES[values["model_type"]]
    head_weight = OPTIONAL_WEIGHTS.get(values["model_type"])
    config = build_config(family, values, folder / CONFIG_FILE)
    config = family.infer_config(config, {} if head_weight is None else {head_weight: torch.empty(0)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODEL_CLASSES[family.kind](config)
    num_layers = {"n": config.num_layers, "m": (config.decoder or config).num_layers}
    tensors = export_weights(model, list(expand_layers(family.renames(config), num_layers)))
    tensors = {name if name.startswith(HEAD_PREFIXES) else family.prefix + name: t for name, t in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {CONFIG_FILE: values, **(side_files or {})}.items():
            write_config(folder / name, content)
        tokenizer.save(str(folder / TOKENIZER_FILE))
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
    return load(folder)
