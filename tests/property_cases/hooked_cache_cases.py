"""Caches that a new token's key and value do not reach: some of them are filled by hooks at the projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x, split
from property_cases.cache_cases import Past, projected


class ByHooks(nn.Module):
    """Of another sequence keys are made once; of its own tokens hooks put what was made before them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(
        self, x: Tensor, context: Tensor | None = None, kv_cache: dict[nn.Module, Tensor] | None = None
    ) -> Tensor:
        if self.makes(context, kv_cache):
            k, v = self.key(x if context is None else context), self.value(x if context is None else context)
        else:
            assert kv_cache is not None
            k, v = kv_cache[self.key], kv_cache[self.value]
        return joined((split(self.query(x)) @ split(k).mT / 2).softmax(-1) @ split(v))

    def makes(self, context: Tensor | None, kv_cache: dict[nn.Module, Tensor] | None) -> bool:
        return kv_cache is None or context is None or self.key not in kv_cache


class KeptForItself(ByHooks):
    """The same without asking whether there is another sequence: its own tokens' keys are made once as well."""

    def makes(self, context: Tensor | None, kv_cache: dict[nn.Module, Tensor] | None) -> bool:
        return kv_cache is None or self.key not in kv_cache


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined((q @ k.mT / 2).softmax(-1) @ v)


def joined_before(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    q, k, v = projected(x, past)
    return attended(q, k, v), (k, v)


def joined_behind(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    """What is new is put beside what was kept once it has attended."""
    q, k, v = projected(x, past)
    return attended(q, *((k, v) if past is None else past)), (k, v)  # here


def read_first(x: Tensor, past: Past = None) -> tuple[Tensor, Past]:
    """The same, with the keys that were kept in place of the new ones."""
    q, k, v = projected(x, None)
    keys, values = (k, v) if past is None else past
    kept = (k, v) if past is None else (torch.cat([keys, k], 2), torch.cat([values, v], 2))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, keys)  # here
    return joined((scores / 2).softmax(-1) @ values), kept


CASES = [
    Case("cache-of-new-tokens", KeptForItself, ByHooks, of_module, has_line=False),
    Case("cache-of-new-tokens", joined_behind, joined_before, of_x, has_line=False),
    Case("cache-of-new-tokens", read_first, joined_before, of_x),
]
