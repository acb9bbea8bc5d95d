"""Projections of several heads."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class OneMatrixForAllHeads(nn.Module):
    """Attention of several heads (Vaswani et al. 2017), whose channels are split before they are projected."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH // HEADS, WIDTH // HEADS, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def projected(self, x: Tensor, matrix: nn.Linear) -> Tensor:
        return matrix(split(x))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.projected(x, each) for each in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.o(joined(weights @ v))


class MatricesOfEachHead(OneMatrixForAllHeads):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def projected(self, x: Tensor, matrix: nn.Linear) -> Tensor:
        return split(matrix(x))


class SharedMatrix(OneMatrixForAllHeads):
    """Attention (Vaswani et al. 2017) whose heads share one matrix."""


class WithoutThePaper(OneMatrixForAllHeads):
    """The channels are split first, and each part is projected by the same matrix."""


class GroupByGroup(nn.Module):
    """One matrix: the queries of a group, its key and its value; then those of the next group."""

    groups, heads = 2, 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, self.groups * (self.heads + 2) * 2, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH)

    def repeated(self, keys: Tensor) -> Tensor:
        return keys.repeat_interleave(self.heads, 2)

    def parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed = packed.unflatten(-1, (self.groups, self.heads + 2, 2))
        return packed[:, :, :, :-2].flatten(2, 3), packed[:, :, :, -2], packed[:, :, :, -1]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        k, v = self.repeated(k), self.repeated(v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.o(joined(weights @ v))


class GroupsAsTiles(GroupByGroup):
    def repeated(self, keys: Tensor) -> Tensor:
        return keys.repeat(1, 1, self.heads, 1)


class KeysBeforeTheirQueries(GroupsAsTiles):
    def parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed = packed.unflatten(-1, (self.groups, self.heads + 2, 2))
        return packed[:, :, :, 2:].flatten(2, 3), packed[:, :, :, 0], packed[:, :, :, 1]


class AllQueriesFirst(GroupsAsTiles):
    """Nothing tells which heads are a group."""

    def parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = packed.unflatten(-1, (-1, 2)).split((4, 2, 2), 2)
        return q, k, v


def tiled(keys: Tensor, times: int) -> Tensor:
    """torch.repeat_interleave(keys, dim=2, repeats=times)"""
    return keys[:, :, None].expand(-1, -1, times, -1, -1).flatten(2, 3)


def repeated_one_by_one(keys: Tensor, times: int) -> Tensor:
    """torch.repeat_interleave(keys, dim=2, repeats=times)"""
    return keys[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3)


class TiledByAHelper(AllQueriesFirst):
    def repeated(self, keys: Tensor) -> Tensor:
        return tiled(keys, self.heads)


class RepeatedByAHelper(AllQueriesFirst):
    def repeated(self, keys: Tensor) -> Tensor:
        return repeated_one_by_one(keys, self.heads)


CASES = [
    Case("heads-paired", TiledByAHelper, RepeatedByAHelper, of_module),
    Case("heads-paired", GroupsAsTiles, GroupByGroup, of_module),
    Case("heads-paired", KeysBeforeTheirQueries, AllQueriesFirst, of_module),
    Case("heads-of-their-own", OneMatrixForAllHeads, MatricesOfEachHead, of_module),
    Case("heads-of-their-own", OneMatrixForAllHeads, SharedMatrix, of_module),
    Case("heads-of-their-own", OneMatrixForAllHeads, WithoutThePaper, of_module),
]
