"""What linear attention is divided by: the sum of a query's weights, shown by values that all grow by one.

The weights themselves are never computed: q (k^T v) is divided by q (sum of k). Where every value grows by one, the
numerator of a query grows by the sum of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.weights.later_division import raised
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.target import Invocation
from regard.check.trace.operation import COPIES, Operation, TensorRecord, Trace

__all__ = ["BOUNDS", "COPIES_OF_DENOMINATORS", "normalizer_findings", "values_places"]

BOUNDS = frozenset({"clamp", "clamp_min", "maximum", "max", "abs", "where"})
"""What keeps a denominator away from zero: where it changes it, as in retention, weights need not sum to 1."""
COPIES_OF_DENOMINATORS = COPIES | {"repeat", "expand", "_to_copy", "reciprocal"}
"""What leaves each denominator what it is, or makes a factor of it."""
SMALL = 1e-3
"""The largest number that is added to a denominator only to keep it away from zero."""
TOLERANCE = 1e-3
"""Of the largest denominator."""
MIN_QUERIES = 4
"""Of fewer, two free numbers explain any denominator."""


def normalizer_findings(
    invocation: Invocation, instances: list[AttentionInstance], *, are_some_hidden: bool = False
) -> Iterator[Finding]:
    """Whether a sum of values that is divided by a product of queries is divided by the sum of the query's weights.

    A constant besides, as one that avoids a division by zero, and a factor for all queries are no violation.

    Args:
        invocation: the call.
        instances: in which keys are multiplied by values before a query asks.
        are_some_hidden: whether a mask hides some keys: values that it sets to 0 do not grow.
    """
    for instance in instances:
        places = values_places(instance)
        given = raised(instance.run, places) if places else {}
        divisions = list(_divisions(instance))
        if not given or not divisions:
            continue
        base = instance.run.trace
        run = record_invocation(invocation, frozen=given)
        if run.error or not run.same_operations(base):
            continue
        by = _raised_by(places, base, run, are_some_hidden=are_some_hidden)
        if not by:
            continue
        for division, number, denominator in divisions:
            above = _growth(base, run, division.index, number)
            below = denominator.broadcast_to(above.shape)
            queries = torch.unique(torch.stack([above.flatten(), below.flatten()]), dim=1)
            if len(queries[0]) < MIN_QUERIES:
                continue
            times = next((each for each in _lengths(invocation) if _are_times(queries[0], queries[1], each * by)), 0)
            if times:
                message = f"the weights of a query sum to {times}: they are divided by their mean, and not by their sum"
                yield Finding("violation", "weights-sum-to-one", "weights", message, division.location)
                return
            if not _is_explained(*queries):
                at = int((queries[0] - queries[1]).abs().argmax())
                message = (
                    f"a query is divided by {float(queries[1, at]):.4g}, and its weights sum to "
                    f"{float(queries[0, at]):.4g} before that: it is not the sum of its weights over the keys"
                )
                yield Finding("violation", "weights-sum-to-one", "weights", message, division.location)
                return
            low, high = float(queries[1].min()), float(queries[1].max())
            if low < -TOLERANCE * high < 0 or high > -TOLERANCE * low > 0:
                message = (
                    f"the weights of one query sum to {low:.4g} and those of another to {high:.4g} before they are "
                    "divided by that: features of queries or keys are negative, and a sum may be zero"
                )
                yield Finding("violation", "weights-not-negative", "weights", message, division.location)
                return


def values_places(instance: AttentionInstance) -> list[tuple[int, int]]:
    """Where values are multiplied by keys: the factor whose channel the output keeps; empty where that is not known."""
    run, found = instance.run, list[tuple[int, int]]()
    for scores in instance.scores:
        first, count = run.first_tag.get(scores.operation.index, 0), scores.output.data.numel()
        for total in instance.sums:
            index, number = instance.weights_place(total)
            rows = run.tags.inputs[index][number].flatten()[instance.weight_terms(total)] - first
            rows = rows[((rows >= 0) & (rows < count)).all(-1)]
            if not len(rows) or rows.shape[-1] < 2:
                continue
            kept = [
                bool((terms[rows] == terms[rows[:, :1]]).all()) for terms in (scores.left_terms, scores.right_terms)
            ]
            if kept.count(True) != 1:
                return []
            found.append(scores.places[kept.index(True)])
    return found


def _divisions(instance: AttentionInstance) -> Iterator[tuple[Operation, int, Tensor]]:
    """Where weighted sums are divided by another product: the operation, which tensor of it they are, and by what."""
    run = instance.run
    sums, scores = ({each.operation.index for each in several} for several in (instance.sums, instance.scores))
    own = {each.operation.index for each in run.bilinear} - sums - scores
    for operation in run.trace:
        name = operation.name.rstrip("_")
        if name not in ("div", "mul") or len(operation.inputs) != 2:
            continue
        owners = [run.owner_of(tags) for tags in run.tags.inputs[operation.index]]
        for number in (0, 1) if name == "mul" else (0,):
            above, below = owners[number], owners[1 - number]
            if not above & sums or not below & own or below & (sums | scores) or _is_bounded(run, below & own):
                continue
            if not all(_asks_alike(instance, each) for each in run.bilinear if each.operation.index in below & own):
                continue
            factor = operation.inputs[1 - number]
            added = _added_to(run.trace, operation.index, factor)
            if name == "div":
                yield operation, number, factor.data.double() - added
            elif _is_inverse(run, below & own, factor.storage):
                yield operation, number, 1 / factor.data.double() - added


def _added_to(trace: Trace, index: int, factor: TensorRecord) -> float:
    """The small number that keeps a denominator, or what a factor is the inverse of, away from zero; 0 for none.

    Beside the sums of small features it would hide what else these are divided by.
    """
    storage, added = factor.storage, 0.0
    for operation in reversed(trace.operations[:index]):
        if not operation.inputs or not operation.outputs or operation.outputs[0].storage != storage:
            continue
        name = operation.name.rstrip("_")
        numbers = [each for each in operation.args if isinstance(each, int | float)]
        if name == "add" and len(operation.inputs) == 1 and len(numbers) == 1 and 0 < numbers[0] <= SMALL:
            added += float(numbers[0])
        elif not (operation.is_view or name in COPIES_OF_DENOMINATORS):
            break
        storage = operation.inputs[0].storage
    return added


def _asks_alike(instance: AttentionInstance, product: Contraction) -> bool:
    """Whether a denominator has the queries of the weighted sums, or these times a number.

    With rotary positions it may have those that are not rotated, as in Su et al. 2021, "RoFormer", section 3.3.
    """
    queries = torch.cat([_rows(instance.run, instance.values_place(e), instance.value_terms(e)) for e in instance.sums])
    queries = torch.unique(queries, dim=0)
    for place, terms in ((product.left_place, product.left_terms), (product.right_place, product.right_terms)):
        rows = torch.unique(_rows(instance.run, place, terms), dim=0)
        if rows.shape == queries.shape:
            ratio = float(rows.norm() / queries.norm())
            if float((rows - ratio * queries).abs().max()) <= TOLERANCE * float(rows.abs().max()):
                return True
    return False


def _rows(run: TaggedRun, place: tuple[int, int], terms: Tensor) -> Tensor:
    return run.trace.taken(place).data.flatten()[terms].double()


def _is_inverse(run: TaggedRun, products: set[int], storage: int) -> bool:
    """Whether what lies in some memory was made of something divided by some products."""
    inverses = set[int]()
    for operation in run.trace:
        name, owners = operation.name.rstrip("_"), [run.owner_of(tags) for tags in run.tags.inputs[operation.index]]
        divided = (name == "reciprocal" and owners[0]) or (name == "div" and len(owners) == 2 and owners[1])
        if name == "pow" and isinstance(operation.args[1], int | float) and operation.args[1] < 0:
            divided = owners[0]
        if divided and divided & products:
            inverses.add(operation.outputs[0].storage)
    return storage in run.trace.made_of(inverses)


def _is_bounded(run: TaggedRun, products: set[int]) -> bool:
    """Whether something keeps some products away from zero, and changes them."""
    for operation in run.trace:
        if operation.name.rstrip("_") not in BOUNDS or not operation.inputs:
            continue
        for record, tags in zip(operation.inputs, run.tags.inputs[operation.index], strict=True):
            result = operation.outputs[0].data
            if run.owner_of(tags) & products and (
                result.shape != record.data.shape or not torch.equal(result, record.data)
            ):
                return True
    return False


def _raised_by(places: list[tuple[int, int]], base: Trace, run: Trace, *, are_some_hidden: bool = False) -> float:
    """What all values grew by, 1 or what they are scaled by, as by 1/sqrt(n); 0 where it is not one number."""
    grown = torch.cat([_growth(base, run, *place).flatten() for place in places])
    if are_some_hidden:
        grown = grown[grown.abs() > TOLERANCE * TOLERANCE]
    is_one = (
        len(grown) > 0
        and float(grown.abs().min()) > TOLERANCE
        and float(grown.max() - grown.min()) < TOLERANCE * TOLERANCE
    )
    return float(grown.mean()) if is_one else 0.0


def _growth(base: Trace, run: Trace, index: int, number: int) -> Tensor:
    before, after = (each.operations[index].inputs[number].data.double() for each in (base, run))
    return after - before


def _lengths(invocation: Invocation) -> set[int]:
    """How many tokens its sequences have, where these are more than one."""
    sizes = {invocation.arguments[each.argument].shape[axis] for each in invocation.streams for axis in each.token_axes}
    return sizes - {1}


def _are_times(above: Tensor, below: Tensor, number: float) -> bool:
    """Whether sums of weights are a number times what they are divided by, but for what avoids a division by zero."""
    return float((above - number * below).abs().max()) <= TOLERANCE * float(above.abs().max())


def _is_explained(above: Tensor, below: Tensor) -> bool:
    """Whether denominators are the sums of the weights, times one number and plus one."""
    above, below = (each / each.abs().max().clamp(min=torch.finfo(each.dtype).tiny) for each in (above, below))
    design = torch.stack([above, torch.ones_like(above)], -1)
    fitted = torch.linalg.lstsq(design, below[:, None]).solution
    return float((design @ fitted - below[:, None]).abs().max()) <= TOLERANCE * float(below.abs().max())
