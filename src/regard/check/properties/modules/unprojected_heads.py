"""Multi-head attention as in its paper: a matrix W_O is applied to the joined heads before anything is added."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.added_to_itself import added_to
from regard.check.properties.modules.residuals import is_joined
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation

__all__ = ["unprojected_head_findings"]

_PAPER = re.compile(
    r"attention is all you need|\b3\.2\.2\b|\b1706\.03762|\bvaswani\b"
    r"|concat\w*\s*\([^()]*\)\s*[*@.\u00b7]?\s*W\W{0,2}O\b",
    re.I,
)
_OF_HEADS = re.compile(r"multi[\s_-]?head", re.I)
_OTHERWISE = re.compile(
    r"\b(?:without|omit\w*|simplif\w*|inspired|based on|modif\w*|varia(?:nt|tion)\w*|unlike|instead|differ\w*|similar|"
    r"no (?:output|final|further|last|linear|W_?O)|skip\w*|drop(?:s|ped)? the)\b|n't\b|\bnot\b",
    re.I,
)
"""In a documentation: it is another attention than that of the paper."""


def unprojected_head_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Joined heads that are added to the input as they are, where multi-head attention as in its paper is promised.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2. What returns the heads alone may leave the matrix
    to its caller; where they are added already, nobody can apply it.

    Args:
        invocation: a call.
        several: the evidence of its attentions.
    """
    if len(several) != 1 or several[0].base.num_heads < 2:
        return
    instance, target = several[0].base.instance, invocation.target
    inner = target.get_submodule(instance.module) if isinstance(target, nn.Module) else target
    said = next((text for each in (inner, target) if _PAPER.search(text := name_and_documentation(each))), "")
    if not _OF_HEADS.search(said) or _OTHERWISE.search(said):
        return
    name = added_to(instance.run.trace, instance, [each.argument for each in invocation.streams])
    if name is None or _is_projected(instance):
        return
    (cited,) = re.findall(_PAPER, said)[:1]
    message = (
        f"the joined heads are added to {name} as they are; in multi-head attention by the paper that is cited "
        f'("{" ".join(cited.split())}") a matrix W_O is applied to them before'
    )
    yield Finding("violation", "heads-projected", "projected", message, instance.sums_location, instance.module)


def _is_projected(instance: AttentionInstance) -> bool:
    """Whether a matrix, or a convolution, is applied to the weighted sums before something else is added to them."""
    run, sums = instance.run, {each.operation.index for each in instance.sums}
    products = {each.operation.index for each in run.products} - sums
    alone = {each.operation.outputs[0].storage for each in instance.sums}
    for operation in run.trace.operations[max(sums) + 1 :]:
        if is_joined(operation, alone):
            return False
        if any(each.storage in alone for each in operation.inputs):
            if operation.index in products or operation.name == "convolution":
                return True
            alone.update(each.storage for each in (*operation.outputs, *operation.written))
    return True
