"""Sinusoidal vectors of distances: a key of the query's own token takes that of the distance 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.contractions import Contraction
from regard.check.roles.table import AttentionTable

__all__ = ["other_row_of_sinusoids"]

SAME = 1e-6
FEWEST = 4
"""Channels of a sinusoid, so that zeros and ones in equal number are no accident."""


def other_row_of_sinusoids(table: AttentionTable, learned: Sequence[Contraction]) -> Finding | None:
    """A table of sines and cosines that has the row of 0, where the keys of the queries' own tokens take another row.

    Args:
        table: of an attention of one sequence.
        learned: products of its queries with vectors, which are added to its scores.
    """
    if not torch.equal(table.query.stream, table.key.stream):
        return None
    run, rows = table.instance.run, table.rows_of_tags()
    own = (table.query.token == table.key.token) & (table.weight > ZERO_WEIGHT)
    for product in learned:
        left = product.left_place in run.depends
        place, terms = (product.right_place, product.right_terms) if left else (product.left_place, product.left_terms)
        vectors, first = run.trace.taken(place).data, run.first_tag[product.operation.index]
        used = [
            terms[lost[mine] - first, 0][own[rows[kept[mine]]]]
            for kept, lost in run.tags.sums
            for mine in [(lost >= first) & (lost < first + product.output.data.numel()) & (rows[kept] >= 0)]
        ]
        for count, zero in _tables(table, place[0]):
            axes = [axis for axis, size in enumerate(vectors.shape) if size == count]
            if len(axes) != 1 or not used or not len(torch.cat(used)):
                continue
            taken = torch.unique(_along(vectors, axes[0])[torch.cat(used)])
            if len(taken) == 1 and int(taken) != zero:
                message = (
                    f"the score of a key of the query's own token takes row {int(taken)} of {count} sinusoidal "
                    f"vectors; that of the distance 0 is row {zero}"
                )
                return Finding("violation", "positions-relative", "positions", message, product.operation.location)
    return None


def _along(vectors: Tensor, axis: int) -> Tensor:
    """By element, its place along an axis."""
    sizes = [1] * vectors.ndim
    sizes[axis] = vectors.shape[axis]
    return torch.arange(vectors.shape[axis]).view(sizes).expand(vectors.shape).flatten()


def _tables(table: AttentionTable, before: int) -> list[tuple[int, int]]:
    """The number of rows of each sinusoidal table that a matrix, or the product itself, takes; and which is of 0."""
    found = list[tuple[int, int]]()
    for operation in table.instance.run.trace.operations[: before + 1]:
        for record in operation.inputs:
            data = record.data
            if record.learned or data.ndim < 2 or not data.is_floating_point() or data.shape[-1] < FEWEST:
                continue
            numbers = data.reshape(-1, *data.shape[-2:])[0].double()
            width = numbers.shape[-1]
            if width % 2 or len(numbers) < 2 or float((numbers.square().sum(-1) - width / 2).abs().max()) > SAME:
                continue
            ones = ((numbers - 1).abs() < SAME).sum(-1) == width // 2
            of_zero = (ones & ((numbers.abs() < SAME).sum(-1) == width // 2)).nonzero().flatten().tolist()
            found += [(len(numbers), of_zero[0])] if len(of_zero) == 1 else []
    return list(dict.fromkeys(found))
