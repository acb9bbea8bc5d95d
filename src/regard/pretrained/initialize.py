"""A model with random weights in the format of a family, to train from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer

from regard.errors import InputError
from regard.files import error_reason
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import MODEL_CLASSES, ModelKind, build_config
from regard.pretrained.hub import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from regard.pretrained.load import Pretrained, load
from regard.pretrained.renames import expand_layers, export_weights
from regard.pretrained.save import GENERATION_CONFIG_FILE, TOKENIZER_CONFIG_FILE, write_config
from regard.pretrained.special_tokens import FIELDS

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
    special_tokens: Mapping[str, str],
    seed: int,
    side_files: Mapping[str, Mapping[str, Any]] | None = None,
) -> Pretrained:
    """Write a model with random weights, and load it.

    Args:
        folder: gets config.json, tokenizer.json and model.safetensors, and, so that transformers reads the folder too,
            tokenizer_config.json and generation_config.json; made if it is not there.
        values: of config.json, with the keys of the family that ``model_type`` names.
        tokenizer: text to ids.
        special_tokens: tokens of the tokenizer by their names in transformers, such as ``eos_token``.
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
    max_positions = (config.decoder or config).max_positions
    assert max_positions is not None, "every task gives its model a number of positions"
    files = {CONFIG_FILE: values, TOKENIZER_CONFIG_FILE: _tokenizer_config(family.kind, special_tokens, max_positions)}
    if family.kind != "encoder":
        ids = {f"{name}_id": tokenizer.token_to_id(token) for name, token in special_tokens.items()}
        files[GENERATION_CONFIG_FILE] = _generation_config(values, ids, max_positions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**files, **(side_files or {})}.items():
            write_config(folder / name, content)
        (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be written: {error_reason(error)}") from error
    return load(folder)


def _tokenizer_config(kind: ModelKind, special_tokens: Mapping[str, str], max_positions: int) -> dict[str, Any]:
    """What transformers needs to know about tokenizer.json.

    Without it `AutoTokenizer` takes the class of the model's family, which for BERT splits words by rules of its own.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",  # reads tokenizer.json as it is, in versions 4 and 5
        **special_tokens,
        "model_max_length": max_positions,
        "model_input_names": ["input_ids", "attention_mask"],
        # In a batch a decoder's new tokens follow its prompt directly.
        "padding_side": "left" if kind == "decoder" else "right",
        "clean_up_tokenization_spaces": False,
    }


def _generation_config(values: Mapping[str, Any], ids: Mapping[str, int | None], max_positions: int) -> dict[str, Any]:
    """What makes `generate` of transformers that of regard: special token ids, greedy, and as many tokens at the most.

    The limit is ``max_length``, all tokens of the decoder: ``max_new_tokens`` would override a caller's ``max_length``.
    """
    special = {key: values[key] for key in FIELDS if key in values}
    # The model never reads the last token, so this token needs no position.
    return {**special, **ids, "max_length": max_positions + 1, "do_sample": False}
