"""Residuals that are taken behind the matrix of the queries: the input itself has no way around the attention."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence

from regard.check.names import role
from regard.check.properties.code import code_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.residuals import ACTIVATIONS, is_joined
from regard.check.properties.modules.set_blocks import MATRICES
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace, reached

__all__ = ["projected_residual_findings"]

_OF_SETS = re.compile(r"(?<![A-Za-z])sets?(?![a-z])|(?<![A-Z])(?:MAB|I?SAB|PMA)(?![a-z])|SetTransformer|induc", re.I)
"""In code after the Set Transformer, whose residual carries the queries as they are projected (equation 6)."""
_RESIDUAL = re.compile(r"\b(?:residual|skip|shortcut)\b", re.I)
_PROJECTED = re.compile(r"project", re.I)


def projected_residual_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """What an attention read, added to the queries as their own matrix made them, and not to what that took.

    Where a matrix stands between the heads and the sum; or where none does, and the line says that it is the residual.

    Args:
        invocation: the call.
        several: the evidence of its attentions.
    """
    if _OF_SETS.search(code_of(invocation.target)):
        return
    for each in several:
        instance, trace = each.base.instance, each.base.instance.run.trace
        attended = trace.made_of({one.operation.outputs[0].storage for one in instance.sums})
        total = next((one for one in trace if is_joined(one, attended)), None)
        if total is None:
            continue
        (other,) = (one.storage for one in total.inputs if one.storage not in attended)
        makes = _matrix_of(trace, other)
        if makes is None or role(makes.module) != "q" or not _are_queries(each, trace, other):
            continue
        between = trace.operations[instance.sums[-1].operation.index + 1 : total.index]
        is_projected = any(one.name in MATRICES and one.inputs[-2].storage in attended for one in between)
        if is_projected or _is_said_to_be_a_residual(total):
            message = (
                f"what this attention read is added to what {makes.module} made of its input, and not to that input: "
                "a token has no way around the matrix of the queries"
            )
            yield Finding("violation", "residual-of-the-input", "block", message, total.location, instance.module)
            return


def _matrix_of(trace: Trace, storage: int) -> Operation | None:
    """The product with a matrix that some memory holds, or an activation of it; None of anything else."""
    makes = next((one for one in trace if not one.is_view and storage in [each.storage for each in one.outputs]), None)
    if makes is not None and makes.name.rstrip("_") in ACTIVATIONS:
        return _matrix_of(trace, makes.inputs[0].storage)
    return makes if makes is not None and makes.name in MATRICES else None


def _are_queries(evidence: Evidence, trace: Trace, storage: int) -> bool:
    """Whether some memory is what the scores have of the queries, and nothing of it is in keys and values."""
    instance, is_left = evidence.base.instance, evidence.base.layout.queries_left
    queries, others = set[int](), {trace.taken(instance.values_place(one)).storage for one in instance.sums}
    for score in instance.scores:
        sides = (score.left_place, score.right_place) if is_left else (score.right_place, score.left_place)
        asking, asked = (trace.taken(place).storage for place in sides)
        queries.add(asking)
        others.add(asked)
    same = reached({storage}, [one for one in trace if one.name not in MATRICES])
    return bool(same & queries) and not others & trace.made_of([storage])


def _is_said_to_be_a_residual(total: Operation) -> bool:
    """Whether its line, or the comment above it, calls a sum a residual, and not one of what was projected."""
    line = total.location
    if line is None:
        return False
    above = linecache.getline(line.file, line.line - 1).strip()
    said = f"{above if above.startswith('#') else ''} {line.text}"
    return _RESIDUAL.search(said) is not None and _PROJECTED.search(said) is None
