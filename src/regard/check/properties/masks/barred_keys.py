"""Causal masks that bar some keys from every query at even distances, as those of one kind of token."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.trace.operation import Trace

__all__ = ["BARRED", "bars_keys_evenly", "whole_mask"]

BARRED = "causal, and keys at even distances are seen by no query"
MIN_BARRED = 2
"""Of one key that no query sees, a mistake at the end of a sequence is as likely a cause."""


def bars_keys_evenly(allowed: Tensor) -> bool:
    """Whether a (queries, keys) mask is causal, but that no query sees each second, third or later key.

    Janner et al. 2021, "Offline Reinforcement Learning as One Big Sequence Modeling Problem": of states, actions,
    rewards and values in turn, no token sees a value that was estimated before. A mask that is shifted, turned or
    multiplied by mistake leaves a key to some query.
    """
    queries, keys = allowed.shape
    barred = (~allowed.any(0)).nonzero().flatten()
    if queries != keys or len(barred) < MIN_BARRED or not bool(allowed[:, 0].any()):
        return False
    distances = barred.diff()
    causal = torch.ones_like(allowed).tril().index_fill(1, barred, False)
    return int(distances.min()) == int(distances.max()) > 1 and torch.equal(allowed, causal)


def whole_mask(trace: Trace, allowed: Tensor) -> Tensor:
    """The mask for more tokens that a run cuts, where its first rows and columns are what was seen; else what was seen.

    Few tokens may show one key alone that the mask bars.

    Args:
        trace: the run.
        allowed: (queries, keys), as seen by the weights.
    """
    queries, keys = allowed.shape
    for operation in trace:
        for record in operation.inputs if operation.is_view else ():
            size = record.shape[-1] if len(record.shape) > 1 else 0
            if queries != keys or size <= keys or record.data.numel() != size * size or record.shape[-2] != size:
                continue
            numbers = record.data.reshape(size, size)
            for open_keys in (numbers != 0, numbers == 0):
                if torch.equal(open_keys[:queries, :keys], allowed):
                    return open_keys
    return allowed
