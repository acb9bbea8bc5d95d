"""Tokens inside a model: the rows of the projections, where what comes before has mixed the tokens of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.check.roles.influence import Influence, Source, influence_of, record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import NONE, SEVERAL, owners
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["are_rows_alike", "are_tokens_mixed", "are_tokens_summed", "local_influence", "projections_of", "with_norm"]

SAME = 1e-9
"""Of the largest number of a tensor; a smaller difference is rounding."""
NORMS_OF_MAPS = frozenset({"native_group_norm", "native_batch_norm"})
"""Of groups of channels, or of instances: of all places, as is usual with pictures."""
OUTER_ORDERS = ("samples first", "tokens first")
"""Of the rows of a projection: those in which its samples are the first or the last axis."""
TOO_MANY_ROWS = "the rows of its projections are too many to be changed one at a time"
MAX_RUNS = 160
"""Changed runs for one attention."""


def are_tokens_mixed(instance: AttentionInstance, influence: Influence, streams: list[str], samples: Influence) -> bool:
    """Whether single numbers of queries or keys depend on several tokens of the input: patches, means, convolutions.

    Or all of them on none, where what earlier attentions read is held, as in a decoder of learned queries; or all keys,
    or queries, where these are what earlier attentions read, as the induced points of a set that its tokens ask; or all
    queries on none and some of the keys, as learned latents that ask the tokens and themselves.

    Numbers that each depend on one token, in rows that hold several, are another matter: rows that were cut wrongly.

    Args:
        instance: an attention.
        influence: of the tokens, with the weighted sums of all attentions held.
        streams: the arguments that hold tokens.
        samples: the influence of the samples where these are not held.
    """
    if not influence.sources("token"):
        return True
    of_none: list[bool] = []
    of_some: list[bool] = []
    of_read: list[bool] = []
    for product in instance.scores:
        for place, terms in ((product.left_place, product.left_terms), (product.right_place, product.right_terms)):
            found = owners(influence.of(*place).flatten(1)[:, terms.flatten()], influence, streams)
            if bool((found.token == SEVERAL).any()) or _is_shifted(found.token.reshape(terms.shape)):
                return True
            of_none.append(bool((found.token == NONE).all()))
            of_some.append(not of_none[-1] and bool((found.token == NONE).any()))
            of_read.append(of_none[-1] and bool(samples.of(*place).any()))
    for asking, asked in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        if all(of_read[asking]) or (all(of_none[asking]) and all(of_some[asked])):
            return True
    return all(of_none)


def are_tokens_summed(instance: AttentionInstance, influence: Influence, streams: list[str]) -> bool:
    """Whether a product with one matrix for all tokens makes the queries or keys: its rows are no tokens."""
    made = {each.index for each in projections_of(instance)}
    for product in instance.run.products:
        if product.operation.index not in made:
            continue
        for place, terms in ((product.left_place, product.left_terms), (product.right_place, product.right_terms)):
            token = owners(influence.of(*place).flatten(1), influence, streams).token[terms]
            if bool((token >= 0).all()) and bool((token != token[:, :1]).any(-1).all()):
                return True
    return False


def _is_shifted(tokens: Tensor) -> bool:
    """Whether each row is of a token and the one before it: channels that are shifted by one token on purpose."""
    if not bool((tokens >= 0).any()):
        return False
    high = tokens.amax(-1)
    low = torch.where(tokens >= 0, tokens, high[:, None]).amin(-1)
    return bool((high - low <= 1).all()) and bool((high != low).any()) and len(set(high.tolist())) > 2


def local_influence(
    invocation: Invocation,
    instance: AttentionInstance,
    influence: Influence,
    frozen: Mapping[int, Tensor],
    samples: Influence,
) -> tuple[Influence, list[str]] | None:
    """The influence of each row of the projections of queries, keys and values, as if it were a token of the input.

    Args:
        invocation: the call.
        instance: an attention.
        influence: of the samples of the input.
        frozen: the weighted sums of all attentions, by the index of their operation.
        samples: the influence of the samples where these are not held.

    Returns:
        It, and the names of the projections, as those of streams; None where there are none. Token ids whose vectors no
        projection makes into queries or keys are a stream of their own.

    Raises:
        ValueError: there are too many rows.
    """
    base = influence.base
    projections = [*dict.fromkeys(_of_tokens(each, instance) for each in projections_of(instance))]
    if not projections:
        return None
    # What a projection makes of another one's rows is of its own: keys that a convolution makes of projected tokens.
    normed = [with_norm(each, instance) for each in projections]
    held = {**frozen, **{each.index: each.outputs[0].data for each in (*projections, *normed)}}
    again = _computed_again(projections, instance)
    projections = [each for each in projections if each.index not in again]
    normed = [with_norm(each, instance) for each in projections]
    several = [_rows(each, influence, samples) for each in projections]
    known = {order for orders in several if len(orders) == 1 for order in orders}
    if not all(several):
        return None
    known = known or _of_one_sample(instance, projections, several)
    rows = [orders[min(orders, key=lambda order: order not in known)] for orders in several]
    if sum(int(labels.max()) + 1 for each in rows for labels in each) > MAX_RUNS:
        raise ValueError(TOO_MANY_ROWS)
    ids = {each.argument for each in invocation.streams if each.role == "ids"} & _given(instance, influence)
    found = influence_of(invocation, base, frozen=held, keep=lambda source: source.stream in ids)
    names = []
    for operation, norm, (tokens, of_samples) in zip(projections, normed, rows, strict=True):
        name = f"projection {operation.index}"
        names.append(name)
        output = norm.outputs[0].data
        generator = torch.Generator().manual_seed(operation.index)
        fresh = output + torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        for kind, labels in (("sample", of_samples), ("token", tokens)):
            for index in range(int(labels.max()) + 1):
                if len(found.runs) >= MAX_RUNS:
                    raise ValueError(TOO_MANY_ROWS)
                moved = torch.where((labels == index).reshape(output.shape), fresh, output)
                same = {number: moved for number, first in again.items() if first == operation.index}
                run = record_invocation(invocation, frozen={**held, norm.index: moved, **same})
                if run.same_operations(base):
                    found.runs.append((Source(name, kind, index), run))
    return found, [*names, *sorted(ids)]


def _of_one_sample(
    instance: AttentionInstance,
    projections: Sequence[Operation],
    several: Sequence[Mapping[str, tuple[Tensor, Tensor]]],
) -> set[str]:
    """The first order of rows in which each query is multiplied by keys of its own sample; none where there is none.

    As of learned queries, which depend on no sample, beside one token of each.
    """
    run = instance.run
    for order in dict.fromkeys(order for orders in several for order in orders):
        samples = torch.full((run.num_tags + 1,), NONE)
        for each, orders in zip(projections, several, strict=True):
            if order in orders and each.index in run.first_tag:
                first, labels = run.first_tag[each.index], orders[order][1].flatten()
                samples[first : first + len(labels)] = labels
        pairs = [
            [
                samples[run.tags.inputs[place[0]][place[1]].flatten()[terms]].amax(-1)
                for place, terms in ((each.left_place, each.left_terms), (each.right_place, each.right_terms))
            ]
            for each in instance.scores
        ]
        if all(bool((one == other)[(one >= 0) & (other >= 0)].all()) for one, other in pairs):
            return {order}
    return set()


def _computed_again(projections: Sequence[Operation], instance: AttentionInstance) -> dict[int, int]:
    """Projections that make the same rows as one before, and the index of that one: its rows are theirs.

    A decoder that takes one step after the other may project the same encoded tokens in each of them, by one line.
    """
    found: dict[int, int] = {}
    first: list[tuple[Operation, frozenset[str]]] = []
    parts = _parts_made(instance)
    for each in projections:
        of_parts = parts.get(each.index, frozenset())
        same = next((one for one, others in first if others == of_parts and _are_same(one, each)), None)
        if same is None or with_norm(same, instance) is not same or with_norm(each, instance) is not each:
            first.append((each, of_parts))
        else:
            found[each.index] = same.index
    return found


def _are_same(one: Operation, other: Operation) -> bool:
    """Whether a line has computed the same twice."""
    return (
        one.name == other.name
        and one.location is not None
        and one.location == other.location
        and len(one.inputs) == len(other.inputs)
        and all(torch.equal(mine.data, theirs.data) for mine, theirs in zip(one.inputs, other.inputs, strict=True))
        and torch.equal(one.outputs[0].data, other.outputs[0].data)
    )


def with_norm(projection: Operation, instance: AttentionInstance) -> Operation:
    """The last norm of all places of a map that takes what a convolution made, number by number; or the convolution.

    Its rows are of several places each, and of one in all else: what it divides by is held.
    """
    run, found = instance.run, projection
    if projection.name != "convolution":
        return found
    first = run.first_tag[projection.index]
    made = torch.arange(first, first + projection.outputs[0].data.numel())
    for each in run.trace.operations[projection.index + 1 : min(each.operation.index for each in instance.scores)]:
        if _is_of_a_map(each) and torch.equal(run.tags.inputs[each.index][0].flatten(), made):
            found = each
    return found


def _is_of_a_map(operation: Operation) -> bool:
    """Whether it is a norm of maps: of groups of channels or instances, or of all channels at all places."""
    if operation.name != "native_layer_norm":
        return operation.name in NORMS_OF_MAPS
    return any(each.learned and len(each.shape) > 1 for each in operation.inputs[1:])


def _of_tokens(projection: Operation, instance: AttentionInstance) -> Operation:
    """The projection whose rows another one sums with a matrix over the tokens (Linformer); or what was handed over."""
    run = instance.run
    for product in run.products:
        if product.operation.index != projection.index:
            continue
        for place, terms, matrix in (
            (product.left_place, product.left_terms, product.right),
            (product.right_place, product.right_terms, product.left),
        ):
            tags = run.tags.inputs[place[0]][place[1]].flatten()[terms]
            made = run.owner_of(tags)
            if not matrix.learned or len(made) != 1 or not bool((tags > 0).all()) or terms.shape[-1] < 2:
                continue
            before = run.trace.operations[made.pop()]
            width = before.outputs[0].shape[-1]
            row, column = (each.sort(-1).values for each in _place_of(tags - run.first_tag[before.index], width))
            is_over_rows = bool((column == column[:, :1]).all()) and bool((row[:, 1:] != row[:, :-1]).all())
            if is_over_rows and any(each.learned for each in before.inputs) and before.name != "convolution":
                return before
    return projection


def _place_of(numbers: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Of numbers of a tensor, flat, their rows and their columns."""
    return numbers // width, numbers % width


def _given(instance: AttentionInstance, influence: Influence) -> set[str]:
    """The streams that queries or keys are of without a projection."""
    run = instance.run
    places = [place for each in instance.scores for place in each.places]
    return {
        source.stream
        for operation, number in places
        if not run.owner_of(run.tags.inputs[operation][number])
        for (source, _), depends in zip(influence.runs, influence.of(operation, number), strict=True)
        if bool(depends.any())
    }


def are_rows_alike(instance: AttentionInstance, trace: Trace, samples: int) -> bool:
    """Whether all rows of each projection are the same in a run whose tokens are all alike, one in each sample.

    What comes before, as a norm over all tokens, tells their positions apart no more then than the tokens do.
    """
    for operation in projections_of(instance):
        made = trace.operations[operation.index].outputs[0].data
        rows = made.movedim(1 if operation.name == "convolution" else -1, -1).flatten(0, -2)
        near = SAME * float(rows.abs().max())
        for _ in range(samples):
            rows = rows[((rows - rows[:1]).abs() > near).any(-1)]
        if len(rows) or not near:
            return False
    return True


def projections_of(instance: AttentionInstance) -> list[Operation]:
    """What makes queries, keys and values: products and convolutions."""
    return [instance.run.trace.operations[index] for index in sorted(_parts_made(instance))]


def _parts_made(instance: AttentionInstance) -> dict[int, frozenset[str]]:
    """Which factors of scores, or values, each projection makes, by its index."""
    run = instance.run
    places = [("left", each.left_place) for each in instance.scores]
    places += [("right", each.right_place) for each in instance.scores]
    places += [("values", instance.values_place(each)) for each in instance.sums]
    found: dict[int, frozenset[str]] = {}
    for part, (operation, number) in places:
        for index in run.owner_of(run.tags.inputs[operation][number]):
            found[index] = found.get(index, frozenset()) | {part}
    return found


def _rows(operation: Operation, influence: Influence, unheld: Influence) -> dict[str, tuple[Tensor, Tensor]]:
    """For each number of a projection's output its token and its sample, in each order of rows that may be meant.

    Rows of learned tokens depend on no sample, and may be in any: those of the other projections tell in which.
    """
    output = operation.outputs[0].data
    axis = 1 if operation.name == "convolution" else output.ndim - 1
    if output.ndim < 2:
        return {}
    shape = [1 if at == axis else size for at, size in enumerate(output.shape)]
    numbers = torch.arange(output.numel() // output.shape[axis]).reshape(shape).expand(output.shape)
    held, free = (each.of(operation.index, 0, output=True)[each.sources("sample")] for each in (influence, unheld))
    influence, depends = (influence, held) if bool(held.any()) else (unheld, free)  # what earlier attentions read
    labels = torch.tensor([influence.runs[row][0].index for row in influence.sources("sample")], dtype=torch.long)
    count = int(labels.max()) + 1 if len(labels) else 1
    samples = torch.full(output.shape, NONE)
    for label in range(count):
        touched = depends[labels == label].any(0).any(axis, keepdim=True).expand(output.shape)
        samples = torch.where(touched, torch.where(samples == NONE, label, SEVERAL), samples)
    known = samples >= 0
    per_sample = (int(numbers.max()) + 1) // count
    orders = {"samples first": numbers // max(1, per_sample), "tokens first": numbers % count}
    beside_each_other: dict[str, int] = {}
    for beside in range(2, per_sample):  # several sequences of each sample, as of its channels, tokens first
        if per_sample % beside == 0:
            order = f"{beside} sequences of a sample beside each other"
            orders[order], beside_each_other[order] = numbers // beside % count, beside
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for order, guess in orders.items():
        if (found and order not in OUTER_ORDERS) or not bool((samples == guess)[known].all()):
            continue
        tokens = torch.zeros_like(numbers)
        for sample in sorted(set(guess.flatten().tolist())):
            mine = numbers[guess == sample]
            tokens[guess == sample] = torch.searchsorted(torch.tensor(sorted(set(mine.tolist()))), mine)
        if (several := beside_each_other.get(order)) is not None:  # one sequence after the other, as where they are cut
            tokens = tokens % several * (per_sample // several) + tokens // several
        found[order] = (tokens, guess)
    return found
