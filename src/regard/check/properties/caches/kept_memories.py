"""Keys and values of another sequence that a call keeps: the same call reads from them what it computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_forms import CacheNames
from regard.check.target.errors import Failed

__all__ = ["kept_memory_findings"]

SAME = 1e-8
"""Of the largest number of an output."""


def kept_memory_findings(invocation: Invocation, names: CacheNames) -> Iterator[Finding]:
    """A call that keeps tensors in a dictionary, and gives another output where it only reads them.

    As where keys are kept under the name of the values. A cache that the second call changes, as one that grows, or
    that counts its tokens, is none of these: what it reads then is more than the first call did.

    Args:
        invocation: a call of several sequences, which hands no cache over.
        names: of its caches.
    """
    for name in names.arguments:
        if invocation.arguments.get(name) is not None:
            continue
        kept: dict[Any, Any] = {}
        given = {**invocation.arguments, name: kept}
        try:
            plain = invocation.outputs(invocation.run())
            first = invocation.outputs(invocation.run(given, shared=(name,)))
            before = {key: each.clone() if isinstance(each, Tensor) else each for key, each in kept.items()}
            second = invocation.outputs(invocation.run(given, shared=(name,)))
        except (Failed, RuntimeError, IndexError):
            continue
        are_read = bool(before) and all(isinstance(each, Tensor) for each in before.values())
        if not are_read or not plain or not first or not second or not _are_same(before, kept):
            continue
        one, two = first[0].detach(), second[0].detach()
        if one.shape != two.shape or not torch.equal(plain[0].detach(), one):
            continue  # in steps it computes something else
        if not bool(one.isfinite().all() & two.isfinite().all()):
            continue
        gap = float((one - two).abs().max())
        if gap > SAME * max(1.0, float(one.abs().max())):
            message = (
                f"a call that keeps {' and '.join(map(str, before))} in {name}, and the same call that reads them, "
                f"differ by up to {gap:.2g}: they are read in other places than they were written to"
            )
            yield Finding("violation", "cache-places", "k", message)
            return


def _are_same(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    return before.keys() == after.keys() and all(
        isinstance(after[key], Tensor) and torch.equal(each, after[key]) for key, each in before.items()
    )
