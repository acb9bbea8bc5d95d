"""Which channels of the projections each head takes: queries, keys and values are split, and joined, in one order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.factors import factor_tags, stacked
from regard.check.roles.table import AttentionTable

__all__ = ["head_channel_findings"]

_SHUFFLED = re.compile(r"shuffl|permut|shift(?:ed|ing)? heads|roll(?:ed|ing)? heads|other heads", re.I)
"""In a name or a documentation: heads change places on purpose."""
_LAST_AXIS = frozenset({"mm", "addmm"})
"""Products whose channels are the last axis; of a convolution they are the second one."""


@dataclass(frozen=True)
class _Channels:
    """The channels that each head takes of one projection."""

    of_heads: tuple[tuple[int, ...], ...]
    step: int
    """From one channel of a head to the next, the same in all heads."""

    @property
    def order(self) -> list[int]:
        """The heads in the order of their first channels, those that share channels beside one another."""
        return sorted(range(len(self.of_heads)), key=lambda head: self.of_heads[head][0])

    @property
    def is_apart(self) -> bool:
        """Whether no two heads share a channel."""
        taken = [each for one in self.of_heads for each in one]
        return len(set(taken)) == len(taken)

    @property
    def is_interleaved(self) -> bool:
        """Whether channels of one head stand between those of another, and not numbers of other factors alone."""
        spans = [(min(each), max(each)) for each in set(self.of_heads)]
        return any(first < other[0] < last for first, last in spans for other in spans)

    @property
    def said(self) -> str:
        """In words."""
        first = min(self.of_heads)
        if self.step == 1:
            return f"{len(first)} channels in a row (heads, width)"
        return f"one of every {self.step} channels (width, heads)"


def head_channel_findings(evidence: Evidence, text: str) -> Iterator[Finding]:
    """Heads of queries, of keys and of values that are other parts of their projections, or are joined otherwise.

    Weights that are learned so are those of no other code, and what is loaded into them is mixed. Where all three are
    split by one rule, whatever it is, heads may be joined by another one.

    Args:
        evidence: of an attention.
        text: its name and its documentation.
    """
    table = evidence.base
    instance = table.instance
    is_mixed = instance.are_weights_subtracted or instance.are_weights_mixed or instance.are_scores_mixed
    if table.num_heads < 2 or not table.whole or is_mixed or instance.run.additive or _SHUFFLED.search(text):
        return
    is_left = table.layout.queries_left
    queries, keys = _of_factors(table, is_left), _of_factors(table, not is_left)
    values = _of_values(table)
    if queries is None:
        return
    parts = [("queries", queries), ("keys", keys), ("values", values)]
    known = [(name, each) for name, each in parts if each is not None and len(set(each.of_heads)) > 1]
    for name, each in known:
        if each.is_interleaved != queries.is_interleaved:
            message = (
                f"a head of the queries is {queries.said} of their projection, and a head of the {name} {each.said}: "
                "heads are split in two orders"
            )
            line = instance.sums_location if name == "values" else instance.scores_location
            yield Finding("violation", "heads-split-alike", "heads", message, line)
            return
    if queries.step != 1 or not queries.is_apart:
        return
    for name, each in known:
        if each.is_apart and each.step == 1 and each.order != queries.order:
            at = next(place for place, head in enumerate(queries.order) if head != each.order[place])
            message = (
                f"query head {at} of the projection meets {name} of head {each.order.index(queries.order[at])}: the "
                "heads of one are in another order"
            )
            line = instance.sums_location if name == "values" else instance.scores_location
            yield Finding("violation", "heads-split-alike", "heads", message, line)
            return
    joined = _joined(table)
    if joined and joined != queries.order:
        at = next(place for place, head in enumerate(queries.order) if head != joined[place])
        message = (
            f"what query head {at} of the projection attended to is joined as head {joined.index(queries.order[at])}: "
            "heads are split in one order and joined in another"
        )
        yield Finding("violation", "heads-joined-in-order", "heads joined", message, instance.sums_location)


def _of_factors(table: AttentionTable, is_left: bool) -> _Channels | None:
    """The channels of queries, or of keys; None where they are not all of one projection."""
    tags = factor_tags(table.instance, is_left)[table.layout.used]
    found = _channels(table, tags, table.head)
    return found if found is not None and len(found.of_heads[0]) == tags.shape[-1] else None


def _of_values(table: AttentionTable) -> _Channels | None:
    """The same of values: those that the weights of each head are given to."""
    run, rows = table.instance.run, []
    for each in table.instance.sums:
        place = table.instance.values_place(each)
        rows.append(run.tags.inputs[place[0]][place[1]].flatten()[table.instance.value_terms(each)])
    tags, scores = stacked(rows, 0), table.values.score
    known = (scores >= 0).any(-1)
    heads = table.head[scores.amax(-1).clamp(min=0)]
    first = tags.gather(-1, (scores >= 0).float().argmax(-1, keepdim=True))
    return _channels(table, first[known], heads[known])


def _channels(table: AttentionTable, tags: Tensor, heads: Tensor) -> _Channels | None:
    """Of each head the channels that some numbers stand at in the one projection that they are made by."""
    run, count = table.instance.run, table.num_heads
    owners = run.owner_of(tags)
    if len(owners) != 1 or not tags.numel() or bool((tags <= 0).any()):
        return None
    (owner,) = owners
    operation = run.trace.operations[owner]
    shape = operation.outputs[0].shape
    if operation.name in _LAST_AXIS:
        channels = (tags - run.first_tag[owner]) % shape[-1]
    elif operation.name == "convolution":
        places = 1
        for size in shape[2:]:
            places *= size
        channels = (tags - run.first_tag[owner]) // places % shape[1]
    else:
        return None
    found = [torch.unique(channels[heads == head]) for head in range(count)]
    if len({len(each) for each in found}) != 1 or len(found[0]) < 2:
        return None
    steps = torch.unique(torch.stack([each.diff() for each in found]))
    if len(steps) != 1:
        return None
    return _Channels(tuple(tuple(each.tolist()) for each in found), int(steps))


def _joined(table: AttentionTable) -> list[int]:
    """The heads in the order in which a matrix reads what they attended to; empty where that is not known."""
    run, scores = table.instance.run, table.values.score
    head = torch.full((run.num_tags + 1,), -1)
    tags = [torch.arange(e.output.data.numel()) + run.first_tag[e.operation.index] for e in table.instance.sums]
    of_sums = torch.where((scores >= 0).any(-1), table.head[scores.amax(-1).clamp(min=0)], -1)
    head[torch.cat(tags)] = of_sums
    sums = {each.operation.index for each in table.instance.sums}
    for product in run.products:
        if product.operation.index in sums or product.operation.name not in _LAST_AXIS:
            continue
        for place, terms, matrix in (
            (product.left_place, product.left_terms, product.right),
            (product.right_place, product.right_terms, product.left),
        ):
            read = run.tags.inputs[place[0]][place[1]].flatten()[terms[:1]].flatten()
            if not matrix.learned or not run.owner_of(read) or not run.owner_of(read) <= sums:
                continue
            heads = head[read]
            if bool((heads < 0).any()):
                return []
            order = torch.unique_consecutive(heads).tolist()
            return order if _is_each_once(order, table.num_heads) else []
    return []


def _is_each_once(order: Sequence[int], count: int) -> bool:
    return sorted(order) == list(range(count))
