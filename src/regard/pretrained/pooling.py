"""One vector for a whole text, as a sentence-transformers model says it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.pretrained.checkpoint import read_array, read_object
from regard.pretrained.hub import Source

__all__ = ["MODULES", "Pooling", "read_pooling"]

MODULES = "modules.json"

CHANGES_THE_TEXT = {
    "sentence_bert_config.json": ("do_lower_case",),
    "config_sentence_transformers.json": ("default_prompt_name",),
}
"""Settings of sentence-transformers that change what is encoded, by file; regard has none of them."""


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become one: their mean, or the first one's; then, perhaps, length 1."""

    kind: Literal["mean", "cls"] = "mean"
    normalize: bool = False

    def __call__(
        self, hidden_states: Float[Tensor, "tokens d_model"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts d_model"]:
        """One vector per text, zeros for one without tokens.

        Args:
            hidden_states: the vectors of all tokens, one text after the other.
            lengths: how many tokens each text has.
        """
        texts = lengths.nonzero()[:, 0]
        lengths, count = lengths[texts], len(lengths)
        if self.kind == "cls":
            pooled = hidden_states[lengths.cumsum(0) - lengths]
        else:
            wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
            text = torch.arange(len(lengths), device=hidden_states.device).repeat_interleave(lengths)
            total = wide.new_zeros(len(lengths), hidden_states.shape[1]).index_add_(0, text, wide)
            pooled = (total / lengths[:, None]).to(hidden_states.dtype)
        if self.normalize:
            pooled = F.normalize(pooled, dim=-1)
        return pooled.new_zeros(count, hidden_states.shape[1]).index_copy_(0, texts, pooled)


def read_pooling(source: Source) -> Pooling:
    """What ``modules.json`` and the pooling's own config say; the mean where there is no such file.

    Raises:
        InputError: a module, an order of modules or a setting that regard does not have.
    """
    path = source.may_have(MODULES)
    if path is None:
        return Pooling()
    modules = read_array(path)
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise InputError(f"{path}: every module needs a type and a path; got {modules!r}")
    names = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise InputError(
            f"{path} lists {_listed(names)}; regard has a Transformer in the model's own folder, then Pooling, then, "
            "perhaps, Normalize"
        )
    for file, settings in CHANGES_THE_TEXT.items():
        _refuse_set(source, file, settings)
    kind = _kind(source, f"{modules[1]['path']}/config.json")
    return Pooling(cast("Literal['mean', 'cls']", kind), normalize=len(modules) == 3)


def _kind(source: Source, file: str) -> str:
    path = source.need(file)
    settings = read_object(path)
    named = settings.get("pooling_mode")
    older = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    on = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    kinds: list[Any] = [named] if named is not None else [older.get(name, name) for name in on]
    if len(kinds) != 1 or kinds[0] not in ("cls", "mean"):
        raise InputError(f"{path} pools by {_listed(kinds)}; regard has mean and cls, one of them")
    return str(kinds[0])


def _refuse_set(source: Source, file: str, settings: Sequence[str]) -> None:
    path = source.may_have(file)
    found = read_object(path) if path is not None else {}
    for name in settings:
        if found.get(name):
            raise InputError(f"{path}: {name} is {found[name]!r}, which regard does not have")


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
