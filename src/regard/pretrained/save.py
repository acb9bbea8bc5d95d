"""Writes a model in the format in which it was read; old files stay until all new ones are written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from regard.errors import InputError
from regard.files import fsync
from regard.pretrained.checkpoint import read_json_array
from regard.pretrained.hub import CONFIG_FILE, INDEX_FILE, TOKENIZER_FILE, WEIGHTS_FILE, ModelFiles
from regard.pretrained.image_processor import PREPROCESSOR_FILE, PROCESSOR_FILE
from regard.pretrained.marian_tokenizer import TARGET_VOCAB_FILE
from regard.pretrained.pooling import MODULES_FILE

GENERATION_CONFIG_FILE, TOKENIZER_CONFIG_FILE = "generation_config.json", "tokenizer_config.json"
SPECIAL_TOKENS_FILE, CHAT_TEMPLATE_FILE = "special_tokens_map.json", "chat_template.jinja"

DRAFT_FOLDER = ".regard-draft"
"""The subfolder that all files are first written to. The next save removes what a killed process left there."""

SIDE_FILES = (
    GENERATION_CONFIG_FILE,
    TOKENIZER_FILE,
    *(TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, "added_tokens.json", CHAT_TEMPLATE_FILE),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model"),
    *("source.spm", "target.spm", TARGET_VOCAB_FILE),
    *(PREPROCESSOR_FILE, PROCESSOR_FILE),
    *(MODULES_FILE, "sentence_bert_config.json", "config_sentence_transformers.json"),
)
"""Files of a checkpoint that are copied unchanged."""


def save_checkpoint(
    folder: Path,
    config_json: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    shards: Mapping[str, str],
    files: ModelFiles | None,
    *,
    dtype: torch.dtype,
    texts: Mapping[str, str],
) -> None:
    """Write a checkpoint. All files are first written under other names; then each is moved to its place.

    Args:
        folder: where to write; made if it is not there.
        config_json: the values of config.json.
        tensors: by their names in the checkpoint.
        shards: for each tensor the name of its file; empty for one file.
        files: the files that the model was read from; the side files are copied from there. None if there are none.
        dtype: of the weights; config.json gets it.
        texts: further side files, by their names.

    Raises:
        InputError: the folder cannot be written, or holds files of another model. Its files are then unchanged.
    """
    side_files = {} if files is None else {file: path for file in SIDE_FILES if (path := files.find(file)) is not None}
    if files is not None and MODULES_FILE in side_files:
        for module in read_json_array(side_files[MODULES_FILE]):
            file = f"{module.get('path')}/{CONFIG_FILE}"
            if module.get("path") and (path := files.find(file)) is not None:
                side_files[file] = path
    foreign = [file for file in SIDE_FILES if file not in {*side_files, *texts} and (folder / file).exists()]
    if foreign:
        raise InputError(
            f"{folder} holds {', '.join(foreign)}, which this model does not have, so the model would be read wrongly "
            "from there. Save it to another folder"
        )
    draft = folder / DRAFT_FOLDER
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, path in side_files.items():
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / file)
        for file, text in texts.items():
            (draft / file).write_text(text, encoding="utf-8")
        write_config(draft / CONFIG_FILE, _with_dtype(config_json, dtype))
        _write_weights(draft, tensors, shards)
        _move(draft, folder)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be written: {error}. The files that were there are as before") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def tokenizer_files(
    tokenizer: Tokenizer | None, config_json: Mapping[str, Any], chat_template: str | None
) -> dict[str, str]:
    """The files by which other tools read a tokenizer that never was a file.

    Args:
        tokenizer: None gives no files.
        config_json: has the ids of the special tokens.
        chat_template: None for none.
    """
    if tokenizer is None:
        return {}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in ("bos_token", "eos_token", "pad_token"):
        ids = config_json.get(f"{name}_id")
        token = tokenizer.id_to_token(ids[0] if isinstance(ids, list) else ids) if ids is not None else None
        config |= {name: token} if token is not None else {}
    config |= {} if chat_template is None else {"chat_template": chat_template}
    return {TOKENIZER_FILE: tokenizer.to_str(pretty=True), TOKENIZER_CONFIG_FILE: json.dumps(config, indent=2)}


def _with_dtype(config_json: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    name = str(dtype).removeprefix("torch.")
    return {**config_json, **{key: name for key in ("dtype", "torch_dtype") if config_json.get(key)}}


def _write_weights(draft: Path, tensors: Mapping[str, Tensor], shards: Mapping[str, str]) -> None:
    for file in sorted(set(shards.values())) or [WEIGHTS_FILE]:
        shard = {name: tensor for name, tensor in tensors.items() if shards.get(name, WEIGHTS_FILE) == file}
        save_file(shard, draft / file, metadata={"format": "pt"})
    if shards:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_config(draft / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": dict(shards)})


def write_config(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _move(draft: Path, folder: Path) -> None:
    """Put every file in its place, and take away weights that were there under other names."""
    files = sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())
    fsync(draft)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(draft / file, folder / file)
    for stale in (folder / WEIGHTS_FILE, folder / INDEX_FILE, *folder.glob("model-*-of-*.safetensors")):
        if stale.name not in files:
            stale.unlink(missing_ok=True)
