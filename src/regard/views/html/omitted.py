"""What a page leaves out, and how to get it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from regard.views.html.budget import Plan
from regard.views.html.facts import Told
from regard.views.html.quantization import Fineness

__all__ = ["left_out"]


def left_out(
    told: Sequence[Told],
    plan: Plan,
    finenesses: Mapping[int, Fineness],
    refused: Mapping[str, str],
    *,
    asked: bool,
    max_size: float | int,
) -> list[str]:
    """Lines for the foot of a page.

    Args:
        told: every attention of the page.
        plan: what is carried whole.
        finenesses: of the attentions that can be carried, by their places.
        refused: why the others cannot, by their paths.
        asked: whether somebody said which heads to carry.
        max_size: of the page, in bytes.
    """
    lines = [f"{path}: pictures only: {why}." for path, why in refused.items()]
    lines += [
        f"{told[place].path}: its values hold NaN or infinity, so weights @ v is not here."
        for place, fineness in finenesses.items()
        if fineness.v is None and fineness.m.v is not None
    ]
    every = sum(len(told[place].facts["heads"]) for place in finenesses)
    missing = every - len(plan.heads)
    larger = 4 * max_size
    more = (
        f"to_html(max_size={math.ceil(larger):_}) or regard see --max-size {larger / 1e6:g}"
        if larger < math.inf
        else ""
    )
    if missing and asked:
        lines.append(
            f"{missing} of {every} heads are here as pictures, not whole: others were asked for. to_html() without "
            f"heads=, or regard see without --heads, carries all that fit within the limit; {more} has room for more."
        )
    elif missing:
        lines.append(
            f"{missing} of {every} heads are here as pictures, not whole: there was no room within "
            f"{max_size / 1e6:g} MB. A larger page holds more: {more}; "
            "to_html(heads=[(layer, head)]) or regard see --heads LAYER.HEAD says which heads are whole."
        )
    if plan.heads and not plan.values:
        lines.append(f"The values, and so weights @ v, of the head that is whole; a larger page brings them: {more}.")
    if plan.rows is not None:
        queries = told[plan.heads[0][0]].facts["queries"]
        lines.append(
            f"Of the head that is whole, {len(plan.rows):,} of {queries:,} rows are here: those that look at the "
            f"fewest keys, and the last; a larger page brings the others: {more}."
        )
    return lines
