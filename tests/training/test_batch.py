"""Examples in one row."""

import torch

from regard.training.tasks.batch import pack


def test_packed():
    row = pack([[5], [6, 7], [8, 9], [1, 2, 3]])
    assert row.ids.tolist() == [[5, 6, 7, 8, 9, 1, 2, 3]]
    assert row.documents.tolist() == [[0, 1, 1, 2, 2, 3, 3, 3]]
    assert row.positions.tolist() == [[0, 0, 1, 0, 1, 0, 1, 2]]
    assert {tensor.dtype for tensor in row} == {torch.int64}
