"""The matrix W_O of what the heads read: one of its own, and not that of their values once more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.check.properties.code import code_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.trace.operation import TensorRecord

__all__ = ["ON_PURPOSE", "output_matrix_findings"]

_Matrix = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""A matrix by its memory, its place there, its shape and its strides: its transpose is another one."""
ON_PURPOSE = re.compile(
    r"\b(?:shar(?:e[sd]?|ing)|t(?:ie[sd]?|ying)|re-?us(?:e[sd]?|ing))\b|\bsame[ _-]+(?:matri|weight|linear|proj|layer)"
    r"|(?:shared?|tied?)_|\b(?:one|single) (?:matrix|linear|projection)\b|hopfield|tensori[sz]|_shared\b",
    re.I,
)
"""In a code: that some weights are one."""


def output_matrix_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A matrix that made queries, keys or values and that is applied to what their heads read as well.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2: W_O is beside W_Q, W_K and W_V. As where a list of
    layers has one fewer than is read, and its last one is that of the values. Where one matrix makes all three, weights
    are shared on purpose; where it makes queries, keys or values of another attention, that is the next layer.

    Args:
        invocation: a call.
        several: the evidence of its attentions.
    """
    if not several or ON_PURPOSE.search(code_of(invocation.target)):
        return
    makers = set[int]()
    for each in several:
        for places in _factors(each.base.instance).values():
            makers |= _owners(each.base.instance, places)
    for each in several:
        instance = each.base.instance
        of_parts = {
            name: {one for index in _owners(instance, places) if (one := _matrix_of(instance, index)) is not None}
            for name, places in _factors(instance).items()
        }
        sets = [*of_parts.values()]
        if len(sets) == 3 and sets[0] == sets[1] == sets[2]:
            continue
        sums = {one.operation.index for one in instance.sums}
        for product in instance.run.products:
            index = product.operation.index
            if index in makers or index in sums or index < min(sums):
                continue
            matrix = _matrix_of(instance, index, of=sums)
            part = next((name for name, used in of_parts.items() if matrix in used), None)
            if matrix is None or part is None:
                continue
            message = (
                f"the matrix that makes the {part} is applied to what the heads read as well: the output has none of "
                "its own"
            )
            yield Finding("violation", "output-matrix", "projected", message, product.operation.location)
            return


def _factors(instance: AttentionInstance) -> dict[str, list[tuple[int, int]]]:
    """Where values, and both sides of the scores, are multiplied: which side asks does not matter here."""
    return {
        "values": [instance.values_place(each) for each in instance.sums],
        "queries or keys": [each.left_place for each in instance.scores],
        "keys or queries": [each.right_place for each in instance.scores],
    }


def _owners(instance: AttentionInstance, places: Sequence[tuple[int, int]]) -> set[int]:
    """The products that made what is taken at some places."""
    run = instance.run
    return set[int]().union(*(run.owner_of(run.tags.inputs[index][number]) for index, number in places))


def _matrix_of(instance: AttentionInstance, index: int, of: set[int] | None = None) -> _Matrix | None:
    """The learned matrix of a product, applied to results of some others alone where these are told; None for none."""
    run = instance.run
    for product in run.products:
        if product.operation.index != index:
            continue
        for place, matrix in _sides(product):
            made = run.owner_of(run.tags.inputs[place[0]][place[1]])
            if matrix.learned and place in run.depends and (of is None or (made and made <= of)):
                return matrix.storage, matrix.offset, matrix.shape[-2:], matrix.stride[-2:]
    return None


def _sides(product: Contraction) -> list[tuple[tuple[int, int], TensorRecord]]:
    return [(product.left_place, product.right), (product.right_place, product.left)]
