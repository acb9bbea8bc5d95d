"""Where a call writes keys and values in tensors that a module keeps, and where it reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["cache_place_findings", "kept_writes"]


def cache_place_findings(several: Sequence[Evidence]) -> Iterator[Finding]:
    """Keys or values that a call writes into a cache, and does not read where it has written them.

    To be asked where something else is violated: code that drops old tokens from its cache on purpose, as a window
    does, or keeps a prompt that it need not read, is right.

    Args:
        several: the evidence of the attentions of a call.
    """
    for evidence in several:
        instance = evidence.base.instance
        last = max(each.operation.index for each in instance.sums)
        for storage, writes in kept_writes(instance.run.trace, last).items():
            reads = _reads(instance.run.trace, storage, writes[0].index, last)
            places = _places(instance.run.trace, storage, writes, reads)
            if places is not None:
                message = "in a cache {} are written, and {} are read".format(*places)
                yield Finding("violation", "cache-places", "k", message, writes[0].location, instance.module)
                break


def kept_writes(trace: Trace, last: int) -> dict[int, list[Operation]]:
    """By memory that was there before the call, what writes into it before some operation."""
    made = {each.storage for operation in trace if not operation.is_view for each in operation.outputs}
    found: dict[int, list[Operation]] = {}
    for operation in trace.operations[:last]:
        for record in operation.written:
            if record.storage not in made and record.data.is_floating_point():
                found.setdefault(record.storage, []).append(operation)
    return found


def _reads(trace: Trace, storage: int, first: int, last: int) -> list[TensorRecord]:
    """What is taken out of some memory after an operation and up to another."""
    return [
        record
        for operation in trace.operations[first + 1 : last + 1]
        if not operation.is_view
        for record in operation.inputs
        if record.storage == storage
    ]


def _places(
    trace: Trace, storage: int, writes: Sequence[Operation], reads: Sequence[TensorRecord]
) -> tuple[str, str] | None:
    """The places that are written and those that are read, along the one axis where some of the former are not read."""
    records = [each for operation in trace for each in operation.inputs if each.storage == storage]
    whole = max(records, key=lambda each: each.data.numel())
    if not reads or not whole.data.is_contiguous():
        return None
    written = torch.cat([_changed(each) for each in writes]) - whole.offset
    read = torch.cat([_addresses(each) for each in reads]) - whole.offset
    for size, step in zip(whole.shape, whole.stride, strict=True):
        into, out_of = (sorted(set((each // step % size).tolist())) for each in (written, read))
        if not set(into) <= set(out_of):
            return f"places {_listed(into)}", f"places {_listed(out_of)}"
    return None


def _changed(write: Operation) -> Tensor:
    """The addresses of the numbers that an operation changed."""
    after = write.written[0]
    before = next(each for each in write.inputs if each.storage == after.storage)
    return _addresses(after)[(before.data != after.data).flatten()]


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
