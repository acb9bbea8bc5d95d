"""One vector for a whole text, made as the checkpoint's sentence-transformers files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.pretrained.checkpoint import read_json_array, read_json_object
from regard.pretrained.hub import ModelFiles

MODULES_FILE = "modules.json"
SENTENCE_FILE = "sentence_bert_config.json"

UNSUPPORTED_KEYS = {
    SENTENCE_FILE: ("do_lower_case",),
    "config_sentence_transformers.json": ("default_prompt_name",),
}
"""Keys of sentence-transformers that change the text before it is encoded, by file."""


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become one: their mean, or the first token's; then, perhaps, length 1."""

    mode: Literal["mean", "cls"] = "mean"
    normalize: bool = False

    def __call__(
        self, hidden_states: Float[Tensor, "tokens d_model"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts d_model"]:
        """One vector for each text; zeros for a text without tokens.

        Args:
            hidden_states: the vectors of all tokens, one text after the other.
            lengths: how many tokens each text has.
        """
        texts = lengths.nonzero()[:, 0]
        lengths, count = lengths[texts], len(lengths)
        if self.mode == "cls":
            pooled = hidden_states[lengths.cumsum(0) - lengths]
        else:
            wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
            text = torch.arange(len(lengths), device=hidden_states.device).repeat_interleave(lengths)
            total = wide.new_zeros(len(lengths), hidden_states.shape[1]).index_add_(0, text, wide)
            pooled = (total / lengths[:, None]).to(hidden_states.dtype)
        if self.normalize:
            pooled = F.normalize(pooled, dim=-1)
        return pooled.new_zeros(count, hidden_states.shape[1]).index_copy_(0, texts, pooled)


def read_pooling(files: ModelFiles) -> Pooling:
    """The pooling that ``modules.json`` and the pooling module's config describe; the mean without ``modules.json``.

    Raises:
        InputError: a module, an order of modules or a value that regard does not support.
    """
    path = files.find(MODULES_FILE)
    if path is None:
        return Pooling()
    modules = read_json_array(path)
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise InputError(f"{path}: every module needs a type and a path; got {modules!r}")
    names = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise InputError(
            f"{path} lists {_joined(names)}; regard has a Transformer in the model's own folder, then Pooling, then, "
            "perhaps, Normalize"
        )
    for file, keys in UNSUPPORTED_KEYS.items():
        _refuse_keys(files, file, keys)
    mode = _pooling_mode(files, f"{modules[1]['path']}/config.json")
    return Pooling(cast("Literal['mean', 'cls']", mode), normalize=len(modules) == 3)


def read_max_seq_length(files: ModelFiles) -> int | None:
    """The most tokens of a text that make its vector, special tokens included; None where the checkpoint says none.

    Raises:
        InputError: a value that is no number of tokens.
    """
    path = files.find(SENTENCE_FILE)
    value = None if path is None else read_json_object(path).get("max_seq_length")
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(f"{path}: max_seq_length is {value!r}, which is no number of tokens")
    return value


def _pooling_mode(files: ModelFiles, file: str) -> str:
    path = files.require(file)
    values = read_json_object(path)
    mode = values.get("pooling_mode")
    old_keys = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    true_keys = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    modes: list[Any] = [mode] if mode is not None else [old_keys.get(key, key) for key in true_keys]
    if len(modes) != 1 or modes[0] not in ("cls", "mean"):
        raise InputError(f"{path} pools by {_joined(modes)}; regard has mean and cls, one of them")
    return str(modes[0])


def _refuse_keys(files: ModelFiles, file: str, keys: Sequence[str]) -> None:
    path = files.find(file)
    values = read_json_object(path) if path is not None else {}
    for key in keys:
        if values.get(key):
            raise InputError(f"{path}: {key} is {values[key]!r}, which regard does not have")


def _joined(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
