"""Rotations of queries and keys that no position changes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.lengths import length_ratios

__all__ = ["ineffective_rotation_findings"]


def ineffective_rotation_findings(evidence: Evidence, line: CodeLocation | None) -> Iterator[Finding]:
    """Queries that are rotated by no angle, or by angles that no position changes.

    Args:
        evidence: of an attention whose positions tell no tokens apart.
        line: of its scores.
    """
    base, fresh = evidence.base, evidence.fresh
    for name, left in (("queries", base.layout.queries_left), ("keys", not base.layout.queries_left)):
        place = _times_zeros(evidence, left)
        if place is not None:
            message = f"{name} are rotated by angles of 0: their sines are 0 for every token"
            yield Finding("violation", "positions-without-effect", "positions", message, place)
            return
    if len(base.product) != len(fresh.product):
        return
    for name, table, other in (("queries", base.q, fresh.q), ("keys", base.k, fresh.k)):
        source = (base.q_source, fresh.q_source) if name == "queries" else (base.k_source, fresh.k_source)
        if bool(source[0].isnan().any()) or table.shape != source[0].shape:
            continue
        change, before = table - other, source[0] - source[1]
        lengths = change.norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-12)
        turned = bool(((change - lengths[:, None] * before).abs() > 1e-6 * float(change.abs().max())).any())
        ratio = length_ratios(change, before)
        if (
            turned
            and len(ratio)
            and float(ratio.max() - ratio.min()) < 1e-6 * float(ratio.max())
            and (base.num_heads > 1 or any(each.name in ("cos", "polar") for each in base.instance.run.trace))
        ):
            yield Finding(
                "violation",
                "positions-by-token",
                "positions",
                f"{name} are rotated by angles that do not depend on the position of the token",
                line,
            )
            return


def _times_zeros(evidence: Evidence, left: bool) -> CodeLocation | None:
    """Where the left or right factors of scores are multiplied by a tensor of zeros that is made of no token.

    Not of one query or one key: the first one's angle is 0, and a table of its position alone may turn all others. What
    is handed over is another's.
    """
    base, instance = evidence.base, evidence.base.instance
    if min(len(torch.unique(each.token)) for each in (base.query, base.key)) < 2:
        return None
    run = instance.run
    places = [each.left_place if left else each.right_place for each in instance.scores]
    own = torch.cat([run.tags.inputs[index][number].flatten() for index, number in places])
    first = min(each.operation.index for each in instance.scores)
    given = {each.storage for each in run.trace.arguments.values()}
    for operation in run.trace.operations[:first]:
        if operation.name.rstrip("_") != "mul" or len(operation.inputs) != 2:
            continue
        for one, other in ((0, 1), (1, 0)):
            if operation.inputs[other].storage in given:
                continue
            factor, tags = operation.inputs[other], run.tags.inputs[operation.index]
            if factor.data.numel() < 2 or factor.learned or bool(factor.data.any()) or bool((tags[other] > 0).any()):
                continue
            if bool(torch.isin(tags[one][tags[one] > 0], own).any()):
                return operation.location
    return None
