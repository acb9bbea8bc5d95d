"""Why token by token through a cache differs from all at once: the run of one new token beside the run of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.caches.comparison import (
    EQUAL,
    RESTARTED,
    SAME,
    UNKNOWN,
    PartOfWhole,
    by_line,
    line_key,
    place_of,
    recorded,
    same_tensor,
)
from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.cache_runs import CachedCall
from regard.check.target.cache_search import other_tokens
from regard.check.target.preparation import copied
from regard.check.trace.operation import Operation
from regard.check.trace.recorder import record

__all__ = ["HiddenKeys", "cache_causes", "remembering_line"]

ZERO_WEIGHT = 1e-30
WRITES = frozenset({"cat", "copy_", "index_copy", "index_copy_", "index_put", "index_put_", "slice_scatter", "stack"})
"""Operations that put new keys beside cached ones."""
LOOKUPS = frozenset({"embedding", "gather", "index", "index_select", "select", "slice"})
"""Operations that read some rows of a table."""


@dataclass(frozen=True)
class HiddenKeys(Finding):
    """Keys that have a weight all at once and none with a cache."""

    is_own: bool = False
    """Whether a new token's own key is among them: no memory is meant to hide that, however it is masked."""


def cache_causes(
    call: CachedCall, token: int, prefix: int, instances: list[AttentionInstance], *, together: bool = False
) -> Iterator[Finding]:
    """What differs first, where that can be told.

    Args:
        call: with its cache.
        token: the first that differs.
        prefix: how many tokens the first call is given.
        instances: the attentions of the call without a cache.
        together: whether all tokens after the first ones come in one call.
    """
    if instances and (taken := _keys_as_values(call, prefix, instances[0])) is not None:
        yield taken
        return
    if token < prefix or not instances:
        return
    cuts = [(0, prefix), *((each, each + 1) for each in range(prefix, token + 1))]
    if together:
        cuts = [(0, prefix), (prefix, call.tokens)]
    first, end = cuts[-1]
    runs = PartOfWhole(recorded(call, [(0, end)]), recorded(call, cuts), first, end)
    if runs.whole.error or runs.part.error:
        return
    base, score, total = instances[0].run.trace, instances[0].scores[0], instances[0].sums[0]
    factors = [runs.tensors(place_of(base, place)) for place in score.places]
    values = runs.tensors(place_of(base, instances[0].values_place(total)))
    weights = runs.tensors(place_of(base, instances[0].weights_place(total)))
    queries = next((each for each in factors if each is not None and each[0].shape != each[1].shape), None)
    keys = next((each for each in factors if each is not None and each[0].shape == each[1].shape), None)
    found: list[Finding] = []
    line = instances[0].scores_location
    if keys is None and (left_out := _without_own(runs, factors, line)) is not None:
        yield left_out
        return
    moved = queries is not None and runs.compared(*queries) not in (EQUAL, UNKNOWN)
    if queries is not None and moved:
        found += _positions(runs, queries, line)
    elif keys is not None and not same_tensor(*keys):
        found += _keys(runs, keys, line)
    if not moved and values is not None and values[0].shape == values[1].shape and not same_tensor(*values):
        found += _values(runs, values, line)
    if weights is not None:
        weights = _with_queries_apart(runs, weights)
        found += _dropped(runs, weights, instances[0].sums_location)
        found += _mask(runs, weights, instances[0].sums_location)
    yield from found


def remembering_line(invocation: Invocation) -> CodeLocation | None:
    """The first line of a call that gives something else after another call."""

    def run(watch: Any) -> Any:
        target = copied(invocation.target)
        invocation.run({**invocation.arguments, **other_tokens(invocation)}, target=target)
        return invocation.run(target=target, watch=watch)

    alone = by_line(record(lambda watch: invocation.run(watch=watch), outputs=invocation.outputs, lines=True))
    seen: dict[tuple[Any, ...], int] = defaultdict(int)
    for operation in record(run, outputs=invocation.outputs, lines=True):
        key = line_key(operation)
        which, seen[key] = seen[key], seen[key] + 1
        same = alone[key][which] if which < len(alone[key]) else None
        results = zip(operation.outputs, same.outputs if same is not None else (), strict=False)
        if same is None or not all(same_tensor(one.data, other.data) for one, other in results):
            return operation.location
    return None


def _positions(runs: PartOfWhole, queries: tuple[Tensor, Tensor], line: CodeLocation | None) -> Iterator[Finding]:
    """Queries of a new token that are not those of all at once."""
    whole, part = queries
    restarted = next(
        (part for said, _, part in runs.departures() if said == RESTARTED and not _is_mask(part, runs)), None
    )
    departed = next((part for said, _, part in runs.departures() if not _is_mask(part, runs)), None)
    axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
    mine = whole
    for axis in axes:
        mine = mine.narrow(axis, runs.first, runs.end - runs.first)
    turned = any(
        same_tensor(mine.norm(dim=axis), part.norm(dim=axis)) for axis in (-1, -2) if axis + part.ndim not in axes
    )
    if restarted is not None:
        message = f"positions restart: token {runs.first} gets position 0 with a cache"
        yield Finding("violation", "cache-positions", "positions", message, restarted.location or line)
    elif departed is not None and _reads_positions(runs, departed):
        message = f"token {runs.first} gets another position with a cache than all at once"
        yield Finding("violation", "cache-positions", "positions", message, departed.location or line)
    elif turned:
        message = f"the query of token {runs.first} is rotated by another position with a cache"
        where = line if departed is None else departed.location
        yield Finding("violation", "cache-positions", "positions", message, where)


def _reads_positions(runs: PartOfWhole, departed: Operation) -> bool:
    """Whether what differs first are whole numbers, or what is read of the same table: the positions of tokens."""
    whole = next((one for _, one, part in runs.departures() if part is departed), None)
    if whole is None or not departed.outputs[0].data.is_floating_point():
        return whole is not None
    return departed.name in LOOKUPS and same_tensor(whole.inputs[0].data, departed.inputs[0].data)


def _keys(runs: PartOfWhole, keys: tuple[Tensor, Tensor], line: CodeLocation | None) -> Iterator[Finding]:
    """Keys that are not those of all at once."""
    axis = _token_axis(keys, runs.end)
    if axis is None:
        return
    turned = _turned(runs, "keys", keys, axis, line)
    if turned is not None:
        yield turned
        return
    differ = ~_equal_rows(keys, axis)
    channels = [each for each in (keys[0].ndim - 1, keys[0].ndim - 2) if each != axis]
    lengths = keys[0].norm(dim=channels[0]), keys[1].norm(dim=channels[0])
    if not same_tensor(*lengths):
        return
    where = next((part.location for _, _, part in runs.departures() if not _is_mask(part, runs)), None) or line
    cached = differ[: runs.first].nonzero().flatten().tolist()
    if cached:
        message = f"the cached keys {_listed(cached)} are rotated by other positions than all at once"
        yield Finding("violation", "cache-rotation", "positions", message, where)
    else:
        message = f"the key of token {runs.first} is rotated by another position with a cache"
        yield Finding("violation", "cache-positions", "positions", message, where)


def _keys_as_values(call: CachedCall, prefix: int, instance: AttentionInstance) -> Finding | None:
    """Values that are the very numbers of the keys, and others without a cache: whatever a mask hides.

    Either those of the tokens before, as where the wrong cache is read, or that of the new token, as where its key is
    put into the cache of values.
    """
    base = instance.run.trace
    part = recorded(call, [(0, prefix), (prefix, prefix + 1)])
    if part.error:
        return None
    for score, total in zip(instance.scores[:1], instance.sums[:1], strict=True):
        value = instance.values_place(total)
        for place in score.places:
            runs = PartOfWhole(base, part, prefix, prefix + 1)
            found = [runs.tensors(place_of(base, each)) for each in (place, value)]
            if any(each is None for each in found):
                continue
            keys, values = (each[1] for each in found if each is not None)
            for first, end, said in (
                (0, prefix, f"values of the tokens before token {prefix} are their keys"),
                (prefix, prefix + 1, f"value of token {prefix}, the new one, is its key"),
            ):
                if _are_equal(base.taken(place).data, base.taken(value).data, first, end):
                    continue
                if _are_equal(keys, values, first, end):
                    message = f"with a cache the {said}"
                    return Finding("violation", "cache-values", "v", message, _writing(runs, values))
    return None


def _are_equal(keys: Tensor, values: Tensor, first: int, end: int) -> bool:
    """Whether some keys, or those of the transpose that scores take, are the values.

    PyTorch's kernel scales keys before it multiplies them.
    """
    for each in (keys, keys.mT) if keys.ndim > 1 else ():
        if each.shape == values.shape and each.shape[-2] >= end:
            one, other = (side.narrow(-2, first, end - first) for side in (each, values))
            if bool(one.any()) and same_tensor(one * (other.norm() / one.norm()), other):
                return True
    return False


def _without_own(
    runs: PartOfWhole, factors: list[tuple[Tensor, Tensor] | None], line: CodeLocation | None
) -> Finding | None:
    """Keys that are those of the tokens before alone: the one new token's own is not among them.

    All at once it is, whatever hides it there: then both factors of the scores have as many tokens.
    """
    if runs.end - runs.first != 1 or runs.first < 2 or any(each is None for each in factors):
        return None
    sizes = []
    for whole, part in (each for each in factors if each is not None and each[0].ndim == each[1].ndim):
        axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
        sizes += [(whole.shape[axis], part.shape[axis]) for axis in axes]
        is_of_keys = len(axes) == 1 and part.shape[axes[0]] == runs.first
        if is_of_keys and not same_tensor(whole.narrow(axes[0], 0, runs.first), part):
            return None  # a window: its own is among them
    if sorted(sizes) != [(runs.end, 1), (runs.end, runs.first)]:
        return None
    message = (
        f"with a cache token {runs.first} meets the {runs.first} keys of the tokens before it: its own is not put "
        "beside them"
    )
    return Finding("violation", "cache-of-new-tokens", "k", message, line)


def _turned(
    runs: PartOfWhole, name: str, vectors: tuple[Tensor, Tensor], axis: int, line: CodeLocation | None
) -> Finding | None:
    """Keys or values that are those of all at once in another order."""
    order = _order(vectors, axis)
    if order is None:
        return None
    message = f"with a cache the {name} are in the order {_listed(order)}"
    return Finding("violation", "cache-order", "k", message, _writing(runs, vectors[1]) or line)


def _values(runs: PartOfWhole, values: tuple[Tensor, Tensor], line: CodeLocation | None) -> Iterator[Finding]:
    """Values that are not those of all at once."""
    axis = _token_axis(values, runs.end)
    if axis is None:
        return
    turned = _turned(runs, "values", values, axis, line)
    if turned is not None:
        yield turned
        return
    differ = (~_equal_rows(values, axis))[: runs.first].nonzero().flatten().tolist()
    if differ:
        message = f"the cached keys {_listed(differ)} have other values than all at once"
        yield Finding("violation", "cache-values", "v", message, _writing(runs, values[1]) or line)


def _mask(runs: PartOfWhole, weights: tuple[Tensor, Tensor], line: CodeLocation | None) -> Iterator[Finding]:
    """Keys that have no weight with a cache, and have one all at once, or the other way round."""
    whole, part = weights
    axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
    if len(axes) != 1 or runs.compared(whole, part) == UNKNOWN:
        return
    mine = whole.narrow(axes[0], runs.first, runs.end - runs.first)
    cut = (part.abs() <= ZERO_WEIGHT) & (mine.abs() > ZERO_WEIGHT)
    seen = (part.abs() > ZERO_WEIGHT) & (mine.abs() <= ZERO_WEIGHT)
    axis = _token_axis((mine, part), runs.end, but=axes[0])
    if axis is None or not bool((cut | seen).any()):
        return
    rows = [each.movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist() for each in (cut, seen)]
    restarted = next((part for said, _, part in runs.departures() if said == RESTARTED and _is_mask(part, runs)), None)
    counted = "the mask of a new token is counted from 0: " if restarted is not None else ""
    said = f"keys {_listed(rows[0])} are hidden" if rows[0] else f"keys {_listed(rows[1])} are seen"
    message = (
        f"{counted}with a cache {said} from token {runs.first}"
        if rows[0]
        else (f"{counted}with a cache {said} by token {runs.first}")
    )
    where = restarted.location if restarted is not None else line
    yield HiddenKeys("violation", "cache-mask", "mask", message, where, is_own=runs.first in rows[0])


def _dropped(runs: PartOfWhole, weights: tuple[Tensor, Tensor], line: CodeLocation | None) -> Iterator[Finding]:
    """Keys that are no longer in the cache."""
    whole, part = weights
    if whole.ndim != part.ndim or whole.ndim < 2 or whole.shape[-2] != runs.end or part.shape[-2] != 1:
        return
    needed, there = int((whole[..., -1, :].abs() > ZERO_WEIGHT).sum(-1).max()), part.shape[-1]
    if there < needed:
        message = f"with a cache there are {there} keys for token {runs.first}, all at once it sees {needed}"
        yield Finding("violation", "cache-equals-whole", "output", message, line)


def _with_queries_apart(runs: PartOfWhole, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The weights with an axis for the queries alone, where heads that share their keys stand in one axis with them.

    In which order is told by what is hidden all at once: of no query a later key may have a weight.
    """
    whole, part = weights
    axes = [axis for axis in range(whole.ndim - 1) if whole.ndim == part.ndim and whole.shape[axis] != part.shape[axis]]
    if len(axes) != 1 or whole.shape[-1] != runs.end:
        return weights
    (axis,), new = axes, runs.end - runs.first
    heads, rest = divmod(whole.shape[axis], runs.end)
    if rest or heads < 2 or part.shape[axis] != heads * new:
        return weights
    for is_outer in (True, False):
        several = [
            each.unflatten(axis, (heads, queries) if is_outer else (queries, heads))  # type: ignore[no-untyped-call]
            for each, queries in ((whole, runs.end), (part, new))
        ]
        one, other = several if is_outer else [each.transpose(axis, axis + 1) for each in several]
        if not bool((one.movedim(axis + 1, -2).triu(1).abs() > ZERO_WEIGHT).any()):
            return one, other
    return weights


def _is_mask(operation: Operation, runs: PartOfWhole) -> bool:
    """Whether what an operation returns has a number for each key, or says yes or no."""
    data = operation.outputs[0].data
    return data.dtype == torch.bool or (data.ndim > 1 and data.shape[-1] == runs.end and data.shape[-2] == 1)


def _writing(runs: PartOfWhole, made: Tensor) -> CodeLocation | None:
    """The line that puts new keys or values beside cached ones: one that runs only where there are some, if any."""
    numbers = made.flatten().sort().values
    lines: list[CodeLocation] = []
    others: list[CodeLocation] = []
    before = {(each.location.file, each.location.line) for each in runs.whole if each.location is not None}
    for each in runs.part:
        if each.name not in WRITES or each.location is None:
            continue
        outputs = each.written or each.outputs
        exact = outputs and same_tensor(outputs[0].data.flatten().sort().values, numbers)
        if exact:
            return each.location
        new = (each.location.file, each.location.line) not in before
        (lines if new else others).append(each.location)
    return next(iter((*lines, *others)), None)


def _token_axis(tensors: tuple[Tensor, Tensor], tokens: int, but: int | None = None) -> int | None:
    """The axis along which some slices are equal and some are not, or the only one of as many tokens."""
    axes = [axis for axis, size in enumerate(tensors[0].shape) if size == tokens and axis != but]
    if len(axes) < 2:
        return axes[0] if axes else None
    return next((axis for axis in reversed(axes) if bool(_equal_rows(tensors, axis).any())), axes[-1])


def _equal_rows(tensors: tuple[Tensor, Tensor], axis: int) -> Tensor:
    one, other = (each.movedim(axis, 0).flatten(1) for each in tensors)
    return ((one - other).abs() <= SAME * max(1.0, float(one.abs().max()))).all(1)


def _order(tensors: tuple[Tensor, Tensor], axis: int) -> list[int] | None:
    """Which slice of the whole each slice of the part is, where that is another order."""
    one, other = (each.movedim(axis, 0).flatten(1) for each in tensors)
    same = (other[:, None] - one[None]).abs().amax(-1) <= SAME * max(1.0, float(one.abs().max()))
    if not bool((same.sum(1) == 1).all()) or not bool((same.sum(0) == 1).all()):
        return None
    order = same.to(torch.uint8).argmax(1).tolist()
    return order if order != sorted(order) else None


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
