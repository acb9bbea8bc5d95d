"""Modules that compute by PyTorch's fused kernel, or by steps that are written out, as a flag says."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class ByEither(nn.Module):
    use_sdpa = True

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if self.use_sdpa:
            read = F.scaled_dot_product_attention(q, k, v)
        else:
            read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(joined(read))


class CausalByTheKernel(ByEither):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if self.use_sdpa:
            read = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        else:
            read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(joined(read))


class OfAnObject(ByEither):
    """The flag is the object's; the other way needs a mask that is not made where the kernel is there."""

    def __init__(self) -> None:
        super().__init__()
        self.flash = True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if self.flash:
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            read = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(self.hidden, -1e9).softmax(-1) @ v
        return self.out(joined(read))


class UnscaledByHand(ByEither):
    """The kernel scales by itself; what is written out for where there is none does not."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if not self.use_sdpa:
            return self.out(joined((q @ k.mT).softmax(-1) @ v))
        return self.out(joined(F.scaled_dot_product_attention(q, k, v)))


CASES = [
    Case("kernels-agree", CausalByTheKernel, ByEither, of_module, has_line=False),
    Case("kernels-agree", UnscaledByHand, OfAnObject, of_module, has_line=False),
]
