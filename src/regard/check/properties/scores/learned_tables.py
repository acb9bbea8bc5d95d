"""Learned tables of biases: whether their entries are read in the order that the documentation says, and by head."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.documentation import documentation_of, index_direction
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.other_lengths import with_tokens
from regard.check.properties.scores.bias import added_to_scores
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Trace

__all__ = [
    "documented_table_findings",
    "lookups",
    "run_of_tokens",
    "table_entry_findings",
    "table_head_findings",
]

SAME = 1e-9
LOOKUPS = ("index", "index_select", "embedding", "gather")
LONG = (160, 320)
"""Tokens by which buckets of distances are all reached: those of T5 end at 128."""
LEAST_ENTRIES = 8
"""Of a table, half of which is a part."""
_OF_A_GRID = re.compile(r"\bheights?\b|\bmeshgrid\b|\b2-?d\b|\btwo[- ]dimensional\b", re.I)
"""In code whose tokens are the places of a grid."""


def _blocks_of_comments(invocation: Invocation) -> Iterator[str]:
    """The comments that stand in lines of their own, one below the other, as one text."""
    for block in re.findall(r"(?:^[ \t]*#.*\n)+", source_of(invocation.target), re.M):
        yield re.sub(r"^[ \t]*#+[ \t]*", "", block, flags=re.M)


def documented_table_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A table whose entries are added for keys on the other side of the query than its documentation says.

    Where nothing says it, either order is right: the entries are learned.

    Args:
        invocation: the call.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    told = {index_direction(each) for each in (documentation_of(invocation.target), *_blocks_of_comments(invocation))}
    if len(told - {0}) != 1:
        return
    (wanted,) = told - {0}
    tables = _parameters(invocation)
    for added, _, line in added_to_scores(evidence):
        bias = evidence.base.dense(added)[0, 0]
        if bias.shape[-2] != bias.shape[-1] or bias.shape[-1] < 2:
            continue
        before, after = bias.diagonal(-1), bias.diagonal(1)
        if any(not bool(((each - each[0]).abs() < SAME).all()) for each in (before, after)):
            continue
        for table in tables:
            places = [((table - each[0]).abs() < SAME).nonzero() for each in (before, after)]
            if any(len(each) != 1 for each in places):
                continue
            first, second = (each[0] for each in places)
            steps = (second - first)[second != first]
            if len(steps) == 1 and int(steps.sign()) != wanted:
                at, other = (int(each[second != first]) for each in (first, second))
                message = (
                    f"a key before the query takes entry {at} of the table, one after it entry {other}: by the "
                    "documentation it is the other way round"
                )
                yield Finding("violation", "table-as-documented", "bias", message, line)
                return


def table_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A table with a row or a column for each head, of which one head takes the entries of others.

    As where a table (entries, heads) is viewed as (heads, queries, keys) without a permutation of the axes.

    Args:
        invocation: the call.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    heads = evidence.base.num_heads
    if heads < 2:
        return
    for added, _, line in added_to_scores(evidence):
        bias = evidence.base.dense(added)[0]
        hidden = bias.isnan()  # of tokens of other windows, in every head
        if bool((hidden != hidden[:1]).any()):
            continue
        bias = bias[:, ~hidden[0]]
        if bool((bias == bias[:1]).all()):
            continue
        for table in _parameters(invocation):
            axes = [axis for axis, size in enumerate(table.shape) if size == heads]
            places = _places(bias, table) if table.ndim == 2 and len(axes) == 1 else None
            if places is None:
                continue
            taken = places[..., axes[0]].flatten(1)
            mixed = (taken != taken[:, :1]).any(1)
            if bool(mixed.any()):
                head = int(mixed.nonzero()[0])
                listed = ", ".join(map(str, sorted(set(taken[head].tolist()))))
                message = f"the bias of head {head} takes entries of the table that belong to heads {listed}"
                yield Finding("violation", "table-by-head", "bias", message, line)
                return


def table_entry_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A table with an entry for each offset of two tokens, of which several offsets share one; or half unread.

    Args:
        invocation: the call.
        evidence: of an attention to whose scores a bias by positions is added.
    """
    if _are_places_handed_over(invocation, evidence.num_tokens):
        return
    tokens = _window_size(evidence) or evidence.num_tokens
    is_window = tokens < evidence.num_tokens
    for entries, index, line in lookups(evidence.base.instance.run.trace, tokens):
        unread = entries - len(torch.unique(index))
        # The rows of a grid, multiplied by its width alone, give the distances in one row as well.
        grids = _grids(tokens)
        if _is_by_distance(index):
            of_rows = [each for each in grids if min(each) > 1] if _OF_A_GRID.search(evidence.code) else []
            grids = [(1, tokens), *of_rows, *_told_grids(invocation, tokens)]
        grids = [each for each in grids if math.prod(2 * size - 1 for size in each) == entries]
        if not unread or any(_is_one_to_one(index, each) for each in grids):
            continue
        # Else it may have more tokens than these; a window has not.
        if grids and (is_window or run_of_tokens(invocation, tokens + 1) is None):
            grid = next((each for each in grids[::-1] if _reads_one_each(index, each)), grids[-1])
            listed = " x ".join(map(str, grid))
            of_what = f"a window of {listed} tokens" if min(grid) > 1 else f"{tokens} tokens"
            message = (
                f"the table has {entries} entries, as many as there are offsets in {of_what}: {unread} of them are "
                f"read by no two tokens, and {_shared_entry(index, grid)}"
            )
            yield Finding("violation", "entry-of-each-offset", "bias", message, line)
            return
        never = _never_read(invocation, entries) if entries >= LEAST_ENTRIES and not is_window else 0
        if 2 * never >= entries - 2:
            message = (
                f"{never} of the {entries} entries of the table are read at no distance, up to {LONG[-1] - 1} tokens"
            )
            yield Finding("violation", "entry-of-each-offset", "bias", message, line)
            return


def _window_size(evidence: Evidence) -> int:
    """How many tokens the windows of an attention have, each of which asks all of them and no others; 0 if it has none.

    Two windows at least: a table that has an entry for each offset in one has no more than these.
    """
    scored = ~evidence.base.dense(evidence.base.weight)[0, 0].isnan()
    sizes = set(scored.sum(-1).tolist())
    if scored.shape[0] != scored.shape[1] or len(sizes) != 1 or not torch.equal(scored, scored.T):
        return 0
    windows = torch.unique(scored, dim=0)
    are_apart = bool((windows.sum(0) == 1).all())
    return sizes.pop() if are_apart and len(windows) > 1 else 0


def _are_places_handed_over(invocation: Invocation, tokens: int) -> bool:
    """Whether whole numbers for each two tokens are an argument, as distances in a graph."""
    streams = {each.argument for each in invocation.streams}
    others = [each for name, each in invocation.arguments.items() if isinstance(each, Tensor) and name not in streams]
    return any(each.dtype == torch.long and each.shape[-2:] == (tokens, tokens) for each in others)


def lookups(trace: Trace, tokens: int) -> Iterator[tuple[int, Tensor, CodeLocation | None]]:
    """Of each learned table that all pairs of tokens look up: its entries, which one each pair reads, and the line."""
    for operation in trace:
        if operation.name not in LOOKUPS or not operation.inputs[0].learned:
            continue
        table, places = (
            operation.inputs[0],
            [each.data for each in operation.inputs[1:] if each.data.dtype == torch.long],
        )
        if operation.name == "gather":  # of a table with an axis of the heads, the same entries of each head
            along = int(operation.args[1]) % places[0].ndim if len(places) == 1 else 0
            columns = [each.movedim(along, -1).flatten(0, -2) for each in places if each.ndim == 2]
            places = [each[0] for each in columns if bool((each == each[:1]).all())]
        if tokens < 2 or len(places) != 1 or places[0].numel() != tokens**2 or len(operation.inputs) != 2:
            continue
        axis = 0
        if operation.name == "index":
            axis = next(at for at, each in enumerate(operation.args[1]) if each is not None)
        elif operation.name in ("index_select", "gather"):
            axis = int(operation.args[1])
        yield table.shape[axis], places[0].reshape(tokens, tokens) % table.shape[axis], operation.location


def _grids(tokens: int) -> list[tuple[int, ...]]:
    """The sizes of the windows of so many tokens: of one or two axes, and of three."""
    sides = [size for size in range(1, tokens + 1) if tokens % size == 0]
    deep = [(one, two, tokens // (one * two)) for one in sides[1:] for two in sides[1:] if tokens % (one * two) == 0]
    return [*((rows, tokens // rows) for rows in sides), *(each for each in deep if each[-1] > 1)]


def _told_grids(invocation: Invocation, tokens: int) -> list[tuple[int, ...]]:
    """The sizes of windows of so many tokens that a module keeps: all sides, two of them, or that of a square."""
    told = set[tuple[int, ...]]()
    for module in modules_in(invocation.target):
        kept = [*vars(module).values()]
        told |= {tuple(each) for each in kept if isinstance(each, tuple | list) and {*map(type, each)} == {int}}
        told |= {*combinations_with_replacement([each for each in kept if type(each) is int], 2)}
    return [each for each in _grids(tokens) if each in told and min(each) > 1]


def _offsets(grid: Sequence[int]) -> Tensor:
    """(tokens, tokens): a number for each offset along all axes of a window."""
    tokens = math.prod(grid)
    found = torch.zeros(tokens, tokens, dtype=torch.long)
    for places in torch.unravel_index(torch.arange(tokens), list(grid)):
        found = found * 2 * tokens + places[:, None] - places
    return found


def _is_one_to_one(index: Tensor, grid: Sequence[int]) -> bool:
    """Whether pairs of tokens read the same entry if, and only if, their offset is the same."""
    both = torch.stack([_offsets(grid), index], -1).flatten(0, 1)
    pairs = len(torch.unique(both, dim=0))
    return pairs == len(torch.unique(both[:, 0])) == len(torch.unique(both[:, 1]))


def _reads_one_each(index: Tensor, grid: Sequence[int]) -> bool:
    """Whether pairs of tokens of the same offset read the same entry."""
    offsets = _offsets(grid).flatten()
    return len(torch.unique(torch.stack([offsets, index.flatten()], -1), dim=0)) == len(torch.unique(offsets))


def _shared_entry(index: Tensor, grid: Sequence[int]) -> str:
    """Two pairs of tokens of different offsets that read the same entry, in words."""
    offsets = _offsets(grid).flatten()
    for entry in torch.unique(index):
        mine = (index.flatten() == entry).nonzero().flatten()
        other = mine[offsets[mine] != offsets[mine[0]]]
        if len(other):
            one, two = (tuple(divmod(int(each), len(index))) for each in (mine[0], other[0]))
            return f"tokens {one[0]} and {one[1]} read the same as {two[0]} and {two[1]} (entry {int(entry)})"
    return "an offset reads several"


def _is_by_distance(index: Tensor) -> bool:
    """Whether pairs of tokens at the same distance read the same entry."""
    return bool((index[1:, 1:] == index[:-1, :-1]).all())


def _never_read(invocation: Invocation, entries: int) -> int:
    """How many entries of a table are read by no distance of many tokens, nor by any of twice as many; 0 if unknown."""
    unread = []
    for tokens in LONG:
        run = run_of_tokens(invocation, tokens)
        found = [] if run is None else [index for count, index, _ in lookups(run, tokens) if count == entries]
        if len(found) != 1:
            return 0
        unread.append(entries - len(torch.unique(found[0])))
    return unread[0] if unread[0] == unread[1] else 0


def run_of_tokens(invocation: Invocation, tokens: int) -> Trace | None:
    """A run of the call with as many tokens; None where it takes more than sequences, or does not run."""
    stream = invocation.streams[0]
    given = with_tokens(invocation, tokens - invocation.tokens_of(stream))
    run = None if given is None else record_invocation(invocation, given, lines=True)
    return None if run is None or run.error else run


def _parameters(invocation: Invocation) -> list[Tensor]:
    return [each.detach().double() for module in modules_in(invocation.target) for each in module.parameters()]


def _places(numbers: Tensor, table: Tensor) -> Tensor | None:
    """(..., axes): where each of the numbers stands in a table; None where one does not, or stands there twice."""
    entries, order = table.flatten().sort()
    if len(entries) < 2 or bool((entries.diff() < SAME).any()):
        return None
    nearest = torch.searchsorted(entries, numbers - SAME).clamp(max=len(entries) - 1)
    if bool(((entries[nearest] - numbers).abs() > SAME).any()):
        return None
    return torch.stack(torch.unravel_index(order[nearest], table.shape), -1)
