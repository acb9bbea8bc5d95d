"""How many heads there are, beside the number that a module was told."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation
from regard.check.target.names import constructor_meaning
from regard.check.target.told_numbers import numbers_told

__all__ = ["told_head_findings"]


def told_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Heads that are as wide as the number of heads that was told, and another number of them.

    As where the channels are viewed as (width, heads) and read as (heads, width). Heads whose weights are subtracted
    from one another are twice as many as are told (differential attention).
    """
    table = evidence.base
    told = {value for name, value in numbers_told(invocation) if constructor_meaning(name.strip("_")) == "heads"}
    if len(told) != 1 or table.instance.are_weights_subtracted or table.instance.run.additive:
        return
    (number,) = told
    if number > 1 and table.width == number != table.num_heads > 1:
        message = (
            f"it is told {number} heads, and computes {table.num_heads} of width {number}: "
            "the axes of the heads and of their channels are taken for each other"
        )
        yield Finding("violation", "heads-as-told", "heads", message, table.instance.scores_location)
