"""The order in which one matrix holds the weights of queries, keys and values, where it is told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.named_matrices import operands
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.names import call_meaning

__all__ = ["packed_order_findings"]

OF_PYTORCH = "in_proj_weight"
"""The name by which `torch.nn.functional.multi_head_attention_forward` takes the three, in this order."""
_ONE = {"q": r"q(?:uer(?:y|ies))?", "k": r"k(?:eys?)?", "v": r"v(?:alues?)?"}
_ANY = "|".join(_ONE.values())
_ORDER = re.compile(rf"\b({_ANY})\b((?:[\s,/|;`'\"]|and|then)+)({_ANY})\b((?:[\s,/|;`'\"]|and|then)+)({_ANY})\b", re.I)
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
