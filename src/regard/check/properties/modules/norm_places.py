"""Where the norms of a block stand: all before their sublayers, all behind the sums, or all behind the sublayers.

Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv:2002.04745), figure 1: post-norm and
pre-norm; Liu et al. 2022, "Swin Transformer V2" (arXiv:2111.09883), figure 1: norms of what the sublayers return.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.finding import Finding
from regard.check.properties.modules.norm_calls import NormCall, norm_calls, parent_of
from regard.check.properties.modules.residuals import is_joined, is_sum
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation

__all__ = ["norm_place_findings"]

BEFORE, OF_SUM, BEHIND = "before its sublayer", "behind the sum with it", "behind its sublayer and before the sum"


def norm_place_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A norm that takes what another norm of its block returned, and the two norms of a block at unlike places.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    calls = list(norm_calls(target, run.trace))
    yield from itertools.islice(_of_norms(calls, instances), 1)
    blocks: dict[str, list[NormCall]] = defaultdict(list)
    for each in calls:
        blocks[parent_of(each.path)].append(each)
    for path, siblings in blocks.items():
        if len(siblings) != 2 or not _holds_one_attention(path, instances) or _has_others(path, calls, instances):
            continue
        (here, total), (there, last) = (_place_of(run, each) for each in siblings)
        if here and there and here != there and total is not last:  # both may be of one sublayer, as in CCT
            one, other = siblings
            message = f"{one.path} stands {here}, and {other.path} {there}: two arrangements in one block"
            yield Finding("violation", "norms-alike", "block", message, one.first.location)
            return


def _of_norms(calls: Sequence[NormCall], instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Norms between the attentions that take what another norm of their own block returned."""
    first, last = instances[0].scores[0].operation.index, instances[-1].sums[-1].operation.index
    by_returned = {each.returned: each for each in calls}
    for call in calls:
        before = by_returned.get(call.given)
        if before is None or before.path == call.path or parent_of(before.path) != parent_of(call.path):
            continue
        if (
            _holds_one_attention(parent_of(call.path), instances)
            and before.first.index < last
            and call.last.index > first
        ):
            message = f"{call.path} takes what {before.path} returned, and nothing was added in between"
            yield Finding("violation", "norms-apart", "block", message, call.first.location)


def _holds_one_attention(path: str, instances: Sequence[AttentionInstance]) -> bool:
    """Whether one attention alone is computed inside a module, and not by that module itself."""
    inside = [each.module for each in instances if not path or each.module.startswith(f"{path}.")]
    return len(inside) == 1 and inside[0] != path


def _has_others(path: str, calls: Sequence[NormCall], instances: Sequence[AttentionInstance]) -> bool:
    """Whether a part of a block beside its attention has a norm of its own: the block's are not of its two sublayers.

    As those of the networks of a Conformer, whose block ends with one more.
    """
    attending = [each.module for each in instances]
    inside = [parent_of(each.path) for each in calls]
    return any(
        each != path
        and (not path or each.startswith(f"{path}."))
        and not any(one == each or one.startswith(f"{each}.") or each.startswith(f"{one}.") for one in attending)
        for each in inside
    )


def _place_of(run: TaggedRun, call: NormCall) -> tuple[str, Operation | None]:
    """Where a norm stands, by what it takes and what becomes of it, and the sum that it is of; empty of others."""
    trace, given = run.trace, call.given
    returned = trace.made_of([call.returned])
    sums = [each for each in trace.operations[call.last.index + 1 :] if is_joined(each, returned)]
    for total in sums:
        if any(each.storage == given for each in total.inputs):
            return ("", None) if any(each.storage == call.returned for each in total.inputs) else (BEFORE, total)
    makers = [each for each in trace.operations[: call.first.index] if not each.is_view or each.written]
    maker = next((each for each in reversed(makers) if given in {one.storage for one in each.outputs}), None)
    if maker is None:
        return "", None
    takers = [each for each in trace if any(one.storage == given for one in each.inputs) and not each.is_view]
    if is_sum(maker) and all(each.module == call.path for each in takers):
        return OF_SUM, maker
    is_alone = maker.index in {each.operation.index for each in run.products}
    is_added = any(each.storage == call.returned for total in sums[:1] for each in total.inputs)
    return (BEHIND, sums[0]) if is_alone and is_added else ("", None)
