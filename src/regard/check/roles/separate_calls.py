"""Which scores of one line are of the same attention: a module may be called for several sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard.check.roles.influence import Influence

__all__ = ["Reads", "connected", "repetitions", "sequences_of", "sources_of"]

Reads = frozenset[tuple[int, str]]
"""What the factors of scores are made of: 0, or 1 of the right one, and the input."""
FEWEST = 3
"""Sequences of which one asks and two are read."""


def sources_of(influence: Influence, place: tuple[int, int], kind: str = "") -> frozenset[str]:
    """The inputs that a factor is made of; of a kind, which of its samples, as in "x 1"."""
    depends = influence.of(*place).unsqueeze(-1).flatten(1).any(1).tolist()
    sources = [source for (source, _), made in zip(influence.runs, depends, strict=True) if made]
    return frozenset(each.stream if not kind else str(each.index) for each in sources if kind in ("", each.kind))


def connected(several: Sequence[Reads]) -> list[int]:
    """For each of several sets the number of its group: sets of one group have elements in common, over others."""
    groups: list[Reads] = []
    for each in several:
        joined = [group for group in groups if group & each]
        groups = [group for group in groups if group not in joined] + [each.union(*joined)]
    return [next((number for number, group in enumerate(groups) if group >= each), 0) for each in several]


def sequences_of(streams: Mapping[int, Reads], made_of: set[int], softmaxes: Sequence[set[int]]) -> Reads:
    """What some scores are of, where a softmax runs over these alone, and there are several sequences to read; or none.

    A text and a picture that one sequence reads, each with a softmax of its own by one line, are two attentions.

    Args:
        streams: by the index of a product, the inputs that its factors are made of.
        made_of: the products that the scores are.
        softmaxes: for each softmax, the products whose elements it takes.
    """
    own = [each for each in softmaxes if each & made_of]
    read = {name for index in set[int]().union(*softmaxes) for _, name in streams.get(index, Reads())}
    if not own or any(each - made_of for each in own) or len(read) < FEWEST:
        return Reads()
    return Reads().union(*(streams.get(index, Reads()) for index in made_of))


def repetitions(
    made_by: dict[int, tuple[set[int], set[int]]], samples: dict[int, frozenset[str]], influence: Influence
) -> dict[int, int]:
    """By the index of a product, how often the same matrices had made scores of the same samples before.

    Two sequences that attend to each other with one module's parameters are two attentions, and not two heads.

    Args:
        made_by: by the index of a product, the operations that made its left and its right factor.
        samples: the samples that each is of: a loop over samples is one attention.
        influence: of the run.
    """
    found: dict[int, int] = {}
    calls: dict[object, list[list[set[int]]]] = {}
    for index, sides in made_by.items():
        if not all(sides):
            continue
        same = calls.setdefault((*(_matrices(each, influence) for each in sides), samples[index]), [])
        for number, call in enumerate(same):
            if any(one & other for one, other in zip(sides, call, strict=True)):
                call[:] = [one | other for one, other in zip(sides, call, strict=True)]
                found[index] = number
                break
        else:
            found[index] = len(same)
            same.append([*sides])
    return found


def _matrices(operations: set[int], influence: Influence) -> frozenset[int]:
    """The memory of what some projections take that is made of no input."""
    return frozenset(
        record.storage
        for index in operations
        for number, record in enumerate(influence.base.operations[index].inputs)
        if not bool(influence.of(index, number).any())
    )
