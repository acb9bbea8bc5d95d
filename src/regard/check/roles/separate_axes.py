"""Attentions of one line along both axes of a grid: rows that attend to rows, and beside them columns to columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import Influence, influence_of
from regard.check.roles.instances import AttentionInstance, completed
from regard.check.roles.owners import owners
from regard.check.target import Invocation

__all__ = ["by_axes"]

Pairs = frozenset[tuple[int, int]]
"""The tokens of a query and a key, or of a key and a query, that are multiplied."""


def by_axes(instances: list[AttentionInstance], invocation: Invocation) -> list[AttentionInstance]:
    """The attentions; one whose weighted sums are of pairs of tokens that are partly the same is several.

    A loop over heads has the same pairs each time, one over blocks has others. Rows and columns have a token beside
    itself in common, and no other pair. Sums of one softmax, as in criss-cross attention, stay together.

    Args:
        instances: the attentions of a run.
        invocation: its call.
    """
    if not any(len(each.sums) > 1 and len(each.softmaxes) > 1 for each in instances):
        return instances
    frozen = {each.operation.index: each.output.data for instance in instances for each in instance.sums}
    base, streams = instances[0].run.trace, [each.argument for each in invocation.streams]
    influence = influence_of(invocation, base, frozen=frozen, keep=lambda source: source.kind == "token")
    found = list[AttentionInstance]()
    for instance in instances:
        groups = _groups(instance, influence, streams)
        if len(groups) < 2 or _share_a_softmax(instance, groups):
            found.append(instance)
            continue
        for sums in groups:
            made_of = set[int]().union(*(_scores_of(instance, each) for each in sums))
            scores = [each for each in instance.scores if each.operation.index in made_of]
            found.append(completed(AttentionInstance(instance.run, scores, sums, instance.weights_left)))
    return found


def _groups(instance: AttentionInstance, influence: Influence, streams: Sequence[str]) -> list[list[Contraction]]:
    """Its weighted sums, those together of which none is apart from another."""
    pairs = {each.operation.index: _pairs(each, influence, streams) for each in instance.scores}
    groups: list[tuple[list[Contraction], list[Pairs]]] = []
    for total in instance.sums if len(instance.softmaxes) > 1 else ():
        mine = Pairs().union(*(pairs[each] for each in _scores_of(instance, total)))
        for sums, others in groups:
            if not any(_are_apart(mine, other) for other in others):
                sums.append(total)
                others.append(mine)
                break
        else:
            groups.append(([total], [mine]))
    return [sums for sums, _ in groups]


def _are_apart(one: Pairs, other: Pairs) -> bool:
    return bool(one & other) and bool(one - other) and bool(other - one)


def _pairs(scores: Contraction, influence: Influence, streams: Sequence[str]) -> Pairs:
    """None where a factor is of no one token."""
    sides = []
    for (index, number), terms in ((scores.left_place, scores.left_terms), (scores.right_place, scores.right_terms)):
        depends = influence.of(index, number).flatten(1)[:, terms].any(-1)
        sides.append(owners(depends, influence, streams).token)
    both = torch.unique(torch.stack(sides, -1), dim=0)
    return Pairs((int(left), int(right)) for left, right in both if min(left, right) >= 0)


def _scores_of(instance: AttentionInstance, total: Contraction) -> set[int]:
    """The operations of the scores that the weights of a sum were made of."""
    index, number = instance.weights_place(total)
    own = {each.operation.index for each in instance.scores}
    return instance.run.owner_of(instance.run.tags.inputs[index][number]) & own


def _share_a_softmax(instance: AttentionInstance, groups: Sequence[Sequence[Contraction]]) -> bool:
    """Whether a softmax takes scores of several groups, or none those of one."""
    run = instance.run
    taken = [run.owner_of(run.tags.inputs[each.index][0]) for each in instance.softmaxes]
    scores = [set[int]().union(*(_scores_of(instance, each) for each in sums)) for sums in groups]
    return any(sum(bool(one & mine) for mine in scores) > 1 for one in taken) or not all(
        any(one & mine for one in taken) for mine in scores
    )
