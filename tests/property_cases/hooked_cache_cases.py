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


class ByAttributes(nn.Module):
    """What it keeps stands in its attributes, and its caller hands it back in a dict by the kind of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.kind = nn.Linear(WIDTH, 3 * WIDTH), "self"
        self.k_kept: Tensor | None = None
        self.v_kept: Tensor | None = None

    def forward(self, x: Tensor, layer_cache: dict[str, dict[str, Tensor]] | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if layer_cache is not None and layer_cache[self.kind] is not None:
            k = torch.cat([layer_cache[self.kind]["k_kept"], k], 1)
            v = torch.cat(self.ordered(layer_cache[self.kind]["v_kept"], v), 1)
        self.k_kept = k
        self.v_kept = v
        later = torch.ones(x.shape[1], k.shape[1]).triu(1 + k.shape[1] - x.shape[1]) == 1
        scores = (split(q) @ split(k).mT / 2).masked_fill(later, -torch.inf)
        return joined(scores.softmax(-1) @ split(v))

    def ordered(self, old: Tensor, new: Tensor) -> list[Tensor]:
        return [old, new]


class NewValuesFirst(ByAttributes):
    def ordered(self, old: Tensor, new: Tensor) -> list[Tensor]:
        return [new, old]


class KeepsNewAlone(nn.Module):
    """Its attributes are of the new tokens alone: the caller joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, layer_cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k_kept = k
        self.v_kept = v
        if layer_cache is not None and layer_cache["k_kept"] is not None:
            k, v = (torch.cat([old, new], 1) for old, new in ((layer_cache["k_kept"], k), (layer_cache["v_kept"], v)))
        later = torch.ones(x.shape[1], k.shape[1]).triu(1 + k.shape[1] - x.shape[1]) == 1
        scores = (split(q) @ split(k).mT / 2).masked_fill(later, -torch.inf)
        return joined(scores.softmax(-1) @ split(v))


CASES = [
    Case("cache-of-new-tokens", KeptForItself, ByHooks, of_module, has_line=False),
    Case("cache-of-new-tokens", joined_behind, joined_before, of_x, has_line=False),
    Case("cache-of-new-tokens", read_first, joined_before, of_x),
    Case("cache-order", NewValuesFirst, ByAttributes, of_module, has_line=False),
    Case("cache-order", NewValuesFirst, KeepsNewAlone, of_module, has_line=False),
]
