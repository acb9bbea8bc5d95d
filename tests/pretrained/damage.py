"""Checkpoints that are changed or damaged after transformers wrote them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard import InputError

WEIGHTS = "model.safetensors"


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


def weights_of(folder, file=WEIGHTS):
    # Copies: safetensors maps the file, and tests write over it.
    return {name: tensor.clone() for name, tensor in load_file(folder / file).items()}


def change_weights(folder, change, file=WEIGHTS):
    """Write weights again with those that a function makes of them; ... removes a weight."""
    tensors = weights_of(folder, file)
    tensors |= change(tensors)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not ...}, folder / file)


def refused(folder, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        regard.load(folder)


def same_weights(one, other):
    """Whether two models, or the files that were read of two, hold the same numbers by the same names."""
    one, other = ({**(each if isinstance(each, dict) else each.model.state_dict())} for each in (one, other))
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
