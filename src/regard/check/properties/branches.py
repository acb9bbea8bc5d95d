"""Branches that are mixed by a softmax: what several layers make of a token, weighted by what all tokens say."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance

__all__ = ["mixed_branches"]

SUM_TOLERANCE = 1e-6


def mixed_branches(instances: list[AttentionInstance]) -> Finding | None:
    """Weights of the same number of several layers' results, that sum to one (selective kernels, Li et al. 2019).

    None of all others, as of queries that meet keys: each score is of a learned vector.
    """
    if not instances or not all(map(_is_of_branches, instances)):
        return None
    message = (
        "a softmax over branches: each number is a weighted sum of what several layers made at its place, and no token "
        "reads another one by it (selective kernels)"
    )
    return Finding("design", "mixed-branches", "scores", message, instances[0].sums_location)


def _is_of_branches(instance: AttentionInstance) -> bool:
    run = instance.run
    if not instance.softmaxes or not instance.sums:
        return False
    if any({each.left_place, each.right_place} <= run.depends for each in instance.scores):
        return False
    starts = torch.tensor(sorted(run.first_tag.values()))
    for each in instance.sums:
        (index, number), (at, place) = instance.values_place(each), instance.weights_place(each)
        tags = run.tags.inputs[index][number].flatten()[instance.value_terms(each)].contiguous()
        weights = run.trace.operations[at].inputs[place].data.flatten()[instance.weight_terms(each)].double()
        layer = torch.searchsorted(starts, tags, right=True) - 1
        if tags.shape[-1] < 2 or bool((tags <= 0).any()) or bool((layer.sort(-1).values.diff(dim=-1) == 0).any()):
            return False
        places = tags - starts[layer]
        if bool((places != places[:, :1]).any()) or float((weights.sum(-1) - 1).abs().max()) > SUM_TOLERANCE:
            return False
    return True
