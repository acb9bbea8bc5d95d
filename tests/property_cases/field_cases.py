"""Attention over the fields of a record, whose ids are looked up in one table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

SIZES = (4, 7, 5)


class Fields(nn.Module):
    """Where the rows of each field begin is kept; what is looked up is the matter of those below."""

    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(SIZES), WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("offsets", torch.tensor([0, *SIZES[:-1]]).cumsum(0))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.looked_up(ids)
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return self.out(joined((q @ k.mT / (WIDTH // 2) ** 0.5).softmax(-1) @ v))

    def looked_up(self, ids: Tensor) -> Tensor:
        raise NotImplementedError


class OfFields(Fields):
    def looked_up(self, ids: Tensor) -> Tensor:
        return self.table(ids + self.offsets)


class OfOneField(Fields):
    def looked_up(self, ids: Tensor) -> Tensor:
        return self.table(ids)  # here


def of_fields(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    ids = torch.tensor([[1, 2, 3], [3, 1, 2]])
    call = Invocation(module, {"ids": ids}, ["ids"], [Stream("ids", "ids", 0, (1,))])
    call.sizes["vocab"] = min(SIZES)
    return call


CASES = [Case("rows-of-each-field", OfOneField, OfFields, of_fields)]
