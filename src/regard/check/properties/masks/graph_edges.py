"""The edges of a graph, which say what a node attends to: they are not what it does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.code import code_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["GRAPH", "edge_findings", "weighed_edges"]

GRAPH = re.compile("adj(?:acency)?(?:_?(?:mat|matrix))?")
"""Names of the edges of a graph."""
_OF_OTHERS = re.compile(r"\bnon[- _]?(?:neighbou?r|adjacent|edge)|complement|\bnot? (?:adjacent|connected)", re.I)
"""In a code: nodes attend to those that they have no edge to."""


def edge_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Nodes that see all others where there is no edge, and none where each has an edge to all.

    Args:
        invocation: a call with all edges that there can be, or with none.
        several: the evidence of its attentions.
    """
    if _OF_OTHERS.search(code_of(invocation.target)):
        return
    for name in [each for each in invocation.masks if GRAPH.fullmatch(each.lower())]:
        edges = invocation.arguments.get(name)
        if not isinstance(edges, Tensor) or edges.is_complex():
            continue
        is_without = bool((edges == 0).all())
        if not is_without and not bool((edges == 1).all()):
            continue
        other = torch.ones_like(edges) if is_without else torch.zeros_like(edges)
        run = record_invocation(invocation, {**invocation.arguments, name: other})
        for evidence in several:
            table = evidence.base
            others = table.query.token != table.key.token
            found = None if run.error else masked_weights(evidence, run)
            if found is None or not bool(others.any()):
                return
            linked, apart = (found, table.weight) if is_without else (table.weight, found)
            if bool((linked.abs() > ZERO_WEIGHT)[others].any()) or not bool((apart > ZERO_WEIGHT)[others].all()):
                return
        message = (
            f"with an edge between all nodes in {name} no node sees any other, and without one each sees all others: "
            "edges are taken for what is hidden"
        )
        if several:
            line = several[0].base.instance.scores_location
            yield Finding("violation", "mask-argument", "mask", message, line, several[0].base.instance.module)
        return


def weighed_edges(
    invocation: Invocation, evidence: Evidence, outcomes: Sequence[MaskOutcome], name: str
) -> list[Finding]:
    """That edges are a bias: times a number that is learned, they are added to the scores, and hide nothing.

    Without that number a 1 that is added where there is an edge is a mask that does not hide.

    Args:
        invocation: the call, which may lack the edges.
        evidence: of the attention.
        outcomes: of its edges, one at least, in each form and shape that the call takes.
        name: of the argument.
    """
    if not GRAPH.fullmatch(name.lower()) or any(bool((each.blocked & each.judged).any()) for each in outcomes):
        return []
    run = record_invocation(invocation, {**invocation.arguments, name: outcomes[0].value})
    given = [run.arguments[each.argument].storage for each in invocation.streams if each.argument in run.arguments]
    edges, tokens = run.made_of([run.arguments[name].storage]), run.made_of(given)
    weighed = {
        each.outputs[0].storage
        for each in run
        if each.name.rstrip("_") == "mul" and len(each.inputs) == 2
        for one, other in (each.inputs, each.inputs[::-1])
        if one.storage in edges - tokens and not one.learned and other.learned and other.storage not in tokens
    }
    if any(each.is_addition and any(one.storage in weighed for one in each.inputs) for each in run):
        message = f"{name} times a learned number is added to the scores: a bias of edges, which hides no key"
        return [Finding("design", "bias-by-pair", "bias", message, evidence.base.instance.scores_location)]
    return []
