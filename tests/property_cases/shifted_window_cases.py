"""Windows of a picture that was rolled, and the mask that keeps its ends apart."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case
from property_cases.surrounding_cases import of_map


def regions(height: int, width: int, *, rows_alone: bool = False) -> Tensor:
    """(height, width): the part of a picture rolled by one that a place is in: the last row and column are apart."""
    numbers = torch.zeros(height, width)
    numbers[-1:] = 1
    if not rows_alone:
        numbers[:, -1:] += 2
    return numbers


def rolled_windows(x: Tensor, *, rows_alone: bool = False) -> Tensor:
    """Attention within shifted windows of 2 x 2, as in Swin."""
    batch, height, width, channels = x.shape

    def cut(x: Tensor) -> Tensor:
        return x.view(-1, height // 2, 2, width // 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

    parts = cut(regions(height, width, rows_alone=rows_alone).to(x.dtype)[None, ..., None]).repeat(batch, 1, 1)
    windows = cut(x.roll((-1, -1), (1, 2)))
    scores = (windows @ windows.mT / channels**0.5).masked_fill(parts != parts.mT, -torch.inf)  # here
    read = (scores.softmax(-1) @ windows).view(batch, height // 2, width // 2, 2, 2, channels)
    return read.transpose(2, 3).reshape(x.shape).roll((1, 1), (1, 2))


def rolled_windows_parted_by_rows(x: Tensor) -> Tensor:
    return rolled_windows(x, rows_alone=True)


CASES = [Case("shifted-windows", rolled_windows_parted_by_rows, rolled_windows, of_map)]
