"""What is added to the values of an attention: values of another one, and not what that one takes for keys."""

from __future__ import annotations

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
    for mine in several:
        instance = mine.base.instance
        sums = list(_sums(instance))
        for other in several if sums else ():
            keys = _keys(other)
            keys = keys[~torch.isin(keys, _values(other.base.instance))]  # one vector may be key and value
            added = sum(int((torch.isin(lost, keys) != torch.isin(kept, keys)).sum()) for kept, lost in sums)
            if added and other is not mine:
                message = (
                    f"{added} numbers of its values have keys of another attention added to them, and not its values"
                )
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


def _sums(instance: AttentionInstance) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of tags whose sums are its values."""
    values = _values(instance)
    for kept, lost in instance.run.tags.sums:
        mine = torch.isin(kept, values)
        if bool(mine.any()):
            yield kept[mine], lost[mine]
