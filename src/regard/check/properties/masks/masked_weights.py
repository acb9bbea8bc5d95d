"""The weights of an attention in another run of its call, as with a mask, and whether its scores are others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.check.properties.finding import Evidence
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import selections
from regard.check.roles.table import AttentionTable
from regard.check.trace.operation import Operation, Trace

__all__ = ["are_scores_others", "masked_weights"]


def masked_weights(evidence: Evidence, run: Trace) -> Tensor | None:
    """The weights of the attention in a run with more operations; None where it is not found again."""
    if run.error or _are_others(evidence.base, run):
        return None
    table, base = evidence.base, evidence.base.instance.run.trace
    parts = []
    for product in table.instance.sums:
        operation = product.operation
        place = [each.index for each in base if _kind(each) == _kind(operation)].index(operation.index)
        found = [each for each in run if _kind(each) == _kind(operation)]
        if place >= len(found):
            return None
        index, number = table.instance.weights_place(product)
        twin = found[place] if operation.index == index else _before(table, product, run, found[place])
        if twin is None or number >= len(twin.inputs):
            return None
        taken = twin.inputs
        terms = table.instance.weight_terms(product)
        data = taken[number].data.flatten()
        if data.numel() != base.operations[index].inputs[number].data.numel():
            return None
        width = table.values.score.shape[-1]
        parts.append(pad(data[terms], (0, width - terms.shape[-1])))
    known = table.values.score >= 0
    weight = torch.full((len(table.weight),), float("nan"), dtype=torch.float64)
    weight[table.values.score[known]] = torch.cat(parts)[known].double()
    return weight


def are_scores_others(evidence: Evidence, run: Trace) -> bool:
    """Whether queries or keys are others in another run, as where positions are counted by a mask of padding."""
    base = evidence.base.instance.run.trace
    for score in evidence.base.instance.scores:
        place = [each.index for each in base if _kind(each) == _kind(score.operation)].index(score.operation.index)
        found = [each for each in run if _kind(each) == _kind(score.operation)]
        if place >= len(found) or len(found[place].inputs) != len(score.operation.inputs):
            return False
        pairs = zip(score.operation.inputs, found[place].inputs, strict=True)
        if not all(one.shape == other.shape and torch.equal(one.data, other.data) for one, other in pairs):
            return True
    return False


def _are_others(table: AttentionTable, run: Trace) -> bool:
    """Whether the keys that a run gathered are others, as the nearest neighbours that a mask leaves."""
    first = min(each.operation.index for each in table.instance.scores)
    gathered = [places for index, places in selections(table.instance.run.trace).items() if index < first]
    found = list(selections(run).values())[: len(gathered)]
    return len(found) == len(gathered) and not all(map(torch.equal, gathered, found))


def _kind(operation: Operation) -> tuple[str, tuple[int, ...]]:
    """What an operation has in common with its twin in another run."""
    return operation.name, operation.outputs[0].shape if operation.outputs else ()


def _before(table: AttentionTable, product: Contraction, run: Trace, summed: Operation) -> Operation | None:
    """The twin of what multiplies values by weights before they are summed; None where the values are others."""
    base = table.instance.run.trace
    (index, _), (other, number) = table.instance.weights_place(product), table.instance.values_place(product)
    mine = base.operations[index]
    nearest = [each for each in base.operations[: product.operation.index] if _kind(each) == _kind(mine)]
    found = [each for each in run.operations[: summed.index] if _kind(each) == _kind(mine)]
    if index != other or not found or nearest[-1] is not mine or number >= len(found[-1].inputs):
        return None
    return found[-1] if torch.equal(found[-1].inputs[number].data, mine.inputs[number].data) else None
