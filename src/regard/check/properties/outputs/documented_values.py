"""What a formula of the documentation weighs: the states that it projects for the scores, not what that returns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from regard.check.properties.code import documentation_of_functions
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation

__all__ = ["documented_value_findings"]

_INDEX = r"(?:_?\{[^{}\n]*\}|_\w+|\[\w+(?:,\s*\w+)?\])?"
_TIMES = r"\s*(?:\\cdot|[*·.@⋅])?\s*"
_WEIGHED = re.compile(
    rf"(?:\\?\bsum|Σ|∑){_INDEX}\s*[(\[]?\s*(?:\\?\balpha|α|\ba|\bw|\bp|\bweights?|\battn\w*?|\bscores?){_INDEX}{_TIMES}"
    rf"(?P<symbol>\b[A-Za-z][A-Za-z0-9]*){_INDEX}(?![\w(])"
)
"""sum_j a_ij h_j, or \\sum_j \\alpha_{ij} h_j: a symbol behind a weight."""
_PROJECTED = r"(?<![A-Za-z]){matrix}{times}{symbol}(?:(?=[_\[{{])|(?![\w(]))"
_MATRIX = r"[WU]\d?(?:_?\{\w+\}|_\w+)?"
_OTHERWISE = re.compile(
    r"\b(?:instead|unlike|differ\w*|simplif\w*|varia(?:nt|tion)\w*|modif\w*|not|no)\b|n't\b"
    r"|\bprojected\s+(?:\w+\s+)?(?:states?|keys?|values?|memory|memories|annotations?|vectors?|outputs?)\b",
    re.I,
)
"""In a documentation: the formula is not all that it says of it."""


def documented_value_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Projected keys that are weighed as well, where a formula weighs what it projects to keys.

    Bahdanau et al. 2015, equations 5 and 6: c_i = sum_j a_ij h_j, with a_ij of v . tanh(W s_i + U h_j).

    Args:
        invocation: a call.
        several: the evidence of its attentions.
    """
    if len(several) != 1:
        return
    instance, target = several[0].base.instance, invocation.target
    if several[0].base.width == 1 and instance.run.additive:
        return  # of graphs: each node's vector is projected before anything else, and called by the same symbol
    inner = target.get_submodule(instance.module) if isinstance(target, nn.Module) else target
    texts = dict.fromkeys([documentation_of(target), documentation_of(inner), documentation_of_functions(target)])
    for text in texts:
        symbol = _weighed_symbol(text)
        if not symbol or _OTHERWISE.search(text) or not _are_projected_keys(instance):
            continue
        (formula,) = [found[0] for found in _WEIGHED.finditer(text)][:1]
        message = (
            f"the documentation weighs {symbol} ({' '.join(formula.split())}), which a matrix projects for the "
            "scores, and what is weighed is what that matrix returned"
        )
        yield Finding("violation", "values-as-documented", "projections", message, instance.sums_location)
        return


def _weighed_symbol(text: str) -> str:
    """The symbol that a formula weighs, where it projects the same one for its scores; empty where there is none."""
    symbols = {found["symbol"] for found in _WEIGHED.finditer(text)}
    if len(symbols) != 1:
        return ""
    (symbol,) = symbols
    projected = _PROJECTED.format(matrix=_MATRIX, times=_TIMES, symbol=re.escape(symbol))
    return symbol if re.search(projected, text) else ""


def _are_projected_keys(instance: AttentionInstance) -> bool:
    """Whether the values are what one product returned, and one side of the scores is the same."""
    run = instance.run
    values = set[int]()
    for each in instance.sums:
        index, number = instance.values_place(each)
        values |= run.owner_of(run.tags.inputs[index][number])
    if len(values) != 1 or not values <= {each.operation.index for each in run.products}:
        return False
    made = [
        [run.owner_of(run.tags.inputs[index][number]) == values for index, number in each.places]
        for each in instance.scores
    ]
    return all(one is not other for one, other in made)
