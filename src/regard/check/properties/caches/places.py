"""Where a call writes keys and values in tensors that a module keeps, and where it reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["cache_place_findings", "kept_writes", "misplaced", "reads_of", "reads_own_place"]

SAME_DIRECTION = 1 - 1e-6
"""The cosine of a query and a key that are one vector, which may have been normalized."""


def cache_place_findings(invocation: Invocation, several: Sequence[Evidence], *, is_wrong: bool) -> Iterator[Finding]:
    """Keys or values that a call writes into a cache and does not read, and places that it reads and has not written.

    Code that drops old tokens from its cache on purpose, as a window does, is right: what is not read counts only where
    something is wrong, or where it is the one token that asks: given alone, or in each call of one token after the
    other, none of which reads itself. Places that nothing was written to count where the call is told that its tokens
    are the first.

    Args:
        invocation: the call.
        several: the evidence of its attentions.
        is_wrong: whether a property is violated.
    """
    told = [value for name, value in invocation.arguments.items() if call_meaning(name) == "start"]
    is_first = any(isinstance(value, int) and value == 0 for value in told)
    roles = {each.role for each in invocation.streams}
    is_step = "context" in roles and any(each.role == "x" and not each.token_axes for each in invocation.streams)
    for evidence in several:
        instance = evidence.base.instance
        trace, last = instance.run.trace, max(each.operation.index for each in instance.sums)
        for storage, writes in kept_writes(trace, last, copies=is_step).items():
            places = _places(trace, storage, writes, reads_of(trace, storage, writes[0].index, last))
            if places is None:
                continue
            written, read = places
            # Who hands a mask over may hide what comes behind.
            end = max(written) if invocation.masks else max(read) + 1
            empty = [number for number, place in enumerate(read) if place not in written and place < end]
            is_meant = is_wrong or is_step or (invocation.in_steps and _reads_others_alone(evidence.base))
            if (is_meant and not set(written) <= set(read)) or (is_first and _has_weight(instance, len(read), empty)):
                message = f"in a cache places {_listed(written)} are written, and places {_listed(read)} are read"
                yield Finding("violation", "cache-places", "k", message, writes[0].location, instance.module)
                break


def misplaced(before: Trace, after: Trace, token: int) -> Finding | None:
    """A token that is written over another one, or behind a place that stays empty and is read.

    Args:
        before: the call of the tokens before it, the first ones.
        after: the call of this token, with their cache.
        token: its number; there are as many before it.
    """
    pairs = zip(kept_writes(before, len(before)).items(), kept_writes(after, len(after)).items(), strict=False)
    for (_, (first, *_)), (storage, (second, *_)) in pairs:
        records = [each for operation in after for each in operation.inputs if each.storage == storage]
        whole = max(records, key=lambda each: each.data.numel())
        reads = reads_of(after, storage, second.index, len(after))
        for size, step in _axes(whole):
            old, new = (set(((_changed(each) - whole.offset) // step % size).tolist()) for each in (first, second))
            if len(old) == token and len(new) == 1 and new <= old:
                message = f"token {token} is written to place {min(new)} of a cache, over another one"
                return Finding("violation", "cache-places", "k", message, second.location)
            read = {place for each in reads for place in ((_addresses(each) - whole.offset) // step % size).tolist()}
            empty = sorted(each for each in read - old - new if each < max(new, default=0))
            if len(old) == token and len(new) == 1 and empty:
                message = (
                    f"token {token} is written to place {min(new)} of a cache: "
                    f"place {_listed(empty)} is read, and nothing was written there"
                )
                return Finding("violation", "cache-places", "k", message, second.location)
    return None


def _reads_others_alone(table: AttentionTable) -> bool:
    """Whether no token but the first reads itself, which has no other; not where queries are keys, as in Reformer."""
    own = (table.query.token == table.key.token) & (table.query.stream == table.key.stream)
    first = own & (table.key.token == table.key.token.min())
    cosines = torch.cosine_similarity(table.q[first].double(), table.k[first].double(), dim=-1)
    are_shared = bool(first.any()) and bool((cosines > SAME_DIRECTION).all())
    asking = torch.unique(table.query.token)
    return len(asking) > 1 and not are_shared and not bool((table.weight[own & ~first].abs() > ZERO_WEIGHT).any())


def _has_weight(instance: AttentionInstance, places: int, chosen: Sequence[int]) -> bool:
    """Whether a query gives weight to some of the places that are read."""
    trace = instance.run.trace
    for each in instance.sums:
        operation, number = instance.weights_place(each)
        weights = trace.operations[operation].inputs[number].data
        if instance.weights_left and weights.shape[-1] == places and float(weights[..., chosen].sum()) > 0:
            return True
    return False


def kept_writes(trace: Trace, last: int, *, copies: bool = False) -> dict[int, list[Operation]]:
    """By memory that was there before the call, or a copy of it, what writes into it before some operation."""
    made = {
        each.storage
        for operation in trace
        if not operation.is_view and not (copies and operation.name == "clone")
        for each in operation.outputs
    }
    found: dict[int, list[Operation]] = {}
    for operation in trace.operations[:last]:
        for record in operation.written:
            if record.storage not in made and record.data.is_floating_point():
                found.setdefault(record.storage, []).append(operation)
    return found


def reads_of(trace: Trace, storage: int, first: int, last: int) -> list[TensorRecord]:
    """What is taken out of some memory after an operation and up to another."""
    return [
        record
        for operation in trace.operations[first + 1 : last + 1]
        if not operation.is_view
        for record in operation.inputs
        if record.storage == storage
    ]


def reads_own_place(part: Trace, kept: tuple[int, Sequence[Operation]], token: int) -> bool:
    """Whether a token is written to its own place of some memory, and nothing of any other place is read.

    Args:
        part: the call of this token, with the cache of those before it.
        kept: the memory, and what writes into it.
        token: its number; there are as many before it.
    """
    storage, writes = kept
    reads = reads_of(part, storage, writes[0].index, len(part))
    if not reads:
        return False
    records = [each for operation in part for each in operation.inputs if each.storage == storage]
    whole = max(records, key=lambda each: each.data.numel())
    written, read = torch.cat([_changed(each) for each in writes]), torch.cat([_addresses(each) for each in reads])
    return any(
        all(set(((each - whole.offset) // step % size).tolist()) == {token} for each in (written, read))
        for size, step in _axes(whole)
    )


def _places(
    trace: Trace, storage: int, writes: Sequence[Operation], reads: Sequence[TensorRecord]
) -> tuple[list[int], list[int]] | None:
    """The places that are written and those that are read, along the first axis where these differ; None where none."""
    records = [each for operation in trace for each in operation.inputs if each.storage == storage]
    whole = max(records, key=lambda each: each.data.numel())
    written = torch.cat([_changed(each) for each in writes]) - whole.offset
    if not reads or not len(written):
        return None
    read = torch.cat([_addresses(each) for each in reads]) - whole.offset
    if not len(read):  # the part before the first token, which is empty: the tokens' own keys stand beside it
        return None
    for size, step in _axes(whole):
        into, out_of = (sorted(set((each // step % size).tolist())) for each in (written, read))
        if into != out_of:
            return into, out_of
    return None


def _axes(record: TensorRecord) -> list[tuple[int, int]]:
    """The size and the stride of each axis along which there are several places."""
    return [each for each in zip(record.shape, record.stride, strict=True) if min(each) > 0]


def _changed(write: Operation) -> Tensor:
    """The addresses of the numbers that an operation changed."""
    after = write.written[0]
    before = next((each for each in write.inputs if each.storage == after.storage and each.shape == after.shape), None)
    changed = torch.ones(after.shape, dtype=torch.bool) if before is None else before.data != after.data
    return _addresses(after)[changed.flatten()]


def _addresses(record: TensorRecord) -> Tensor:
    """(numbers): where each lies in its memory."""
    places = torch.tensor(record.offset)
    for size, step in zip(record.shape, record.stride, strict=True):
        places = places.unsqueeze(-1) + step * torch.arange(size)
    return places.flatten()


def _listed(places: Sequence[int]) -> str:
    """As "1 to 4"; places that are apart one by one."""
    if places[-1] - places[0] == len(places) - 1 > 0:
        return f"{places[0]} to {places[-1]}"
    return ", ".join(map(str, places))
