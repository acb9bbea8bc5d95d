"""Queries, keys and values that are each projected from the input, and not one from what another was projected to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.factors import factor_tags
from regard.check.roles.table import AttentionTable

__all__ = ["chained_projection_findings"]

_ON_PURPOSE = re.compile(r"hopfield|associative memory|\bslim\b|latent|\bMLA\b|low[- ]?rank", re.I)
"""Modern Hopfield networks (Ramsauer et al. 2021, equation 10: Y W_K W_V), and what stores keys alone."""
_SAID = r"\b{0}\b[^.;]{{0,40}}\b(?:from|of|out of)\s+(?:the\s+)?(?:(?:projected|same|stored|cached)\s+)?{1}\b"
_WORDS = {"queries": r"(?:quer(?:y|ies)|q)", "keys": r"(?:keys?|k)", "values": r"(?:values?|v)"}
_CALLED = {
    "queries": r"self\.(?:\w*_)?w?(?:q|quer(?:y|ies))(?:_?(?:proj|lin|linear|layer|fc|w|mat)\w*)?\s*[(,)@]",
    "keys": r"self\.(?:\w*_)?w?(?:k|keys?)(?:_?(?:proj|lin|linear|layer|fc|w|mat)\w*)?\s*[(,)@]",
    "values": r"self\.(?:\w*_)?w?(?:v|values?)(?:_?(?:proj|lin|linear|layer|fc|w|mat)\w*)?\s*[(,)@]",
}
"""In a line: what it applies is called after them."""


def chained_projection_findings(evidence: Evidence, text: str) -> Iterator[Finding]:
    """Numbers of two of the three, where the one are made by a matrix of the other as they meet in scores or sums.

    A vector that several heads read as keys, and that values are made of, may be a latent one: it is left alone.

    Args:
        evidence: of an attention.
        text: its name and its documentation.
    """
    table = evidence.base
    run = table.instance.run
    if run.additive or not table.whole or _ON_PURPOSE.search(text):
        return
    parts = {each: tags for each, tags in _tags(table).items() if len(run.owner_of(tags)) == 1}
    made = {each: next(iter(run.owner_of(tags))) for each, tags in parts.items()}
    for name in parts:
        for other, its in parts.items():
            source = _taken_by(table, made[name])
            is_chain = name != other and made[name] != made[other] and source is not None
            if not is_chain or source is None or run.owner_of(source) != {made[other]} or bool((source <= 0).any()):
                continue
            if not bool(torch.isin(source, its).all()) or _is_shared(table, its, other):
                continue
            (third,) = {*_WORDS} - {name, other}
            if made.get(third) == made[other]:
                continue  # of one thing, as of states, another matrix makes what asks for it
            chained = _taken_by(table, made[third]) if third in made else None
            is_stem = chained is not None and run.owner_of(chained) == {made[other]}
            line = run.trace.operations[made[other]].location
            is_called = line is not None and re.search(_CALLED[other], line.text, re.I) is not None
            if (is_stem or other == "values") and not is_called:
                continue  # a layer before all three, that one of them is as it is
            is_named = any(re.fullmatch(_WORDS[other], each, re.I) for each in evidence.roles)
            said = re.compile(_SAID.format(_WORDS[name], _WORDS[other]), re.I)
            if not is_named and said.search(text):
                continue
            message = (
                f"{name} are projected from the projected {other}, by one matrix after the other, not from the input"
            )
            location = run.trace.operations[made[name]].location
            yield Finding("violation", "projected-from-the-input", "projections", message, location)
            return


def _tags(table: AttentionTable) -> Mapping[str, Tensor]:
    """Of queries, keys and values the tags of all numbers that are multiplied."""
    instance = table.instance
    left = table.layout.queries_left
    sides = {
        name: factor_tags(instance, is_left)[table.layout.used]
        for name, is_left in (("queries", left), ("keys", not left))
    }
    places = [instance.values_place(each) for each in instance.sums]
    sides["values"] = torch.cat([instance.run.tags.inputs[index][number].flatten() for index, number in places])
    return sides


def _taken_by(table: AttentionTable, index: int) -> Tensor | None:
    """The tags of what a learned matrix, or a convolution, is applied to; None of other products."""
    run = table.instance.run
    operation = run.trace.operations[index]
    if operation.name == "convolution":
        return run.tags.inputs[index][0].flatten() if operation.inputs[1].learned else None
    for product in run.products:
        if product.operation.index == index:
            for place, matrix in ((product.left_place, product.right), (product.right_place, product.left)):
                if matrix.learned and place in run.depends:
                    return run.tags.inputs[place[0]][place[1]].flatten()
    return None


def _is_shared(table: AttentionTable, tags: Tensor, name: str) -> bool:
    """Whether all heads read the same numbers of a part."""
    if table.num_heads == 1 or name == "values":
        return False
    of_heads = [set(tags[table.head == head].flatten().tolist()) for head in range(table.num_heads)]
    return all(each == of_heads[0] for each in of_heads)
