"""What embeddings are multiplied by before positions are added to them.

Vaswani et al. 2017, "Attention Is All You Need", section 3.4: "In the embedding layers, we multiply those weights by
sqrt(d_model)", in those of both texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["embedding_scale_findings"]


def embedding_scale_findings(base: Trace) -> Iterator[Finding]:
    """Embeddings that are divided by sqrt(d_model), and those of two texts of which one alone is scaled.

    Args:
        base: a run.
    """
    scaled = {name: each for name in base.arguments if (each := _scaled(base, name)) is not None}
    for name, (factor, width, operation) in scaled.items():
        if math.isclose(factor, width**-0.5, rel_tol=1e-6):
            message = (
                f"the embeddings of {name} are divided by sqrt({width}) before positions are added: they are to be "
            )
            message += "multiplied by it"
            yield Finding("violation", "embeddings-scaled", "positions", message, operation.location)
            return
    if len(scaled) == 2:
        (one, (first, width, _)), (other, (second, _, last)) = scaled.items()
        is_root = any(math.isclose(each, width**0.5, rel_tol=1e-6) for each in (first, second))
        if is_root and not math.isclose(first, second, rel_tol=1e-6):
            message = f"the embeddings of {one} are multiplied by {first:.4g}, those of {other} by {second:.4g}"
            yield Finding("violation", "embeddings-scaled", "positions", message, last.location)


def _scaled(base: Trace, name: str) -> tuple[float, int, Operation] | None:
    """The number that the embeddings of an argument's ids are multiplied by before a sum, their width, and the line."""
    given = base.arguments[name]
    if given.data.is_floating_point():
        return None
    looked_up = [each for each in base if each.name == "embedding" and each.inputs[1].storage == given.storage]
    if len(looked_up) != 1:
        return None
    operation, factor = looked_up[0], 1.0
    storage, width = operation.outputs[0].storage, operation.outputs[0].shape[-1]
    for later in base.operations[operation.index + 1 :]:
        if not any(each.storage == storage for each in later.inputs) or later.is_view:
            continue
        kind = later.name.rstrip("_")
        number = _number(later)
        if kind in ("mul", "div") and number:
            factor = factor * number if kind == "mul" else factor / number
            storage, operation = later.outputs[0].storage, later
        else:
            return (factor, width, operation) if kind == "add" and number is None else None
    return None


def _number(operation: Operation) -> float | None:
    """The number that is the second argument of an operation; None where that is a tensor of several."""
    if len(operation.args) < 2:
        return None
    other = operation.args[1]
    if isinstance(other, TensorRecord):
        return float(other.data) if other.data.numel() == 1 else None
    return float(other) if isinstance(other, int | float) else None
