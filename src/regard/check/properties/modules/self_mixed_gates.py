"""Gates that mix two vectors: what is kept, and what is new, are others than the gate."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["self_mixed_gate_findings"]


def self_mixed_gate_findings(trace: Trace) -> Iterator[Finding]:
    """A sum (1 - z) * a + z * b of a gate z, a sigmoid, in which a or b is the gate itself, or both are the same.

    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder" (arXiv:1406.1078), equation 7; a
    variance z * (1 - z) that is added to something else is left alone.

    Args:
        trace: a run.
    """
    made = {one.storage: each for each in trace if not each.is_view for one in each.outputs}

    def product(storage: int) -> list[TensorRecord]:
        operation = made.get(storage)
        is_product = operation is not None and operation.name.rstrip("_") == "mul" and len(operation.inputs) == 2
        return [*operation.inputs] if operation is not None and is_product else []

    for total in trace:
        if total.name.rstrip("_") != "add" or len(total.inputs) != 2:
            continue
        products = [product(each.storage) for each in total.inputs]
        for before, after in (products, products[::-1]):
            kept, new = ([each.storage for each in several] for several in (before, after))
            for rest in kept:
                gate = _gate_of(made.get(rest))
                squashed = None if gate is None else made.get(gate)  # an argument is made by nothing
                if squashed is None or gate not in new or squashed.name.rstrip("_") != "sigmoid":
                    continue
                if sorted((*kept,)) == sorted((rest, gate)) or new == [gate, gate]:
                    message = (
                        "a gate z mixes (1 - z) * a and z * b, and one of both is z itself: what the gate was to keep "
                        "is lost"
                    )
                    yield Finding("violation", "gate-mixes-others", "block", message, total.location)
                    return
                if _are_one(_beside(before, rest), _beside(after, gate)):
                    message = (
                        "a gate z mixes (1 - z) * a and z * a, the same vector: the gate has no effect, and what it "
                        "was to be mixed with is lost"
                    )
                    yield Finding("violation", "gate-mixes-others", "block", message, total.location)
                    return


def _beside(product: list[TensorRecord], gate: int | None) -> TensorRecord | None:
    return next((each for each in product if each.storage != gate), None)


def _are_one(one: TensorRecord | None, other: TensorRecord | None) -> bool:
    if one is None or other is None:
        return False
    return (one.storage, one.offset, one.shape) == (other.storage, other.offset, other.shape)


def _gate_of(operation: Operation | None) -> int | None:
    """Of 1 - z, the memory of z; None of anything else."""
    if operation is None or operation.name not in ("rsub", "sub"):
        return None
    tensors = [each for each in operation.inputs if each.data.numel() > 1]
    if len(tensors) != 1 or operation.outputs[0].shape != tensors[0].shape:
        return None
    is_rest = bool((operation.outputs[0].data + tensors[0].data - 1).abs().max() < 1e-9)
    return tensors[0].storage if is_rest else None
