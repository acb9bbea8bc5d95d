"""Which channels the queries of linear attention meet: those of keys, so that channels of values come out."""

from __future__ import annotations

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import AttentionInstance

__all__ = ["met_channels"]


def met_channels(instance: AttentionInstance) -> Finding | None:
    """Queries that are multiplied by the channels of values, beside keys that come out; None of all others.

    Queries and keys are features that are never negative, as those of a softmax or of ELU + 1 (Katharopoulos et al.
    2020, "Transformers are RNNs"; Shen et al. 2021, "Efficient Attention"): values are vectors of any signs.

    Args:
        instance: linear attention, of which the sums over the tokens come first.
    """
    if len(instance.scores) != 1 or len(instance.sums) != 1:
        return None
    (context,), (total,) = instance.scores, instance.sums
    sides = _met_and_kept(instance, context, total)
    queries = instance.run.trace.taken(instance.values_place(total)).data
    if sides is None or _is_signed(queries):
        return None
    met, kept = sides
    if not _is_signed(met) or _is_signed(kept):
        return None
    message = (
        "the queries are multiplied by channels of what has both signs, which values are, and what comes out are "
        "channels of what is never negative, as the queries are: keys and values of the sums are exchanged"
    )
    return Finding("violation", "query-meets-keys", "weighted sum", message, total.operation.location)


def _met_and_kept(
    instance: AttentionInstance, context: Contraction, total: Contraction
) -> tuple[Tensor, Tensor] | None:
    """The factor of the sums over tokens whose channels the queries are multiplied by, and the one that comes out."""
    run = instance.run
    is_left = instance.weights_left
    operation, number = instance.weights_place(total)
    tags = run.tags.inputs[operation][number].flatten()[total.left_terms if is_left else total.right_terms]
    rows = tags - run.first_tag.get(context.operation.index, 0)
    rows = rows[((rows >= 0) & (rows < context.output.data.numel())).all(-1)]
    if not rows.numel() or rows.shape[-1] < 2:
        return None
    of_one = [bool((side[rows] == side[rows[:, :1]]).all()) for side in (context.left_terms, context.right_terms)]
    if of_one == [True, False]:
        return context.right.data, context.left.data
    return (context.left.data, context.right.data) if of_one == [False, True] else None


def _is_signed(data: Tensor) -> bool:
    return bool((data < 0).any()) and bool((data > 0).any())
