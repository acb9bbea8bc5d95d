"""Tokens inside a model: the rows of the projections, where what comes before has mixed the tokens of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.roles.influence import Influence
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import NONE, SEVERAL, owners
from regard.check.trace.operation import Operation, Trace

__all__ = [
    "are_rows_alike",
    "are_tokens_mixed",
    "are_tokens_summed",
    "of_tokens",
    "parts_made",
    "projections_of",
    "with_norm",
]

SAME = 1e-9
"""Of the largest number of a tensor; a smaller difference is rounding."""
NORMS_OF_MAPS = frozenset({"native_group_norm", "native_batch_norm"})
"""Of groups of channels, or of instances: of all places, as is usual with pictures."""


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
            # Learned channels beside those of a token, as of a query that stands beside each key, are of this token.
            of_some.append(not of_none[-1] and bool((found.token.reshape(terms.shape) == NONE).all(-1).any()))
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


def of_tokens(projection: Operation, instance: AttentionInstance) -> Operation:
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
    return [instance.run.trace.operations[index] for index in sorted(parts_made(instance))]


def parts_made(instance: AttentionInstance) -> dict[int, frozenset[str]]:
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
