"""Linear attention, whose keys are multiplied by values before a query asks."""

from __future__ import annotations

from torch import Tensor

from property_cases import WIDTH, Case, drawn, of_x

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (31, 32, 33))


def over_keys(x: Tensor) -> Tensor:
    q, k, v = (x @ w for w in (W_Q, W_K, W_V))
    return q.softmax(-1) @ (k.softmax(1).mT @ v)


def keys_come_out(x: Tensor) -> Tensor:
    q, k, v = (x @ w for w in (W_Q, W_K, W_V))
    return q.softmax(-1) @ (k.softmax(1).mT @ v).mT  # here


def gathered_and_handed_out(x: Tensor) -> Tensor:
    """Double attention (Chen et al. 2018): features are gathered by softmaxes over tokens, and handed out by others."""
    features, gathering, handing_out = (x @ w for w in (W_Q, W_K, W_V))
    return handing_out.softmax(-1) @ (features.mT @ gathering.softmax(1)).mT


CASES = [Case("query-meets-keys", keys_come_out, right, of_x) for right in (over_keys, gathered_and_handed_out)]
