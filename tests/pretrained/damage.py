"""Checkpoints that are changed or damaged after transformers wrote them."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import save_file

import regard
from regard import InputError
from weights import weights_of


def read_json(folder, file="config.json"):
    return json.loads((folder / file).read_text())


def change_json(folder, file="config.json", **changes):
    """Change values of a JSON file, those of a part of it by `part__name`; ... removes a value."""
    settings = read_json(folder, file)
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        values = settings[part] if part else settings
        values[key] = value
        if value is ...:
            del values[key]
    (folder / file).write_text(json.dumps(settings))


def change_weights(folder, change, file="model.safetensors"):
    """Write weights again with those that a function makes of them; ... removes a weight."""
    tensors = weights_of(folder, file)
    tensors |= change(tensors)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not ...}, folder / file)


def refused(folder, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        regard.load(folder)
