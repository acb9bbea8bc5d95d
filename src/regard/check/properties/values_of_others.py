"""What is added to the values of an attention: values of another one, and not what that one takes for keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import AttentionInstance

__all__ = ["value_residual_findings"]


def value_residual_findings(several: Sequence[Evidence]) -> Iterator[Finding]:
    """Keys of one attention that are added to the values of another (value residuals, as in ResFormer).

    Args:
        several: the attentions of a run.
    """
    for mine, other in itertools.permutations(several, 2):
        instance, values = mine.base.instance, _values(other.base.instance)
        keys = _keys(other)
        added = _added_to(instance, keys[~torch.isin(keys, values)])  # one vector may be key and value
        if added:
            message = f"{added} numbers of its values have keys of another attention added to them, and not its values"
            yield Finding("violation", "value-residual", "values", message, instance.sums_location, instance.module)
            return


def _keys(evidence: Evidence) -> Tensor:
    """The tags of the keys of an attention."""
    tags, left = evidence.base.instance.run.tags.inputs, not evidence.base.layout.queries_left
    places = [each.left_place if left else each.right_place for each in evidence.base.instance.scores]
    return _tagged(torch.cat([tags[operation][number].flatten() for operation, number in places]))


def _values(instance: AttentionInstance) -> Tensor:
    """The tags of its values."""
    places = [instance.values_place(each) for each in instance.sums]
    return _tagged(torch.cat([instance.run.tags.inputs[operation][number].flatten() for operation, number in places]))


def _tagged(tags: Tensor) -> Tensor:
    return tags[tags > 0]


def _added_to(instance: AttentionInstance, keys: Tensor) -> int:
    """How many values are a sum with one of some keys, and with something else."""
    count, values = 0, _values(instance)
    for kept, lost in instance.run.tags.sums:
        mine = torch.isin(kept, values)
        count += int((mine & (torch.isin(lost, keys) != torch.isin(kept, keys))).sum())
    return count
