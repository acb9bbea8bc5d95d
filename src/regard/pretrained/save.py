"""Writing a model back in the format that it was read in, so that what was there survives until all is written."""

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
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.checkpoint import read_array
from regard.pretrained.hub import CONFIG, INDEX, TOKENIZER, WEIGHTS, Source
from regard.pretrained.image_processor import PREPROCESSOR
from regard.pretrained.pooling import MODULES

__all__ = ["GENERATION", "write", "write_json"]

GENERATION = "generation_config.json"

DRAFT = ".regard-draft"
"""The folder inside the folder where all is written first. What a killed process left there goes with the next save."""

BESIDE = (
    GENERATION,
    TOKENIZER,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "source.spm", "target.spm"),
    PREPROCESSOR,
    *(MODULES, "sentence_bert_config.json", "config_sentence_transformers.json"),
)
"""What a model may have beside its config and its weights, for whoever reads it: copied as it is."""


def write(
    folder: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    shards: Mapping[str, str],
    source: Source,
    dtype: torch.dtype,
) -> None:
    """Write a checkpoint. All of it goes to files of other names first; then each takes its place.

    Args:
        folder: where to; made if it is not there.
        settings: of config.json.
        tensors: by their names in the checkpoint.
        shards: for each name its file, where there are several.
        source: where the model came from, for the files beside.
        dtype: of the weights; what config.json says of it is made true.

    Raises:
        InputError: it cannot be written, or the folder holds files of another model. What was there is then as before.
    """
    beside = {file: path for file in BESIDE if (path := source.may_have(file)) is not None}
    if MODULES in beside:
        for module in read_array(beside[MODULES]):
            file = f"{module.get('path')}/{CONFIG}"
            if module.get("path") and (path := source.may_have(file)) is not None:
                beside[file] = path
    strange = [file for file in BESIDE if file not in beside and (folder / file).exists()]
    if strange:
        raise InputError(
            f"{folder} holds {', '.join(strange)}, which this model has not: it would read wrong there. Save it to "
            "another folder"
        )
    draft = folder / DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, path in beside.items():
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / file)
        write_json(draft / CONFIG, _with_dtype(settings, dtype))
        _write_weights(draft, tensors, shards)
        _move(draft, folder)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be written: {error}. The files that were there are as before") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _with_dtype(settings: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    told = {name: str(dtype).removeprefix("torch.") for name in ("dtype", "torch_dtype") if settings.get(name)}
    return {**settings, **told}


def _write_weights(draft: Path, tensors: Mapping[str, Tensor], shards: Mapping[str, str]) -> None:
    files = sorted(set(shards.values())) or [WEIGHTS]
    for file in files:
        held = {name: tensor for name, tensor in tensors.items() if shards.get(name, WEIGHTS) == file}
        save_file(held, draft / file, metadata={"format": "pt"})
    if shards:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_json(draft / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(shards)})


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _move(draft: Path, folder: Path) -> None:
    """Put every file in its place, and take away weights that were there under other names."""
    files = sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())
    for file in files:
        with (draft / file).open("rb") as written:
            os.fsync(written.fileno())
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(draft / file, folder / file)
    for stale in (folder / WEIGHTS, folder / INDEX, *folder.glob("model-*-of-*.safetensors")):
        if stale.name not in files:
            stale.unlink(missing_ok=True)
