"""Blocks of the Set Transformer: a residual goes around the attention, and one around the network behind it.

Lee et al. 2019, "Set Transformer", equations 6 and 7: MAB(X, Y) = LayerNorm(H + rFF(H)), H = LayerNorm(X + ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import ACTIVATIONS, IN_GELU, is_joined, is_sum
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, reached

__all__ = ["MATRICES", "set_block_findings"]

_SAYS_SO = re.compile(r"\b(?:set[-_ ]?transformers?\b|rff\()", re.I)
"""In a name or a documentation: it is such a block."""
_MAB = re.compile(r"(?<![A-Z])MAB(?![a-z])")
"""The same, where the projected queries are what the attention is added to: others have the same letters."""
MATRICES = frozenset({"mm", "addmm", "bmm", "convolution"})
_GATES = frozenset({"mul", "addcmul", "lerp"})


def set_block_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """A network that reads the sum of the attention and its queries, and whose output is returned without that sum.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    trace, text = run.trace, name_and_documentation(target)
    if len(instances) != 1 or not trace.outputs or not (_SAYS_SO.search(text) or _MAB.search(text)):
        return
    attended = trace.made_of({each.operation.outputs[0].storage for each in instances[0].sums})
    total = next((each for each in trace if is_joined(each, attended)), None)
    if total is None or not (_SAYS_SO.search(text) or _is_of_queries(total, attended, instances[0])):
        return
    behind = trace.operations[total.index + 1 :]
    made, returned = reached({total.outputs[0].storage}, behind), trace.outputs[0]
    matrices = [each for each in behind if each.name in MATRICES and each.inputs[-2].storage in made]
    bends = (each for each in behind if each.name.rstrip("_") in ACTIVATIONS | IN_GELU)
    is_network = bool(matrices) and any(each.index > matrices[0].index and _reads(each, made) for each in bends)
    is_as_wide = is_network and returned.storage in made and returned.shape[-1] == matrices[0].inputs[-2].shape[-1]
    if is_as_wide and not any(_meets(each, made) for each in behind):
        message = (
            "the sum of what the attention returned and of its queries is not added to what the network makes of it: "
            "in the Set Transformer a block returns H + rFF(H)"
        )
        yield Finding("violation", "residual-of-the-sum", "block", message, matrices[0].location)


def _is_of_queries(total: Operation, attended: set[int], instance: AttentionInstance) -> bool:
    """Whether the attention is added to factors of its scores, as they come out of their matrix."""
    (other,) = (each.storage for each in total.inputs if each.storage not in attended)
    trace = instance.run.trace
    same = reached({other}, [each for each in trace if each.name not in MATRICES])
    factors = {trace.taken(place).storage for each in instance.scores for place in each.places}
    return bool(same & factors)


def _reads(operation: Operation, some: set[int]) -> bool:
    return operation.inputs[0].storage in some


def _meets(operation: Operation, some: set[int]) -> bool:
    """Whether something of some memory is added to another tensor of its shape, or gated by one."""
    is_pair = is_sum(operation) or operation.name.rstrip("_") in _GATES
    return is_pair and any(each.storage in some for each in operation.inputs)
