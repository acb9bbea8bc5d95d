"""Kinds of attention whose scores are not of one query token and one key token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.agents import learned_agents
from regard.check.properties.branches import mixed_branches
from regard.check.properties.chunkwise import chunkwise
from regard.check.properties.finding import Finding
from regard.check.properties.flow_attention import flow_attention
from regard.check.properties.outputs.rows import row_findings
from regard.check.properties.query_channels import met_channels
from regard.check.properties.weights.inverted_weights import inverted_weights
from regard.check.roles.influence import Influence, influence_of
from regard.check.roles.instances import SOFTMAXES, AttentionInstance, TaggedRun
from regard.check.roles.local import with_norm
from regard.check.roles.local_influence import LocalInfluence, local_influences
from regard.check.roles.owners import NONE, SEVERAL, owners
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["kind_of", "kind_of_rows"]

SOLVERS = frozenset({"linalg_solve_triangular", "triangular_solve", "linalg_solve", "linalg_inv", "inverse"})
OVER_TOKENS = "keys are multiplied by values, or channels by channels, before a query asks: no scores of two tokens"
MIN_STEPS = 16
"""Weighted sums of one line, each of weights that the one before made: a triangular system that a loop solves."""


def kind_of(instances: list[AttentionInstance], invocation: Invocation, base: Trace) -> Finding | None:
    """The design of attentions that sum over tokens where others sum over channels, or what is wrong with it.

    None of all others.

    Args:
        instances: the attentions of a call.
        invocation: the call.
        base: its run.
    """
    influence = influence_of(invocation, base, keep=lambda source: source.kind == "token")
    if not influence.runs or not instances:
        return None
    agents = mixed_branches(instances) or learned_agents(instances) or inverted_weights(instances)
    streams = [each.argument for each in invocation.streams]
    over = partial(_is_each_over_tokens, invocation, base)
    agents = agents or flow_attention(instances, influence, streams, over)
    agents = agents or _delta_rule(instances, influence, invocation)
    if agents is not None:
        return agents
    sides = _sides(instances, influence, streams)
    line = instances[0].scores_location
    over_tokens = [_is_over_tokens(*each) for each in sides]
    if any(over_tokens) and not all(over_tokens):  # of layers, of which a later one reads what earlier ones mixed
        frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
        influence = influence_of(invocation, base, frozen=frozen, keep=lambda source: source.kind == "token")
        over_tokens = [_is_over_tokens(*each) for each in _sides(instances, influence, streams)]
        each_over = [[_is_over_tokens(*each) for each in _sides([one], influence, streams)] for one in instances]
        if (in_chunks := chunkwise(instances, each_over, invocation, base)) is not None:
            return in_chunks
        direct = [one for one, over in zip(instances, each_over, strict=True) if over and all(over)]
        others = [one for one in instances if one not in direct]
        if direct and others and _are_over_rows(others, invocation, base, frozen):
            instances, over_tokens = direct, [True]
    if all(over_tokens):
        swapped = _softmax_of_queries(instances, influence, streams)
        unnormalized = next((found for each in instances for found in _unnormalized(each, influence, streams)), None)
        if swapped is not None or unnormalized is not None:
            return swapped or unnormalized
        exchanged = next((found for each in instances if (found := met_channels(each)) is not None), None)
        if exchanged is not None:
            return exchanged
        scrambled = next((found for each in instances for found in _rows(each, influence, invocation)), None)
        if scrambled is not None:
            return scrambled
        return Finding("design", "linear-attention", "scores", OVER_TOKENS, line)
    width = _grid_width(invocation)
    factors = [(one, place) for one in instances for each in one.scores for place in each.places]
    if not width or any(_softmax_of_tokens(one, place, influence, streams) is not None for one, place in factors):
        return None
    if frozen := _earlier_softmaxes(instances):  # of the rows, each of which is multiplied by a weight of its own
        influence = influence_of(invocation, base, frozen=frozen, keep=lambda source: source.kind == "token")
        sides = _sides(instances, influence, streams)
    if any(all(_is_tied(*each, width, turned=turned) for each in sides) for turned in (False, True)):
        message = "tied rows: the scores of all rows are added, so that all rows have the same weights"
        return Finding("design", "tied-rows", "scores", message, line)
    return None


def kind_of_rows(instance: AttentionInstance, influence: Influence, streams: list[str]) -> Finding | None:
    """The design of an attention within a model that sums over the rows where others sum over channels; else None.

    Args:
        instance: an attention.
        influence: of the rows that its projections read, such as patches.
        streams: what these rows are of.
    """
    sides = _sides([instance], influence, streams)
    if not sides or not all(_is_over_tokens(*each) for each in sides):
        return None
    return Finding("design", "linear-attention", "scores", OVER_TOKENS, instance.scores_location, instance.module)


def _are_over_rows(
    instances: list[AttentionInstance], invocation: Invocation, base: Trace, frozen: Mapping[int, Tensor]
) -> bool:
    """Whether each of some attentions sums over the rows of its projections, which earlier layers mixed the tokens of.

    As of linear attention whose sums are held, and not what they are divided by.
    """
    held, free = (
        influence_of(invocation, base, frozen=each, keep=lambda source: source.kind == "sample")
        for each in (frozen, {})
    )
    inside = local_influences(invocation, instances, held, frozen, free)
    return all(
        isinstance(each, LocalInfluence) and kind_of_rows(one, each.influence, each.streams) is not None
        for one, each in zip(instances, inside, strict=True)
    )


def _is_each_over_tokens(
    invocation: Invocation, base: Trace, instance: AttentionInstance, frozen: Mapping[int, Tensor]
) -> bool:
    """Whether an attention sums over tokens where others sum over channels, with the results of operations held."""
    influence = influence_of(invocation, base, frozen=frozen, keep=lambda source: source.kind == "token")
    sides = _sides([instance], influence, [each.argument for each in invocation.streams])
    return all(_is_over_tokens(*each) for each in sides)


def _delta_rule(instances: list[AttentionInstance], influence: Influence, invocation: Invocation) -> Finding | None:
    """Linear attention that takes from each value what its key reads of earlier ones (DeltaNet); None of all others.

    Computed in chunks, it solves a triangular system of the products of keys with keys, by a solver or row by row. No
    token depends on a later one.
    """
    run = instances[0].run
    if any(each.softmaxes for each in instances) or _are_later_read(influence, invocation):
        return None
    products = {each.operation.index for each in run.bilinear}
    steps = Counter((each.module, each.sums_location) for each in instances)
    if max(steps.values()) < MIN_STEPS and not any(
        each.name in SOLVERS and any(products & run.owner_of(tags) for tags in run.tags.inputs[each.index])
        for each in run.trace
    ):
        return None
    message = "what its key reads of earlier values is taken from each value, without a softmax (delta rule)"
    return Finding("design", "delta-rule", "scores", message, instances[0].scores_location)


def _are_later_read(influence: Influence, invocation: Invocation) -> bool:
    """Whether an output depends on a later token than its own, or this cannot be told."""
    axes = {each.argument: each.token_axes for each in invocation.streams}
    for row in influence.sources("token"):
        source = influence.runs[row][0]
        depends = influence.returned(0)[row]
        if len(axes[source.stream]) != 1 or depends.ndim <= axes[source.stream][0]:
            return True
        axis = axes[source.stream][0]
        if bool(depends.narrow(axis, 0, min(source.index, depends.shape[axis])).any()):
            return True
    return False


def _tokens(instance: AttentionInstance, place: tuple[int, int], influence: Influence, streams: list[str]) -> Tensor:
    """The token of each number of a factor.

    One that was divided by a norm over the tokens, or is a softmax over them, is of the token of its projection, and so
    is one that a ReLU made 0; of a convolution of neighbours, of the place at which it stands. Where a softmax takes
    what was handed over and nothing was multiplied, that is its own projection.
    """
    run = instance.run
    found = owners(influence.of(*place).flatten(1), influence, streams).token
    tags = run.tags.inputs[place[0]][place[1]].flatten()
    for index in run.owner_of(tags):
        first = run.first_tag[index]
        operation = run.trace.operations[index]
        made_by = with_norm(operation, instance).index
        of_source = owners(influence.of(made_by, 0, output=True).flatten(1), influence, streams).token
        if operation.name == "convolution":
            made = operation.outputs[0].data
            places = torch.arange(made[0, 0].numel()).expand(*made.shape[:2], -1).flatten()
            of_source = torch.where(of_source == SEVERAL, places, of_source)
        mine = (tags >= first) & (tags < first + len(of_source)) & (found < 0)
        found = torch.where(mine, of_source[(tags - first).clamp(0, len(of_source) - 1)], found)
    before = run.trace.operations[: place[0]]
    is_bare = any(each.name in SOFTMAXES and not run.owner_of(run.tags.inputs[each.index][0]) for each in before)
    for operation in before if is_bare and bool((found < 0).any()) else ():
        for number, taken in enumerate(run.tags.inputs[operation.index]):
            if any(torch.equal(taken, each) for each in run.given.values()):  # nothing was done with it before
                of_given = owners(influence.of(operation.index, number).flatten(1), influence, streams).token
                first = int(taken.min())
                mine = (tags >= first) & (tags < first + len(of_given)) & (found < 0)
                found = torch.where(mine, of_given[(tags - first).clamp(0, len(of_given) - 1)], found)
    return found


def _rows(instance: AttentionInstance, influence: Influence, invocation: Invocation) -> Iterator[Finding]:
    """Whether a row that the next matrix reads is of one token."""
    streams, (stream, *_) = [each.argument for each in invocation.streams], invocation.streams
    samples = 1 if stream.batch_axis is None else invocation.arguments[stream.argument].shape[stream.batch_axis]
    places = {place for each in instance.sums for place in each.places}
    yield from row_findings(instance, {each: _tokens(instance, each, influence, streams) for each in places}, samples)


def _sides(instances: list[AttentionInstance], influence: Influence, streams: list[str]) -> list[tuple[Tensor, Tensor]]:
    """The tokens of both factors of each term, (scores, terms), of the scores of all attentions."""
    return [
        (
            _tokens(instance, each.left_place, influence, streams)[each.left_terms],
            _tokens(instance, each.right_place, influence, streams)[each.right_terms],
        )
        for instance in instances
        for each in instance.scores
    ]


def _is_over_tokens(left: Tensor, right: Tensor) -> bool:
    """Whether both factors of each term are of one token, and the terms of each score of several.

    Beside them may stand learned keys with learned values. A softmax over all keys makes such a key depend on tokens,
    but its value depends on none. So may a feature of keys that is the same number for all, as the 1 of an expansion
    of exp(q . k) in powers.
    """
    learned = (left < 0) & (right < 0) & ((left == NONE) | (right == NONE))
    of_both = (left >= 0) & (left == right)
    constant = ((left == NONE) & (right >= 0)) | ((right == NONE) & (left >= 0))
    beside = constant.all(-1, keepdim=True) & bool(of_both.all(-1).any())
    if left.shape[-1] < 2 or not bool((learned | of_both | beside).all()):
        return False
    token = torch.maximum(left, right)
    return not bool((learned | (token == token.amax(-1, keepdim=True))).all())


def _softmax_of_queries(instances: list[AttentionInstance], influence: Influence, streams: list[str]) -> Finding | None:
    """Linear attention in which a softmax over the tokens made the queries; None of all others."""
    for instance in instances:
        queries = {instance.values_place(each) for each in instance.sums}
        factors = {place for each in instance.scores for place in each.places}
        lines = [_softmax_over_tokens(instance, each, influence, streams) for each in queries]
        if None in lines:
            continue
        message = "queries are made by a softmax over the tokens: a query depends on all tokens"
        if not any(_softmax_over_tokens(instance, each, influence, streams) for each in factors):
            message += ", and, as keys are not, the weights of its keys do not sum to 1"
        return Finding("violation", "query-of-one-token", "projections", message, lines[0])
    return None


def _unnormalized(instance: AttentionInstance, influence: Influence, streams: list[str]) -> Iterator[Finding]:
    """Queries and keys that are each a softmax over their own channels, of all tokens, with nothing divided later."""
    run = instance.run
    products = {each.operation.index for each in (*instance.scores, *instance.sums)}
    if len(instance.scores) > 1 or any(
        run.owner_of(tags) & products
        for operation in run.trace
        if operation.name.rstrip("_") in ("mul", "div")
        for tags in run.tags.inputs[operation.index]
    ):
        return
    queries = [
        _softmax_of_channels(instance, instance.values_place(each), influence, streams) for each in instance.sums
    ]
    (scores,) = instance.scores
    sides = ((scores.left_place, scores.left_terms), (scores.right_place, scores.right_terms))
    keys = {
        found: terms
        for place, terms in sides
        if (found := _softmax_of_channels(instance, place, influence, streams)) is not None
    }
    if len(keys) != 1 or None in queries or set(queries) & set(keys):
        return
    ((softmax, terms),) = keys.items()
    message = (
        f"queries and keys are each a softmax over their own channels: the weights of a query do not sum to 1 over its "
        f"{terms.shape[-1]} keys, but grow with their number"
    )
    line = run.trace.operations[softmax].location
    yield Finding("violation", "keys-over-the-tokens", "weights", message, line)


def _softmax_of_channels(
    instance: AttentionInstance, place: tuple[int, int], influence: Influence, streams: list[str]
) -> int | None:
    """The index of the softmax over a token's own channels whose results a factor has; None where it has others.

    Learned keys may stand beside those of tokens.
    """
    token = owners(influence.of(*place).flatten(1), influence, streams).token
    is_of_one = bool(((token >= 0) | (token == NONE)).all()) and bool((token >= 0).any())
    return _softmax_of(instance.run, place) if is_of_one else None


def _softmax_of_tokens(
    instance: AttentionInstance, place: tuple[int, int], influence: Influence, streams: list[str]
) -> int | None:
    """The same of a softmax over several tokens."""
    of_several = (owners(influence.of(*place).flatten(1), influence, streams).token == SEVERAL).any()
    return _softmax_of(instance.run, place) if bool(of_several) else None


def _softmax_of(run: TaggedRun, place: tuple[int, int]) -> int | None:
    """The index of the softmax whose results a factor has, as they are or times one number."""
    tags, data = run.tags.inputs[place[0]][place[1]], run.trace.taken(place).data
    for operation in run.trace.operations[: place[0]]:
        if operation.name not in SOFTMAXES:
            continue
        results = torch.full((run.num_tags + 1,), torch.nan, dtype=torch.float64)
        results[run.tags.outputs[operation.index][0].flatten()] = operation.outputs[0].data.flatten().double()
        known = tags.flatten() > 0  # of learned numbers nothing is followed
        before, after = results[tags.flatten()][known], data.flatten().double()[known]
        times = float(after.sum() / before.sum())
        if len(before) and torch.allclose(after, before * times, rtol=1e-9, atol=0.0):
            return operation.index
    return None


def _softmax_over_tokens(
    instance: AttentionInstance, place: tuple[int, int], influence: Influence, streams: list[str]
) -> CodeLocation | None:
    """The line of the softmax over tokens that a factor is the result of; None where it is of none."""
    run = instance.run
    if not bool((owners(influence.of(*place).flatten(1), influence, streams).token == SEVERAL).all()):
        return None
    tags = run.tags.inputs[place[0]][place[1]]
    for operation in run.trace.operations[: place[0]]:
        if operation.name in SOFTMAXES and bool(torch.isin(tags, run.tags.outputs[operation.index][0]).all()):
            return operation.location
    return None


def _grid_width(invocation: Invocation) -> int:
    """How many tokens a row of a grid has; 0 where the tokens are no grid, or of grids of several sizes."""
    sizes = {
        tuple(invocation.arguments[each.argument].shape[axis] for axis in each.token_axes)
        for each in invocation.streams
    }
    size = sizes.pop() if len(sizes) == 1 else ()
    return int(size[1]) if len(size) == 2 else 0


def _earlier_softmaxes(instances: list[AttentionInstance]) -> dict[int, Tensor]:
    """The results of the softmaxes before the scores, by the indices of these."""
    first = min((each.operation.index for one in instances for each in one.scores), default=0)
    earlier = [each for each in instances[0].run.trace.operations[:first] if each.name in SOFTMAXES]
    return {each.index: each.outputs[0].data for each in earlier}


def _is_tied(left: Tensor, right: Tensor, width: int, *, turned: bool) -> bool:
    """Whether each score is of two columns, summed over the rows; of two rows where the grid is turned."""
    if not bool((left >= 0).all() & (right >= 0).all()):
        return False
    (rows, columns), (other_rows, other_columns) = (
        (each % width, each // width) if turned else (each // width, each % width) for each in (left, right)
    )
    return (
        torch.equal(rows, other_rows)
        and bool((rows != rows[:, :1]).any(-1).all())
        and bool((columns == columns[:, :1]).all())
        and bool((other_columns == other_columns[:, :1]).all())
        and bool((columns != other_columns).any())
    )
