"""An attention with one mistake, for the picture of a report: `make pictures`."""

import math

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    """Three heads that look at themselves and what was before."""

    def __init__(self, d_model: int = 30, num_heads: int = 3) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention over (batch, tokens, d_model)."""
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1)
        scores = scores / math.sqrt(T)
        scores = scores.masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
