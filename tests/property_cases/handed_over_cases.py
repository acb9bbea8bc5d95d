"""What is handed over beside tokens: a memory that is detached, an empty cache, a state, and an order of beams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import WIDTH, Case, drawn, joined, of_module, split
from property_cases.cache_cases import attended
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class BesideAMemory(nn.Module):
    """Keys and values of the text before, which no gradient reaches, stand before those of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, mem: Tensor | None = None) -> tuple[Tensor, Tensor]:
        both = x if mem is None else self.beside(x, mem)
        k, v = map(split, self.kv(both).chunk(2, -1))
        return attended(split(self.q(x)), k, v, both.shape[1] - x.shape[1]), both.detach()

    def beside(self, x: Tensor, mem: Tensor) -> Tensor:
        return torch.cat([mem.detach(), x], 1)


class DetachedWithItsMemory(BesideAMemory):
    def beside(self, x: Tensor, mem: Tensor) -> Tensor:
        return torch.cat([mem, x], 1).detach()


class KeepsKeysAndValues(nn.Module):
    """Attention that keeps the keys and values of earlier steps in `state`."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        k, v = self.kv(x).chunk(2, -1)
        if state is not None:
            k, v = torch.cat([state[0], k], 1), torch.cat([state[1], v], 1)
        out = attended(split(self.q(x)), split(k), split(v), k.shape[1] - x.shape[1])
        return out, self.kept(k, v)

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v


class KeepsKeysTwice(KeepsKeysAndValues):
    """Attention that keeps the keys and values of earlier steps in `state`."""

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, k


class OfEachLayer(nn.Module):
    """Two layers that read a memory; what each made of it is kept in cache, which is empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.kvs = (
            nn.ModuleList(nn.Linear(WIDTH, width) for _ in range(2)) for width in (WIDTH, 2 * WIDTH)
        )

    def forward(self, x: Tensor, memory: Tensor, cache: dict[int, Tensor] | None = None) -> Tensor:
        for layer, (query, kv) in enumerate(zip(self.queries, self.kvs, strict=True)):
            kept = {} if cache is None else cache
            if self.name(layer) not in kept or cache is None:
                kept[self.name(layer)] = kv(memory)
            k, v = map(split, kept[self.name(layer)].chunk(2, -1))
            q = split(query(x))
            x = x + joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return x

    def name(self, layer: int) -> int:
        return layer


class OfTheFirstLayer(OfEachLayer):
    def name(self, layer: int) -> int:
        return 0


def of_x_and_memory(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    arguments = {"x": drawn(2, 4, WIDTH, seed=0), "memory": drawn(2, 5, WIDTH, seed=1)}
    streams = [Stream("x", "x", 0, (1,)), Stream("memory", "context", 0, (1,))]
    return Invocation(module, arguments, ["x", "memory"], streams)


class KeepsOfItsMemory(nn.Module):
    """Attention to another sequence, whose keys and values are made once."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        if cache is not None and "k" in cache:
            k, v = cache["k"], cache["v"]
        else:
            k, v = self.k(memory), self.v(memory)
            if cache is not None:
                self.keep(cache, k, v)
        q, k, v = map(split, (self.q(x), k, v))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)

    def keep(self, cache: dict[str, Tensor], k: Tensor, v: Tensor) -> None:
        cache["k"], cache["v"] = k, v


class KeepsKeysAsValues(KeepsOfItsMemory):
    def keep(self, cache: dict[str, Tensor], k: Tensor, v: Tensor) -> None:
        cache["v"], cache["k"] = k, v


class KeepsAllOfItsMemory(KeepsOfItsMemory):
    """Attention to another sequence, whose tokens are kept, and stand beside those of the next call."""

    def forward(self, x: Tensor, memory: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        if cache is not None:
            memory = cache["memory"] = torch.cat([cache["memory"], memory], 1) if "memory" in cache else memory
        return super().forward(x, memory)


class SumsInALoop(nn.Module):
    """Causal linear attention. A later chunk continues from the state that an earlier one returned."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q, k = q.sigmoid(), k.sigmoid()
        zeros = (
            x.new_zeros(x.shape[0], q.shape[1], q.shape[3], q.shape[3]),
            x.new_zeros(x.shape[0], q.shape[1], q.shape[3]),
        )
        total, keys = zeros if state is None else state
        sums, read = self.sums(keys, k), list[Tensor]()
        for at in range(x.shape[1]):
            total = total + k[:, :, at, :, None] * v[:, :, at, None, :]
            read.append((q[:, :, at, :, None] * total).sum(2))
        return joined(torch.stack(read, 2) / (q * sums).sum(-1, keepdim=True)), (total, sums[:, :, -1])

    def sums(self, before: Tensor, k: Tensor) -> Tensor:
        return before[:, :, None] + k.cumsum(2)


class SumsOfTheChunkAlone(SumsInALoop):
    """Causal linear attention. A later chunk continues from the state that an earlier one returned."""

    def sums(self, before: Tensor, k: Tensor) -> Tensor:
        return k.cumsum(2)


class KeysOfBeamsCache(nn.Module):
    """Keeps keys and values of all calls; beam_idx says of which beams the search goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, beam_idx: Tensor | None = None) -> Tensor:
        keys, values = self.keys, self.values
        if keys is not None and values is not None:
            if beam_idx is not None:
                keys, values = keys[beam_idx], self.chosen(values, beam_idx)
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)  # here
        self.keys, self.values = k, v
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def chosen(self, values: Tensor, beams: Tensor) -> Tensor:
        return values[beams]


class ValuesOfOtherBeamsCache(KeysOfBeamsCache):
    def chosen(self, values: Tensor, beams: Tensor) -> Tensor:
        return values


def of_beams(kind: Callable[[], Any]) -> Invocation:
    """A call of as many tokens that ask as there are keys."""
    module = kind()
    module.eval()
    return heads_call(module, *(drawn(2, 2, 3, 4, seed=seed) for seed in range(3)))


CASES = [
    Case("memory-detached-alone", DetachedWithItsMemory, BesideAMemory, of_module, has_line=False),
    Case("cache-equals-whole", OfTheFirstLayer, OfEachLayer, of_x_and_memory, has_line=False, attentions=2),
    Case("cache-places", KeepsKeysAsValues, KeepsOfItsMemory, of_x_and_memory, has_line=False),
    Case("cache-places", KeepsKeysAsValues, KeepsAllOfItsMemory, of_x_and_memory, has_line=False),
    Case("state-goes-on", KeepsKeysTwice, KeepsKeysAndValues, of_module, has_line=False),
    Case("state-goes-on", SumsOfTheChunkAlone, SumsInALoop, of_module, has_line=False),
    Case("cache-beams", ValuesOfOtherBeamsCache, KeysOfBeamsCache, of_beams),
]
