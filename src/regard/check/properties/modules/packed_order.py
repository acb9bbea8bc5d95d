"""The order in which one matrix holds the weights of queries, keys and values, where it is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.named_matrices import operands
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["packed_by_head_findings", "packed_order_findings"]

OF_PYTORCH = "in_proj_weight"
"""The name by which `torch.nn.functional.multi_head_attention_forward` takes the three, in this order."""
_ONE = {"q": r"q(?:uer(?:y|ies))?", "k": r"k(?:eys?)?", "v": r"v(?:alues?)?"}
_ANY = "|".join(_ONE.values())
_ORDER = re.compile(rf"\b({_ANY})\b((?:[\s,/|;`'\"]|and|then)+)({_ANY})\b((?:[\s,/|;`'\"]|and|then)+)({_ANY})\b", re.I)
_BY_HEAD = re.compile(
    rf"\bheads?\s*[0i]\s*[:=]?\W{{0,2}}(?:{_ONE['q']})[\s,/|]+(?:{_ONE['k']})[\s,/|]+(?:{_ONE['v']})\b", re.I
)
"""What is said of rows that belong to one head, and then to the next."""
_WORDS = {"q": "queries", "k": "keys", "v": "values"}


def packed_order_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A matrix that is handed over and whose parts are taken in another order than its name or documentation says.

    Args:
        invocation: the call.
        evidence: its only attention.
    """
    for name, matrix in invocation.arguments.items():
        if call_meaning(name) != "w_qkv" or not isinstance(matrix, Tensor) or matrix.ndim != 2:
            continue
        told = _order(documentation_of(invocation.target), name)
        found = _taken(invocation, evidence, name, matrix) if told else ""
        if found and found != told:
            said, does = (", ".join(_WORDS[each] for each in order) for order in (told, found))
            message = f"{name} holds the weights of {said}, in this order; the code takes them for {does}"
            line = evidence.base.instance.scores_location
            yield Finding("violation", "packed-as-documented", "projections", message, line)


def _order(text: str, name: str) -> str:
    """The order that is promised, as "qkv"; empty where nothing tells, or several are told."""
    orders = {"".join(each[place][0].lower() for place in (0, 2, 4)) for each in _ORDER.findall(text)}
    orders = {each for each in orders if sorted(each) == ["k", "q", "v"]}
    if not orders and name == OF_PYTORCH:
        return "qkv"
    return orders.pop() if len(orders) == 1 else ""


def _taken(invocation: Invocation, evidence: Evidence, name: str, matrix: Tensor) -> str:
    """What each third of a matrix is taken for, as "qvk"; empty where a third is no part of one alone."""
    axis = 0 if matrix.shape[0] == 3 * matrix.shape[1] else 1
    base = operands(evidence, evidence.base.instance.run.trace)
    found = ""
    for third in range(3):
        changed = matrix.clone()
        part = changed.tensor_split(3, axis)[third]
        part += torch.randn(part.shape, generator=torch.Generator().manual_seed(third), dtype=part.dtype)
        other = operands(evidence, record_invocation(invocation, {**invocation.arguments, name: changed}))
        moved = [each for each in base if each in other and bool(differs(base[each], other[each]).any())]
        found += moved[0] if len(moved) == 1 else ""
    return found if sorted(found) == ["k", "q", "v"] else ""


def packed_by_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A learned matrix whose rows are told to be those of one head after the other, and that is taken in thirds.

    As in "head 0: q k v, head 1: q k v": the second block of rows, as wide as a head, is for keys.

    Args:
        invocation: a call of a module.
        evidence: its only attention.
    """
    heads = evidence.base.num_heads
    told = _BY_HEAD.search("\n".join([documentation_of(invocation.target), *comments_of(invocation.target)]))
    if told is None or not isinstance(invocation.target, nn.Module) or heads < 2:
        return
    base = operands(evidence, evidence.base.instance.run.trace)
    live = copied(invocation.target)
    for name, matrix in live.named_parameters():
        width, rest = divmod(len(matrix), 3 * heads)
        if matrix.ndim != 2 or rest or len(matrix) != 3 * matrix.shape[1] or not width:
            continue
        with torch.no_grad():
            part = matrix[width : 2 * width]
            part += torch.randn(part.shape, generator=torch.Generator().manual_seed(5), dtype=part.dtype)
        other = operands(evidence, record_invocation(replace(invocation, target=live)))
        moved = [each for each in base if each in other and bool(differs(base[each], other[each]).any())]
        if moved == ["q"]:
            message = (
                f'by its documentation the rows of {name} are those of one head after the other, "{told[0].strip()}"; '
                "the code takes a third of them for the queries of all heads"
            )
            line = evidence.base.instance.scores_location
            yield Finding("violation", "packed-as-documented", "projections", message, line)
        return
