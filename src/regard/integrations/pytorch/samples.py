"""Random calls of a module, for a proof without example inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

BATCH, QUERIES, KEYS = 2, 7, 5
"""The sizes of the random inputs."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def sample_calls(module: nn.Module) -> list[Arguments]:
    """Arguments of some calls: masks of each kind, with weights and without, self- and cross-attention where they fit.

    Args:
        module: an ``nn.MultiheadAttention`` or an ``nn.TransformerEncoderLayer``.
    """
    generator = torch.Generator().manual_seed(0)
    parameter = next(module.parameters())
    attention = module if isinstance(module, nn.MultiheadAttention) else module.self_attn
    assert isinstance(attention, nn.MultiheadAttention)

    def tokens(count: int, width: int) -> Tensor:
        shape = (BATCH, count, width) if attention.batch_first else (count, BATCH, width)
        return torch.randn(shape, generator=generator).to(parameter)

    def place(t: Tensor) -> Tensor:
        return t.to(parameter.device)

    x = tokens(QUERIES, attention.embed_dim)
    causal = place(torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1))
    window = causal | place(torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril(-3))
    padded = place(torch.arange(QUERIES) >= torch.tensor([[QUERIES], [QUERIES - 2]]))
    if attention is not module:
        masked = {"src_mask": window, "src_key_padding_mask": padded}
        return [((x,), {}), ((x,), masked), ((x,), {"src_mask": causal, "is_causal": True})]
    key, value = tokens(KEYS, attention.kdim), tokens(KEYS, attention.vdim)
    numbers = place(torch.randn(BATCH * attention.num_heads, QUERIES, KEYS, generator=generator)).to(parameter)
    calls: list[Arguments] = [
        ((x, key, value), {"attn_mask": numbers, "average_attn_weights": False}),
        ((x, key, value), {"need_weights": False, "key_padding_mask": padded[:, -KEYS:]}),
    ]
    if attention.kdim == attention.vdim == attention.embed_dim:
        calls += [
            ((x, x, x), {}),
            ((x, x, x), {"attn_mask": window, "key_padding_mask": padded, "need_weights": False}),
            ((x, x, x), {"attn_mask": causal, "is_causal": True, "need_weights": False}),
        ]
    return calls
