"""A block-sparse mask: a block of queries sees a block of keys whole, or nothing of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.target import Invocation
from regard.check.target.told_numbers import numbers_told

__all__ = ["whole_block_findings"]

BLOCK = re.compile(r"_*(?:sparse_|sparsity_|attn_|attention_)?block(?:_?size|_?len(?:gth)?)?", re.I)
"""Names of how many tokens a block has."""
BLOCK_SPARSE = re.compile(r"block[-_ ]?sparse", re.I)
BY_TOKENS = re.compile(r"window|sliding|dilat|token[- ]level|unstructured|global|\bcls\b|\bsinks?\b|register", re.I)
"""Words for what hides single tokens, beside the blocks."""


def whole_block_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Blocks of keys that a block of queries sees in part, in what says that it is block-sparse and how large they are.

    A block of keys that are the queries' own may be causal.

    Args:
        invocation: a call without a mask.
        evidence: of its attention.
    """
    text = name_and_documentation(invocation.target)
    told = {value for name, value in numbers_told(invocation) if BLOCK.fullmatch(name)}
    if len(told) != 1 or not BLOCK_SPARSE.search(text) or BY_TOKENS.search(text):
        return
    (size,) = told
    allowed = allowed_of(evidence).flatten(0, 1)
    tokens = allowed.shape[-1]
    if allowed.shape[-2] != tokens or size < 2 or tokens <= size or tokens % size:
        return
    found = _parted(allowed, size)
    if found is not None:
        query, key = found
        of_queries, of_keys = (f"{size * each} to {size * each + size - 1}" for each in (query, key))
        block = allowed[:, query * size :, key * size :][:, :size, :size]
        seen = int(next(each for each in block if bool(each.any()) and not bool(each.all())).sum())
        message = (
            f"it is block-sparse, in blocks of {size}, and queries {of_queries} see keys {of_keys} in part: "
            f"{seen} of {size * size} scores"
        )
        yield Finding("violation", "blocks-whole", "mask", message, evidence.base.instance.scores_location)


def _parted(allowed: Tensor, size: int) -> tuple[int, int] | None:
    """The first block of queries and block of keys, not its own, of which some scores are hidden; None without."""
    count = allowed.shape[-1] // size
    blocks = allowed.reshape(-1, count, size, count, size).movedim(-3, -2)
    is_parted = (blocks.flatten(-2).any(-1) & ~blocks.flatten(-2).all(-1)).any(0)
    is_parted &= ~torch.eye(len(is_parted), dtype=torch.bool)
    return tuple(is_parted.nonzero()[0].tolist()) if bool(is_parted.any()) else None
