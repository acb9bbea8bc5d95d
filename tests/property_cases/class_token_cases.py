"""A learned token beside the others, and what is read in the end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from property_cases.output_cases import attention


class ReadsItsClassToken(nn.Module):
    """A learned token stands in front of the others, and is read in the end."""

    read = 0

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.head = nn.Parameter(drawn(1, 1, WIDTH, seed=9)), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = x + attention(x)
        return self.head(x[:, self.read])  # here


class ReadsItsLastToken(ReadsItsClassToken):
    read = -1


class HasAPlace(ReadsItsClassToken):
    """Each token has a row of a table, the class token the first one."""

    others = slice(1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(drawn(1, 5, WIDTH, seed=8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places[:, self.others]  # here
        first = self.cls_token + self.places[:, :1]
        x = torch.cat([first.expand(len(x), -1, -1), x], 1)
        return self.head((x + attention(x))[:, 0])


class SharesAPlace(HasAPlace):
    others = slice(0, 4)


class ReadsBothTokens(nn.Module):
    """A second learned token stands for what a teacher says."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.distillation_token = (nn.Parameter(drawn(1, 1, WIDTH, seed=seed)) for seed in (6, 7))
        self.head, self.head_of_the_teacher, self.norm = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        learned = (each.expand(len(x), -1, -1) for each in (self.cls_token, self.distillation_token))
        x = torch.cat([*learned, x], 1)
        x = self.norm(x + attention(x))
        return self.read(x)

    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 0]) + self.head_of_the_teacher(x[:, 1])


class ReadsOneTokenTwice(ReadsBothTokens):
    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 0]) + self.head_of_the_teacher(x[:, 0])  # here


class ReadsNoTeacher(ReadsBothTokens):
    """What was learned of a teacher is left out."""

    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 0]) + self.head_of_the_teacher(x[:, 2:].mean(1))


CASES = [
    Case("class-token-read", ReadsOneTokenTwice, ReadsBothTokens, of_module),
    Case("class-token-read", ReadsOneTokenTwice, ReadsNoTeacher, of_module),
    Case("class-token-read", ReadsItsLastToken, ReadsItsClassToken, of_module),
    Case("positions-apart", SharesAPlace, HasAPlace, of_module),
]
