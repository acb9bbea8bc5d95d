"""The norms between the sub-layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float
from regard.transformer.config import Config

__all__ = ["PlusOneRMSNorm", "make_norm"]


class PlusOneRMSNorm(nn.RMSNorm):
    """x / rms(x) * (1 + weight): a weight of zero changes nothing (Gemma)."""

    def reset_parameters(self) -> None:
        """Begin as the plain norm."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each vector normed on its own, in float32 where it is of half precision."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = 1.0 + self.weight.to(dtype)
        return F.rms_norm(x.to(dtype), self.normalized_shape, weight, self.eps).to(x.dtype)


def make_norm(config: Config) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019), as the config says."""
    if config.norm == "layer":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    kind = PlusOneRMSNorm if config.norm_plus_one else nn.RMSNorm
    return kind(config.d_model, eps=config.norm_eps)
