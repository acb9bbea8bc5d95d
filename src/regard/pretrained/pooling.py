"""One vector for a whole text, as a sentence-transformers model says it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.pretrained.checkpoint import read_array, read_object
from regard.pretrained.locate import MODULES

__all__ = ["Pooling", "read_pooling"]


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become one: their mean, or the first one's; then, perhaps, length 1."""

    kind: Literal["mean", "cls"] = "mean"
    normalize: bool = False

    def __call__(
        self, states: Float[Tensor, "texts tokens d_model"], lengths: Int[Tensor, " texts"]
    ) -> Float[Tensor, "texts d_model"]:
        """One vector per text; only its first ``lengths`` tokens count."""
        if self.kind == "cls":
            pooled = states[:, 0]
        else:
            real = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
            pooled = (states * real[:, :, None]).sum(1) / lengths[:, None]
        return F.normalize(pooled, dim=-1) if self.normalize else pooled


def read_pooling(folder: Path) -> Pooling:
    """What ``modules.json`` and the pooling's own config say; the mean where there is no such file.

    Raises:
        InputError: a module or a kind of pooling that regard does not have.
    """
    if not (folder / MODULES).is_file():
        return Pooling()
    kind, normalize = "mean", False
    for module in read_array(folder / MODULES):
        if not isinstance(module, dict) or not {"type", "path"} <= module.keys():
            raise InputError(f"{folder / MODULES}: every module needs a type and a path; got {module!r}")
        name = str(module["type"]).rsplit(".", 1)[-1]
        if name == "Pooling":
            kind = _kind(folder / str(module["path"]) / "config.json")
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise InputError(f"{folder / MODULES}: regard has no {name!r}; it has Transformer, Pooling and Normalize")
    return Pooling(cast("Literal['mean', 'cls']", kind), normalize)


def _kind(path: Path) -> str:
    settings = read_object(path)
    named = settings.get("pooling_mode")
    older = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    on = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    kinds = [named] if named is not None else [older.get(name, name) for name in on]
    if len(kinds) != 1 or kinds[0] not in ("cls", "mean"):
        raise InputError(f"{path}: pooling by {kinds}; regard has ['mean'] and ['cls']")
    return str(kinds[0])
