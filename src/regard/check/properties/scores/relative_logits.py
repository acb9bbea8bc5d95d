"""Queries, or keys, times learned vectors that are added to the scores: one vector for each distance."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.scores.distances_of_lengths import distance_of_length
from regard.check.properties.scores.pair_biases import pair_bias
from regard.check.properties.scores.sinusoid_rows import other_row_of_sinusoids
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import TaggedRun
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation

__all__ = ["relative_logit_findings"]

SAME = 1e-8
_RELATIVE = re.compile(
    r"(?<!non-)(?<!no )(?:relative|(?<![a-z])rel)(?=[_ -]?(?:pos|shift|enc|dist|emb|attn|bias|k\b|v\b))"
    r"|Transformer-?XL",
    re.I,
)
_ABSOLUTE = re.compile(r"absolute|(?<![a-z])abs(?=[_ -]?(?:pos|emb|enc))", re.I)
"""What the code says of its positions; both, where it has both."""
_ONE_SIDED = re.compile(r"causal|uni-?directional|bi-?directional|\bone[- ]sided|\bfuture\b|\bahead\b", re.I)
"""In a code that may mean tokens on one side to share what they add."""
LEAST_MAP = 9
"""Tokens of a map of features by which it is told from a sequence: with few of them many distances are of one pair."""
FARTHEST = 2
"""Distances of a side by which it is told that these have vectors of their own."""


def relative_logit_findings(
    invocation: Invocation, evidence: Evidence, may_hide_later: Callable[[], bool]
) -> Iterator[Finding]:
    """Whether these vectors depend on the distance of query and key alone, shown by tokens that are all alike.

    Args:
        invocation: the call.
        evidence: of the attention.
        may_hide_later: whether a mask that the call takes can hide later keys.
    """
    run = evidence.base.instance.run
    learned: list[Contraction] = [
        each for each in evidence.base.instance.added if not run.depends >= {each.left_place, each.right_place}
    ]
    if not learned or not bool((evidence.base.weight > ZERO_WEIGHT).any()):
        return  # of scores that are all hidden no distance is told
    if (of_pairs := pair_bias(invocation, evidence)) is not None:
        yield of_pairs
        return
    line = learned[0].operation.location
    stray = _of_another_query(evidence.base, learned)
    is_of_sequence = len(invocation.streams[0].token_axes) == 1
    if is_of_sequence and (other := other_row_of_sinusoids(evidence.base, learned)) is not None:
        yield other
        return
    if stray is not None and _is_of_later_keys(evidence.base, learned) and may_hide_later():
        earlier = evidence.base.key.token <= evidence.base.query.token
        beside = _beside_the_padding(evidence.base, learned, earlier) if is_of_sequence else None
        if beside is not None:
            yield beside
            return
        message = f"{stray.message}, a later one: it is right where a causal mask hides those, and none was handed over"
        yield Finding("open", "positions-open", "positions", message, line)
        return
    if stray is None and is_of_sequence:
        stray = _beside_the_padding(evidence.base, learned)
    if stray is not None:
        yield stray
        return
    table = evidence.equal
    if table is None:
        message = "learned vectors are added to the scores: not judged, as tokens cannot be made alike"
        yield Finding("open", "positions-open", "positions", message, line)
        return
    added = table.product - (table.q * table.k).sum(-1)
    live = evidence.base.weight > ZERO_WEIGHT
    places = [_places(invocation, owner.token) for owner in (table.query, table.key)]
    heads = [table.query.sample, table.head]
    if not _is_same(added[live], torch.stack([*heads, *(places[0] - places[1]).unbind(-1)], -1)[live]):
        tokens = [owner.token[live] for owner in (table.query, table.key)]
        if is_of_sequence and _is_by_distance_in_a_map(added[live], torch.stack(heads, -1)[live], *tokens):
            message = "queries or keys times a learned vector of their distance in a map are added to the scores"
            yield Finding("design", "relative-logits", "positions", message, line)
            return
        queries, keys = (
            _is_same(added[live], torch.stack([*heads, owner.token], -1)[live]) for owner in (table.query, table.key)
        )
        sides = {int(each) + 1 for each in places[1].amax(0)}
        distances = {2 * each - 1 for each in sides} - sides  # of 3 rows and 5 columns: 5 vectors are one a column
        if (queries or keys) and not any(_is_cut_from_distances(run, each, distances) for each in learned):
            of_what, others = ("keys", "queries") if keys else ("queries", "keys")
            if any(_is_of_given(invocation, evidence.base, each, of_pairs=False) for each in learned):
                message = f"{others} times a vector of the place of {of_what}, handed over, are added to the scores"
                yield Finding("design", "given-logits", "positions", message, line)
                return
            if _RELATIVE.search(evidence.code) and not _ABSOLUTE.search(evidence.code):
                message = (
                    f"{others} times a learned vector of the place of {of_what} alone are added to the scores, where "
                    "the code speaks of relative positions: at one distance it is another vector for each of them"
                )
                yield Finding("violation", "positions-relative", "positions", message, line)
                return
            message = f"{others} times a learned vector of the place of {of_what} are added to the scores"
            yield Finding("design", "absolute-logits", "positions", message, line)
            return
        if any(_is_of_given(invocation, evidence.base, each, of_pairs=True) for each in learned):
            message = "queries times a vector for each two tokens, which is handed over, are added to the scores"
            yield Finding("design", "given-logits", "positions", message, line)
            return
        message = "a learned vector is added to the scores by the places of query and key, not by their distance"
        yield Finding("violation", "positions-relative", "positions", message, line)
        return
    alike = _alike_on_one_side(added[live], table, live) if is_of_sequence else ""
    if alike and not _ONE_SIDED.search(evidence.code) and not evidence.hides_on_demand and not may_hide_later():
        message = (
            f"a query sees tokens on both sides, and all that come {alike} have the learned vector of its own place, "
            "whatever their distance: on the other side each distance has another one"
        )
        yield Finding("violation", "distances-on-both-sides", "positions", message, line)
        return
    if (of_length := distance_of_length(invocation, evidence, learned, line)) is not None:
        yield of_length
        return
    message = "queries or keys times a learned vector of their distance are added to the scores (Transformer-XL)"
    yield Finding("design", "relative-logits", "positions", message, line)


def _is_by_distance_in_a_map(added: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> bool:
    """Whether tokens are those of a map, row by row, and what is added depends on the distance along both of its sides.

    A token may stand before them, as one that is read out: it has distances of its own.

    Args:
        added: (scores), by learned vectors.
        heads: (scores, ...): what else may tell scores apart.
        queries: (scores): the token of each.
        keys: the same.
    """
    count = int(torch.maximum(queries, keys).max()) + 1
    for before in (0, 1):
        places = [each - before for each in (queries, keys)]
        for columns in range(2, (count - before) // 2 + 1):
            if (count - before) % columns or count - before < LEAST_MAP:
                continue
            rows, sides = ([each // columns for each in places], [each % columns for each in places])
            apart = torch.stack([rows[0] - rows[1], sides[0] - sides[1]], -1)
            beside = torch.stack([each < 0 for each in places], -1)
            groups = torch.cat([heads, beside, apart.where(~beside.any(-1, keepdim=True), 0)], -1)
            if _is_same(added, groups):
                return True
    return False


def _alike_on_one_side(added: Tensor, table: AttentionTable, live: Tensor) -> str:
    """The side, "later" or "before", on which all distances have the numbers of none; empty where there is no such one.

    Args:
        added: (live scores): what learned vectors add, the same for each two pairs of one distance.
        table: of alike tokens.
        live: which scores have a weight.
    """
    owner = torch.stack([table.query.sample, table.head], -1)[live]
    group = torch.unique(owner, dim=0, return_inverse=True)[1]
    distance = (table.query.token - table.key.token)[live]
    numbers = dict[int, Tensor]()
    for each in torch.unique(distance).tolist():
        of_distance = torch.full((int(group.max()) + 1,), torch.nan, dtype=torch.float64)
        mine = distance == each
        of_distance[group[mine]] = added[mine].double()
        numbers[each] = of_distance
    reach = min(max(numbers), -min(numbers))
    if reach < FARTHEST or 0 not in numbers:
        return ""

    def are_same(one: int, other: int) -> bool:
        return torch.allclose(numbers[one], numbers[other], rtol=SAME, atol=SAME)

    for sign, side in ((-1, "later"), (1, "before")):
        alike = all(are_same(0, each) for each in numbers if each * sign > 0)
        others = [0, *(-sign * each for each in range(1, FARTHEST + 1))]
        if alike and not any(are_same(one, two) for one, two in itertools.combinations(others, 2)):
            return side
    return ""


def _is_of_given(invocation: Invocation, table: AttentionTable, product: Contraction, *, of_pairs: bool) -> bool:
    """Whether the vectors are made of what the call was given beside its sequences: which they are is the caller's.

    Args:
        invocation: the call.
        table: of its scores.
        product: that of the vectors.
        of_pairs: whether there is to be one for each query and key.
    """
    run, streams = table.instance.run, {each.argument for each in invocation.streams}
    queries, keys = (int(each.token.max()) + 1 for each in (table.query, table.key))
    given = tree_leaves([value for name, value in invocation.arguments.items() if name not in streams])
    tensors = [each for each in given if isinstance(each, Tensor) and each.ndim > 1]
    if of_pairs:  # vectors, or ids that they are looked up by
        axes = ((each, each.shape[:-1] if each.is_floating_point() else each.shape) for each in tensors)
        tensors = [each for each, sizes in axes if (queries, keys) in itertools.pairwise(sizes)]
    else:
        tensors = [each for each in tensors if each.is_floating_point()]
    index, number = product.right_place if product.left_place in run.depends else product.left_place
    behind = {run.trace.operations[index].inputs[number].storage}
    for operation in reversed(run.trace.operations[: index + 1]) if tensors else ():
        if operation.index < index and not {each.storage for each in (*operation.outputs, *operation.written)} & behind:
            continue
        taken = operation.inputs if operation.index < index else (operation.inputs[number],)
        behind.update(each.storage for each in taken)
        if any(each.shape == one.shape and torch.equal(each.data, one) for each in taken for one in tensors):
            return True
    return False


def _is_of_later_keys(table: AttentionTable, learned: list[Contraction]) -> bool:
    """Whether all stray products are of later keys, which a causal mask that may be handed over is to hide.

    Huang et al. 2018, "Music Transformer", section 3.4.1: what the skewing leaves above the diagonal is masked. A mask
    of padding does not hide it.
    """
    return _of_another_query(table, learned, table.key.token <= table.query.token) is None


def _of_another_query(table: AttentionTable, learned: list[Contraction], among: Tensor | None = None) -> Finding | None:
    """A score to which the product of another token's query, or key, is added; `among` (scores) says of which."""
    run, rows = table.instance.run, table.rows_of_tags()
    live = table.weight > ZERO_WEIGHT
    live = live if among is None else live & among
    for product in learned:
        first, count = run.first_tag[product.operation.index], product.output.data.numel()
        left = product.left_place in run.depends
        place, terms = (product.left_place, product.left_terms) if left else (product.right_place, product.right_terms)
        made_of = run.tags.inputs[place[0]][place[1]].flatten()[terms]
        owners = [_owners_of_tags(table, queries=queries)[made_of].amax(-1) for queries in (True, False)]
        for kept, lost in run.tags.sums:
            mine = (lost >= first) & (lost < first + count) & (rows[kept] >= 0)
            scores, elements = rows[kept[mine]], lost[mine] - first
            query, key = (owner[elements] for owner in owners)
            own = (query == table.query.token[scores]) | (key == table.key.token[scores])
            wrong = live[scores] & ((query >= 0) | (key >= 0)) & ~own
            if bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                score = scores[at]
                whose = "query" if int(query[at]) >= 0 else "key"
                message = (
                    f"a learned vector times the {whose} of token {max(int(query[at]), int(key[at]))} is added to the "
                    f"score of query {int(table.query.token[score])} and key {int(table.key.token[score])}"
                )
                return Finding("violation", "logits-of-the-query", "positions", message, product.operation.location)
    return None


def _beside_the_padding(
    table: AttentionTable, learned: list[Contraction], among: Tensor | None = None
) -> Finding | None:
    """A distance whose scores take the padding of a shift, while as many vectors as distances leave one for none.

    Elsewhere a distance may have no vector on purpose, as one beyond the last; `among` (scores) says which are judged.
    """
    run, rows = table.instance.run, table.rows_of_tags()
    if any(len(torch.unique(each.stream)) > 1 for each in (table.query, table.key)):
        return None  # keys of a memory besides: their distances are others
    live, distance = table.weight > ZERO_WEIGHT, table.query.token - table.key.token
    live = live if among is None else live & among
    seen = torch.unique(distance[live])
    for product in learned:
        first, count = run.first_tag[product.operation.index], product.output.data.numel()
        left = product.left_place in run.depends
        asking, vector = (each[:, 0] for each in (product.left_terms, product.right_terms)[:: 1 if left else -1])
        if not bool((torch.unique(asking, return_counts=True)[1] == len(seen)).all()) or not _is_padded(
            run, first, count
        ):
            continue
        with_vector, used = torch.zeros_like(live), torch.zeros(int(vector.max()) + 1, dtype=torch.bool)
        for kept, lost in run.tags.sums:
            mine = (lost >= first) & (lost < first + count) & (rows[kept] >= 0)
            scores = rows[kept[mine]]
            with_vector[scores] = True
            used[vector[lost[mine] - first][live[scores]]] = True
        has = {int(each): with_vector[live & (distance == each)] for each in seen}
        without = [each for each, of_distance in has.items() if not bool(of_distance.any())]
        spare = int((~used[torch.unique(vector)]).sum())
        if without and spare and all(bool(has[each].all()) for each in has if each not in without):
            message = (
                f"the score of a key {_apart(without[0])} takes the padding in place of a learned vector, and one of "
                f"the {len(seen)} vectors, as many as there are distances, goes to no score"
            )
            return Finding("violation", "vector-of-each-distance", "positions", message, product.operation.location)
    return None


def _apart(distance: int) -> str:
    if not distance:
        return "of the query's own token"
    return f"{abs(distance)} token{'s' * (abs(distance) > 1)} {'back' if distance > 0 else 'ahead'}"


def _is_padded(run: TaggedRun, first: int, count: int) -> bool:
    """Whether zeros are set beside a product's results, as in a shift by a reshape."""
    return any(
        operation.name in ("constant_pad_nd", "cat")
        and any(bool(((tags >= first) & (tags < first + count)).any()) for tags in run.tags.inputs[operation.index])
        for operation in run.trace
    )


def _owners_of_tags(table: AttentionTable, *, queries: bool) -> Tensor:
    """By tag, the token of the query, or key, that is made of it; -1 for what makes none."""
    run = table.instance.run
    of_tags = torch.full((run.num_tags + 1,), -1)
    made_of, left = [], queries == table.layout.queries_left
    for each in table.instance.scores:
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        made_of.append(run.tags.inputs[place[0]][place[1]].flatten()[terms])
    width = max(each.shape[-1] for each in made_of)
    tags = torch.cat([pad(each, (0, width - each.shape[-1])) for each in made_of])[table.layout.used]
    token = (table.query if queries else table.key).token
    of_tags[tags] = token[:, None].expand(tags.shape)
    of_tags[0] = -1
    return of_tags


def _is_same(numbers: Tensor, groups: Tensor) -> bool:
    """Whether those of the same group are the same."""
    group = torch.unique(groups, dim=0, return_inverse=True)[1]
    top, low = (
        torch.full((int(group.max()) + 1,), sign * torch.inf, dtype=torch.float64).scatter_reduce(
            0, group, numbers, how
        )
        for sign, how in ((-1, "amax"), (1, "amin"))
    )
    return float((top - low).max()) <= SAME * max(1.0, float(numbers.abs().max()))


def _is_cut_from_distances(run: TaggedRun, product: Contraction, distances: set[int]) -> bool:
    """Whether learned vectors that are taken by place are some of as many as there are distances, or not the first."""
    place = product.right_place if product.left_place in run.depends else product.left_place
    behind = {run.trace.taken(place).storage}
    for operation in reversed(run.trace.operations[: place[0]]):
        if not operation.outputs or operation.outputs[0].storage not in behind:
            continue
        behind.update(each.storage for each in operation.inputs)
        if any(distances & {*each.shape} for each in operation.inputs):
            return True
        if operation.name == "slice" and operation.outputs[0].offset > operation.inputs[0].offset:
            return True
    return False


def _places(invocation: Invocation, tokens: Tensor) -> Tensor:
    """(scores, axes): where tokens stand, along each axis that has tokens."""
    stream = invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    found = []
    for axis in reversed(stream.token_axes[1:]):
        found.append(tokens % shape[axis])
        tokens = tokens // shape[axis]
    return torch.stack([tokens, *reversed(found)], -1)
