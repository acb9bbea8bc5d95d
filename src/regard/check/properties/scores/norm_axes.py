"""What queries and keys are normalized over: the channels of a head, or of all; not the heads, channel by channel."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.code import documentation_of_functions, sentences_of
from regard.check.properties.documentation import documentation_of, normalizes_queries_and_keys
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import differs, record_invocation
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.table import NORMALIZATIONS, AttentionTable
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["crossed_norm_finding", "norm_axis_findings", "one_sided_norm_findings", "shared_norm_finding"]

LIKE, UNLIKE = 1e-6, 1e-2
"""By which lengths differ, of the longest: where they are the same, and where they are surely not."""
ALIKE = 1e-4
"""The same, where a small number is added to a length before it divides."""
MAX_ROTATED = 2
"""Numbers of a vector that rotary positions make of one."""

_NORMS = r"(?:(?:layer-?|rms-?|l2-?|qk-?|un-?)?normali[sz]\w*|(?:layer|rms|l2|qk)?[-_]?norms?|rms|unit)"
_OF_EACH_HEAD = re.compile(
    rf"\b{_NORMS}\b[^.;]*\b(?:per|each|every|within (?:a|each)|individual|single)[\s-]+(?:\w+[\s-]+)?heads?\b"
    rf"|\b(?:per|each|every|within (?:a|each)|individual)[\s-]+(?:\w+[\s-]+)?heads?\b[^.;]*\b{_NORMS}\b"
    rf"|\bhead-?wise\b[^.;]*\b{_NORMS}\b|\b{_NORMS}\b[^.;]*\b(?:head-?wise|over (?:the )?head_dim)\b",
    re.I,
)
"""In a sentence: heads are normalized one by one."""
_OF_QUERIES = re.compile(r"\b(?:quer(?:y|ies)|keys?|q|k|qk)\b|\bqk[-_]?norm", re.I)
_NOT_EACH = re.compile(
    r"\b(?:not|never|instead|rather|optional\w*|if|unless|scales?|temperatures?|gains?|gammas?|all heads"
    r"|across (?:the |all )?heads|flat\w*"
    r"|(?:whole|full|entire) (?:width|vector|hidden|embedding|model)\w*)\b|n't",
    re.I,
)


def normalizes_each_head(text: str) -> bool:
    """Whether a sentence says of queries and keys that each head is normalized by itself."""
    return any(
        _OF_EACH_HEAD.search(each) and _OF_QUERIES.search(each) and not _NOT_EACH.search(each)
        for each in sentences_of(text)
    )


def norm_axis_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Change one channel of a projected query or key: a norm carries that to the other channels of its head.

    A norm over the heads carries it to the same channel of the other heads instead. One of all channels carries it to
    all channels of all heads, which is a choice, unless the documentation says that heads are normalized one by one.

    Args:
        invocation: the call.
        evidence: one of its attentions.
    """
    table = evidence.base
    if not table.normalized or len(table.instance.scores) != 1 or not len(table.weight):
        return
    (product,) = table.instance.scores
    target = invocation.target
    is_of_each_head = normalizes_each_head(f"{documentation_of(target)}\n\n{documentation_of_functions(target)}")
    for name, owner, is_left in (
        ("queries", table.query, table.layout.queries_left),
        ("keys", table.key, not table.layout.queries_left),
    ):
        place = product.left_place if is_left else product.right_place
        sources = _sources(table.instance.run, product, is_left=is_left)[table.layout.used]
        mine = sources[-1]
        if len(mine) <= MAX_ROTATED or not bool((mine > 0).all()):
            continue
        run = _with_another(invocation, table.instance.run, int(mine[-1]))
        if run is None:
            continue
        taken = run.taken(place).data
        is_moved = differs(table.instance.run.trace.taken(place).data, taken)
        moved = table.instance.run.tags.inputs[place[0]][place[1]][is_moved]
        others = torch.isin(sources, moved[~torch.isin(moved, mine)]).any(-1)
        is_same = (owner.token == owner.token[-1]) & (owner.sample == owner.sample[-1])
        own = int(torch.isin(mine, moved).sum())
        if own <= MAX_ROTATED and bool(others.any()) and not bool((others & ~is_same).any()):
            message = f"{name} are normalized over the heads, each channel for itself, not over the channels of a head"
            yield Finding("violation", "norm-over-channels", "projections", message, _line(table, place))
            return
        if own > MAX_ROTATED and bool(others.any()) and not bool((others & ~is_same).any()) and is_of_each_head:
            message = (
                f"{name} are normalized over the channels of all {table.num_heads} heads; by the documentation each "
                "head by itself"
            )
            yield Finding("violation", "norm-over-channels", "projections", message, _line(table, place))
            return


def one_sided_norm_findings(evidence: Evidence, text: str) -> Iterator[Finding]:
    """Keys that are all as long as one another and queries that are not, or the other way round.

    Args:
        evidence: one attention.
        text: its documentation, which says whether both are normalized.
    """
    table = evidence.base
    if not table.normalized or not len(table.weight) or not normalizes_queries_and_keys(text):
        return
    lengths = {"queries": table.q.norm(dim=-1), "keys": table.k.norm(dim=-1)}
    spread = {name: float((each.max() - each.min()) / each.max().clamp(min=1e-12)) for name, each in lengths.items()}
    one, other = sorted(spread, key=spread.__getitem__)
    if spread[one] < LIKE < UNLIKE < spread[other]:
        low, high = float(lengths[other].min()), float(lengths[other].max())
        message = f"{one} are normalized, {other} are not: these are {low:.3g} to {high:.3g} long"
        line = table.instance.scores_location
        yield Finding("violation", "norm-used", "projections", f"{message}; by the documentation both are", line)


def crossed_norm_finding(instance: AttentionInstance) -> Finding | None:
    """Two factors of unit length, one along the axis that their product sums and the other along another one.

    Of a product of channels by channels, where it is the tokens that are summed: both lengths are taken over these.

    Args:
        instance: an attention, whose queries and keys may be of tokens or of channels.
    """
    for product in instance.scores:
        left, right = (
            (record.data, record.data.flatten()[terms])
            for record, terms in ((product.left, product.left_terms), (product.right, product.right_terms))
        )
        for name, (data, mine), (_, others) in (("right", right, left), ("left", left, right)):
            axes = [axis for axis in range(data.ndim) if data.shape[axis] > 1 and _are_units(data.movedim(axis, -1))]
            if axes and _are_units(others) and not _are_units(mine):
                lengths = mine.double().norm(dim=-1)
                message = (
                    f"the {name} factor of the scores is normalized over another axis than the other one: along the "
                    f"axis that is summed its vectors are {float(lengths.min()):.3g} to {float(lengths.max()):.3g} "
                    "long, and all of the other one 1"
                )
                return Finding("violation", "norms-over-one-axis", "projections", message, instance.scores_location)
    return None


def shared_norm_finding(instance: AttentionInstance) -> Finding | None:
    """A factor whose vectors are of one length along an axis that both factors share, as that of the heads.

    Each score has one place of this axis alone: what is normalized along it is no vector of the product, whose vectors
    keep lengths of their own.

    Args:
        instance: an attention, whose queries and keys may be of tokens or of channels.
    """
    run = instance.run
    for product in instance.scores:
        sides = [(product.left_place, product.left_terms), (product.right_place, product.right_terms)]
        for name, (place, terms), (_, others) in zip(("left", "right"), sides, sides[::-1], strict=True):
            tags, data = run.tags.inputs[place[0]][place[1]], run.trace.taken(place).data
            lengths = data.flatten()[terms].double().norm(dim=-1)
            if terms.shape[-1] < 2 or _spread(lengths) < UNLIKE or not bool((tags > 0).all()):
                continue
            size = _shared_size(run, place, tags.flatten()[terms], others[:, 0])
            if size:
                message = (
                    f"the {name} factor of the scores is normalized along an axis of {size} that both factors share, "
                    "as that of the heads, and not along the one that is summed: along that its vectors are "
                    f"{float(lengths.min()):.3g} to {float(lengths.max()):.3g} long"
                )
                return Finding("violation", "norms-over-one-axis", "projections", message, instance.scores_location)
    return None


def _shared_size(run: TaggedRun, place: tuple[int, int], summed: Tensor, others: Tensor) -> int:
    """The size of an axis along which a factor is normalized, and of which both have one place in each score; else 0.

    Args:
        run: with the tags of all numbers.
        place: of the factor.
        summed: (scores, terms): the tags of its numbers in each score.
        others: (scores): which vector of the other factor it meets there.
    """
    for shaped, numbers in _in_other_shapes(run, place):
        for axis, size in enumerate(shaped.shape):
            if not _are_of_one_length(shaped.movedim(axis, -1)):
                continue
            along = torch.arange(size).reshape([-1 if each == axis else 1 for each in range(shaped.ndim)])
            at = torch.full((run.num_tags + 1,), -1)
            at[numbers.flatten()] = along.expand_as(numbers).flatten()
            places = at[summed]
            if bool((places == places[:, :1]).all()) and _is_told(others, places[:, 0]):
                return size
    return 0


def _in_other_shapes(run: TaggedRun, place: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """A factor in each shape that it had before, from the first on, with the tags of its numbers."""
    tags, data = run.tags.inputs[place[0]][place[1]], run.trace.taken(place).data
    known = torch.full((run.num_tags + 1,), torch.nan, dtype=torch.float64)
    known[tags.flatten()] = data.flatten().double()
    found = [
        (record.data, numbers)
        for operation in run.trace.operations[: place[0]]
        for record, numbers in zip(operation.outputs, run.tags.outputs[operation.index], strict=False)
        if numbers.shape == record.data.shape and numbers.numel() == tags.numel() and record.data.is_floating_point()
        if torch.equal(known[numbers], record.data.double())
    ]
    return [*found, (data, tags)]


def _are_of_one_length(vectors: Tensor) -> bool:
    """Whether all vectors, along the last axis, are of one length, but for a small number in its denominator."""
    if not vectors.is_floating_point() or vectors.shape[-1] < 2 or vectors.numel() == vectors.shape[-1]:
        return False
    return _spread(vectors.double().norm(dim=-1)) < ALIKE


def _spread(lengths: Tensor) -> float:
    return float((lengths.max() - lengths.min()) / lengths.max().clamp(min=1e-12))


def _is_told(keys: Tensor, values: Tensor) -> bool:
    """Whether equal keys have equal values."""
    pairs = torch.unique(torch.stack([keys, values]), dim=1)
    return int(pairs.shape[1]) == len(torch.unique(keys))


def _are_units(vectors: Tensor) -> bool:
    """Whether all vectors, along the last axis, have length 1."""
    if not vectors.is_floating_point() or vectors.shape[-1] < 2:
        return False
    return float((vectors.double().norm(dim=-1) - 1).abs().max()) < LIKE


def _sources(run: TaggedRun, product: Contraction, *, is_left: bool) -> Tensor:
    """(scores, width): the tags of the numbers that the queries or keys were made of, one by one."""
    place, terms = (product.left_place, product.left_terms) if is_left else (product.right_place, product.right_terms)
    return run.tags.inputs[place[0]][place[1]].flatten()[terms]


def _with_another(invocation: Invocation, run: TaggedRun, tag: int) -> Trace | None:
    """The run with another number in the place of one that was projected, or given; None where it is another run."""
    made = run.owner_of(torch.tensor([tag]))
    if made:
        (index,) = made
        output = run.trace.operations[index].outputs[0].data
        moved = record_invocation(invocation, frozen={index: _moved(output, tag - run.first_tag[index])})
    else:
        name, tags = next((name, tags) for name, tags in run.given.items() if bool((tags == tag).any()))
        given = invocation.arguments[name]
        place = int((tags.flatten() == tag).nonzero()[0])
        moved = record_invocation(invocation, {**invocation.arguments, name: _moved(given, place)})
    return moved if not moved.error and moved.same_operations(run.trace) else None


def _moved(tensor: Tensor, place: int) -> Tensor:
    flat = tensor.flatten().clone()
    flat[place] += 1
    return flat.reshape(tensor.shape)


def _line(table: AttentionTable, place: tuple[int, int]) -> CodeLocation | None:
    """Of the last operation that normalizes what is multiplied at a place."""
    trace = table.instance.run.trace
    multiplied = trace.taken(place).storage
    for operation in reversed(trace.operations[: place[0]]):
        if operation.name in NORMALIZATIONS and multiplied in trace.made_of(one.storage for one in operation.outputs):
            return operation.location
    return table.instance.scores_location
