"""A page before it is known how much of it is carried whole: written out for any plan, to see how large it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.lens.maps.summary import SUMMARY_CELLS
from regard.views.html.budget import Plan, Wanted
from regard.views.html.bundle import page
from regard.views.html.codec import Numbers
from regard.views.html.facts import THUMBNAIL, Told
from regard.views.html.omitted import left_out
from regard.views.html.payload import WHOLE, Carrier
from regard.views.html.quantization import Fineness

__all__ = ["Draft"]

FAR = 512
"""The picture of a large map that is carried whole has so many rows and columns, to begin with."""


@dataclass
class Draft:
    """What a page is made of, however much of it is carried whole."""

    told: Sequence[Told]
    finenesses: dict[int, Fineness]
    """Of the attentions that can be carried, by their places."""
    refused: Mapping[str, str]
    """Why the others cannot."""
    asked: bool
    """Whether somebody said which heads."""
    max_size: float | int
    facts: Mapping[str, Any]
    """What static/core/data.js calls Facts, as far as it does not depend on what is carried."""

    def page(self, plan: Plan, first: Wanted, *, small: bool = False) -> str:
        """The page that carries what is planned, and shows a head first; with small pictures, even if that is all."""
        numbers = Numbers()
        attentions = [self._attention(place, plan, numbers, small=small) for place in range(len(self.told))]
        attention, head = first
        pairs = attentions[attention]["heads"][head]["pairs"]
        query = pairs[0]["query"] if pairs else attentions[attention]["queries"] - 1
        if plan.rows is not None and query not in plan.rows:
            query = int(plan.rows[-1])
        facts = {
            **self.facts,
            "attentions": attentions,
            "left": left_out(self.told, plan, self.finenesses, self.refused, asked=self.asked, max_size=self.max_size),
            "shorts": numbers.shorts,
            "open": {"attention": attention, "head": head, "query": query},
        }
        said = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return page(_sound(facts["title"]), _sound(said).encode(), numbers.bytes())

    def _attention(self, place: int, plan: Plan, numbers: Numbers, *, small: bool) -> dict[str, Any]:
        """What static/core/data.js calls Attention."""
        told = self.told[place]
        facts = {**told.facts, "heads": [dict(head) for head in told.facts["heads"]]}
        whole = [head for at, head in plan.heads if at == place]
        if whole:
            fineness = self.finenesses[place]
            facts["within"] = fineness.settle(plan.bound)
            carrier = Carrier(fineness, numbers, plan.bound, plan.rows, values=plan.values)
            for head in whole:
                facts["heads"][head]["carried"] = carrier.head(head)
            facts["kv"] = carrier.kv
            facts["low"], facts["high"] = carrier.ranges()
        large = told.facts["queries"] * told.facts["keys"] > WHOLE
        small = small or len(whole) == len(facts["heads"])
        far = told.answers.picture(FAR) if large and whole else None
        pictures = told.answers.picture(THUMBNAIL if small and not large else SUMMARY_CELLS)
        for place, head in enumerate(facts["heads"]):
            cells = (pictures if far is None or head["carried"] is None else far)[place]
            head["most"] = max(float(cells.max()), 1e-12)
            head["picture"] = numbers.shares((cells / head["most"]).clamp(0, 1).sqrt())
        return facts


def _sound(text: str) -> str:
    """A text without halves of characters, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
