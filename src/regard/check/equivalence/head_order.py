"""Which head of one module is which of the other, where heads differ by more than their weights: slopes of ALiBi."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.check.equivalence.calls import TOKENS, CallPlan, random_inputs
from regard.check.equivalence.cores import attention_cores
from regard.check.equivalence.proof import TOLERANCE, relative_difference
from regard.check.equivalence.tags import Projections, ProjectionTags
from regard.check.target.preparation import copied

__all__ = ["in_head_order", "matching_heads"]


def matching_heads(a: CallPlan, b: CallPlan) -> list[int] | None:
    """For each head of A, the head of B that adds the same to its scores; None where no heads are told apart by it."""
    of_a, of_b = _constant_weights(a), _constant_weights(b)
    if of_a is None or of_b is None or of_a.shape != of_b.shape:
        return None
    left = list(range(len(of_b)))
    order = []
    for at, mine in enumerate(of_a):
        same = [head for head in left if relative_difference(mine, of_b[head]) <= TOLERANCE]
        if not same:
            return None
        order.append(at if at in same else same[0])
        left.remove(order[-1])
    return None if order == sorted(order) else order


def _constant_weights(plan: CallPlan) -> Tensor | None:
    """The attention weights by head where every parameter is zero: what is left is made of positions alone."""
    assert plan.module is not None
    module = copied(plan.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    trace, _ = replace(plan, module=module).traced(random_inputs(plan, 1, batch=1))
    found = [core.weights for core in attention_cores(trace)]
    if not found or any(each.shape[-2] != TOKENS or each.shape[-1] != found[0].shape[-1] for each in found):
        return None
    weights = torch.cat([each.reshape(-1, TOKENS, each.shape[-1]) for each in found])
    return weights if bool(weights.isfinite().all()) else None


def in_head_order(projections: Projections, order: list[int] | None) -> Projections:
    """The same with the heads in another order."""
    if order is None:
        return projections
    q, k, v = (
        ProjectionTags(each.weight[order], each.bias[order]) for each in (projections.q, projections.k, projections.v)
    )
    out = projections.out.weight
    by_head = out.view(*out.shape[:2], len(order), -1)[:, :, order].flatten(2)
    return replace(projections, q=q, k=k, v=v, out=ProjectionTags(by_head, projections.out.bias))
