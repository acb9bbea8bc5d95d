"""Modules that are named as attentions, and in which no attention was seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from torch import nn

IS_ATTENTION_NAME = re.compile("attention|attn", re.IGNORECASE)


def unseen_attentions(modules: Iterable[tuple[str, nn.Module]], seen: Set[str]) -> list[str]:
    """The innermost modules whose class is named as an attention, far from all that was seen.

    What was seen in a module, in a part of it or in one that it is a part of, was seen in it. So was what its parent
    computes, where that is an attention too: of an attention's projection and output only one computes it.

    Args:
        modules: the modules of the model, each with its path.
        seen: the paths of recorded or noted attentions.

    Returns:
        Each path with the name of its class.
    """
    named = {path: type(module).__name__ for path, module in modules if IS_ATTENTION_NAME.search(type(module).__name__)}
    unseen = []
    for path, name in named.items():
        parent = path.rpartition(".")[0]
        around = parent if parent in named else path
        is_innermost = not any(other.startswith(f"{path}.") for other in named)
        if path and is_innermost and not any(_is_within(p, around) or _is_within(path, p) for p in seen):
            unseen.append(f"{path} ({name})")
    return unseen


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or not outer
