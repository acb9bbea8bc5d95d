"""A table of vectors whose rows are of several fields: each field's ids are moved to where its rows begin."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from regard.check.properties.attributes import is_unread
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Trace

__all__ = ["field_row_findings"]


def field_row_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Says where the first row of each field is kept, and no code reads it: all fields share the first rows.

    Args:
        invocation: the call; of ids, one of each field.
        base: its run.
    """
    tensors = [each for each in invocation.arguments.values() if isinstance(each, Tensor) and each.ndim > 1]
    fields = {each.shape[-1] for each in tensors if not each.is_floating_point()}
    for module in (each for root in modules_in(invocation.target) for each in root.modules()):
        rows = max((each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)), default=0)
        for name, kept in module.named_buffers(recurse=False):
            if kept.ndim == 1 and len(kept) in fields and _begin_fields(kept, rows) and is_unread(type(module), name):
                message = (
                    f"{name}, where the rows of each of {len(kept)} fields begin in a table of {rows}, is kept and "
                    "never read: the same id of two fields has one vector"
                )
                looked_up = [each for each in base if each.name == "embedding" and each.inputs[0].shape[0] == rows]
                line = looked_up[0].location if looked_up else None
                yield Finding("violation", "rows-of-each-field", "projections", message, line)
                return


def _begin_fields(kept: Tensor, rows: int) -> bool:
    """Whether they are sums of sizes, from 0 on, that differ from the numbers of places, and end within the rows."""
    steps = kept.diff()
    is_whole = not kept.is_floating_point() and len(steps) > 0 and bool((steps > 0).all())
    return is_whole and int(kept[0]) == 0 and bool((steps > 1).any()) and int(kept[-1]) < rows
