"""Multi-head attention as in its paper: a matrix W_O is applied to the joined heads, and before anything is added."""

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
from regard.check.trace.operation import COPIES, Operation

__all__ = ["unprojected_head_findings"]

_PAPER = re.compile(
    r"attention is all you need|\b3\.2\.2\b|\b1706\.03762|\bvaswani\b"
    r"|concat\w*\s*\([^()]*\)\s*[*@.\u00b7]?\s*W[\W_]{0,2}O\b",
    re.I,
)
LAID_OUT = COPIES | {"cat", "stack"}
"""Operations that change no number."""
_FORMULA = re.compile(
    r"concat\w*\s*\(.{,60}?\)\s*[*@.\u00b7]?\s*(?:W[\W_]{0,2}O\b|\\?mathbf\s*\{?W[\W_]{0,4}O\b)"
    r"|concatenated and once again projected",
    re.I,
)
"""Of what is returned: the matrix stands in it, and is not left to a caller."""
_QUOTED = re.compile(
    r"instead of performing a single attention"
    r"|\bdifferent,? (?:learned|learnable)?,?\s*(?:linear )?projections?"
    r"|different (?:representation(?:al)? )?sub-?spaces?|at different positions",
    re.I,
)
"""Words of the paper itself, which do not say that anything is otherwise than there."""
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
    to its caller; where they are added already, nobody can apply it, and where the formula of what is returned has it,
    nobody will. The formula has one matrix for all heads: one that is applied to each head mixes none of them.

    Args:
        invocation: a call.
        several: the evidence of its attentions.
    """
    if len(several) != 1 or several[0].base.num_heads < 2:
        return
    instance, target = several[0].base.instance, invocation.target
    inner = target.get_submodule(instance.module) if isinstance(target, nn.Module) else target
    texts = (name_and_documentation(each) for each in (inner, target))
    said = next((each for each in texts if _cited_in(each) and _OF_HEADS.search(each)), "")
    if not said or _OTHERWISE.search(_QUOTED.sub("", " ".join(said.split()))):
        return
    formula = _FORMULA.search(" ".join(said.split()))
    is_made_here = isinstance(target, nn.Module) and any(each.ndim > 1 for each in target.parameters())
    if formula is not None and (alone := _matrix_of_one_head(instance)) is not None:
        operation, width = alone
        message = (
            f"a matrix of {width} channels is applied to each head by itself; by the formula of the documentation "
            f'("{formula[0]}") it is one of the joined heads, which mixes them'
        )
        yield Finding("violation", "heads-projected", "projected", message, operation.location, instance.module)
        return
    name = added_to(instance.run.trace, instance, [each.argument for each in invocation.streams])
    if name is not None and not _is_projected(instance):
        message = (
            f"the joined heads are added to {name} as they are; in multi-head attention by the paper that is cited "
            f'("{_cited_in(said)}") a matrix W_O is applied to them before'
        )
        yield Finding("violation", "heads-projected", "projected", message, instance.sums_location, instance.module)
    elif formula is not None and is_made_here and not _is_read_on(instance):
        message = (
            f'the joined heads are returned as they are; by the formula of the documentation ("{formula[0]}") a matrix '
            "W_O is applied to them before"
        )
        yield Finding("violation", "heads-projected", "projected", message, instance.sums_location, instance.module)


def _cited_in(text: str) -> str:
    """What it cites of the paper; empty where it does not."""
    found = _PAPER.search(text) or _FORMULA.search(" ".join(text.split()))
    return " ".join(found[0].split()) if found else ""


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


def _is_read_on(instance: AttentionInstance) -> bool:
    """Whether any operation, but for one that lays the numbers out otherwise, takes the weighted sums."""
    sums = {each.operation.index for each in instance.sums}
    alone = {each.operation.outputs[0].storage for each in instance.sums}
    for operation in instance.run.trace.operations[max(sums) + 1 :]:
        if any(each.storage in alone for each in operation.inputs):
            if operation.is_in_place or not (operation.is_view or operation.name in LAID_OUT):
                return True
            alone.update(each.storage for each in (*operation.outputs, *operation.written))
    return False


def _matrix_of_one_head(instance: AttentionInstance) -> tuple[Operation, int] | None:
    """The product of each head with one and the same square matrix, and its width; None where another one follows.

    A matrix for each head, (heads, channels, width), is that of the formula in parts, whose products are added.
    """
    run, sums = instance.run, {each.operation.index for each in instance.sums}
    widths = {each.output.shape[-1] for each in instance.sums}
    behind = [
        (product, matrix)
        for product in run.products
        if product.operation.index > max(sums)
        for place, matrix in ((product.left_place, product.right), (product.right_place, product.left))
        if run.owner_of(run.tags.inputs[place[0]][place[1]])
    ]
    if len(behind) != 1 or len(widths) != 1:
        return None
    ((product, matrix),), (width,) = behind, widths
    is_square = matrix.learned and matrix.shape[-2:] == (width, width) and product.left_terms.shape[-1] == width
    is_one = matrix.data.ndim == 2 or not any(matrix.stride[:-2])
    taken = run.taken[product.operation.index]
    return (product.operation, width) if is_square and is_one and taken and taken <= sums else None
