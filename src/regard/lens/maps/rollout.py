"""Attention rollout through the layers of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard._shapes import Float
from regard.lens.maps.map import AttentionMap


@torch.no_grad()
def rollout(maps: Sequence[AttentionMap], token: int, batch: int = 0) -> Float[torch.Tensor, " tokens"]:
    """The share of each input token in a token's vector after the last layer, by attention rollout.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers" (arXiv:2005.00928), section 3: each layer is
    A = 0.5 * (mean of the heads' weights) + 0.5 * I, for the residual connection, and the answer is a row of the
    product of all layers. The row is multiplied by each layer, from the last to the first, so that two maps are never
    multiplied: row @ weights is what the keys receive when the row's entries are the factors of the queries.

    Args:
        maps: self-attentions of one stack, the first layer first.
        token: the position of the token.
        batch: the batch row.

    Returns:
        ``(tokens,)``, the share of each token at the input. They sum to 1, or to less if rows of weights do (sinks,
        queries that may attend to nothing).
    """
    batch_size, _, queries, _ = maps[0].shape
    row = torch.zeros(batch_size, queries, dtype=torch.float64, device=maps[0].device)
    row[batch, token] = 1.0
    for layer in reversed(maps):
        row = 0.5 * row + 0.5 * layer.received(rows=row).double().mean(dim=1)
    return row[batch].to(torch.float64 if maps[0].dtype == torch.float64 else torch.float32)
