"""Queries and keys less their mean over the tokens: what is left of each is its own (whitened pairs)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.local import projections_of
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["CENTERED", "centers_of"]

_SAID = re.compile(r"whiten|\bcent(?:er|re)|zero[- ]mean|disentangle", re.I)
"""What code says that subtracts the mean on purpose."""
CENTERED = "queries and keys are less their mean over the tokens (whitened pairs, arXiv:2006.06668, section 3)"


def centers_of(invocation: Invocation, trace: Trace, instances: Sequence[AttentionInstance]) -> dict[int, Tensor]:
    """The means that queries and keys are subtracted from, by the index of their operation.

    Held, they leave each query and key to its own token. Yin et al. 2020, "Disentangled Non-Local Neural Networks"
    (arXiv:2006.06668, equation 6). Only where the code says that it is meant so: else it may be a norm over the tokens.

    Args:
        invocation: the call.
        trace: a run of it.
        instances: its attentions.
    """
    if not _SAID.search("\n".join((documentation_of(invocation.target), *comments_of(invocation.target)))):
        return {}
    projected = {each.outputs[0].storage for one in instances for each in projections_of(one)}
    of_projections = trace.made_of(projected)
    found = {}
    for each in trace:
        if each.name != "sub" or len(each.inputs) != 2 or each.inputs[0].storage not in of_projections:
            continue
        taken, center = each.inputs
        mean = next((one for one in trace if one.name == "mean" and one.outputs[0].storage == center.storage), None)
        if mean is not None and mean.inputs[0].storage == taken.storage and center.shape[-1] == taken.shape[-1]:
            found[mean.index] = mean.outputs[0].data
    return found
