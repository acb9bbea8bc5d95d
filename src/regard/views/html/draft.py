"""A page before its payload is decided: `PageDraft.render` writes it with any payload, to see its size.

`PageDraft.contents` are its facts and numbers alone, which a live page gets without the rest of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.lens.maps.summary import SUMMARY_CELLS
from regard.views.html.budget import HeadRef, PagePlan, omission_notes
from regard.views.html.bundle import assemble, data_elements
from regard.views.html.codec import BinaryPack, encode_json
from regard.views.html.facts import LARGE_MAP_CELLS, THUMBNAIL_CELLS, AttentionFacts
from regard.views.html.payload import MAX_EXACT_WEIGHTS, PayloadWriter
from regard.views.html.quantization import MapQuantization


class RenderedPage(NamedTuple):
    """A page as a text, and the facts in it."""

    text: str
    facts: dict[str, Any]
    """`Facts` in static/core/data.js."""

    @property
    def size(self) -> int:
        """The bytes of the page."""
        return len(self.text.encode())


class PageContents(NamedTuple):
    """What the views of a page draw."""

    facts: dict[str, Any]
    """`Facts` in static/core/data.js."""
    numbers: bytes
    """The arrays that the facts refer to."""


@dataclass
class PageDraft:
    """Everything that a page is made of, except the decision on its payload."""

    attentions: Sequence[AttentionFacts]
    quantizations: dict[int, MapQuantization]
    """Of the attentions that can have a payload, by index."""
    unsupported: Mapping[str, str]
    """For the paths of the others, the reason."""
    heads_given: bool
    """Whether the caller chose the heads of the payload."""
    max_size: float | int
    facts: Mapping[str, Any]
    """`Facts` in static/core/data.js, without the part that depends on the payload."""
    query: int | None = None
    """The query that the page shows first; None for that of the strongest pair of the initial head."""

    def render(self, plan: PagePlan, initial: HeadRef, *, thumbnails: bool = False) -> RenderedPage:
        """The page with the payload of a plan; see `contents`."""
        return write_page(*self.contents(plan, initial, thumbnails=thumbnails))

    def contents(self, plan: PagePlan, initial: HeadRef, *, thumbnails: bool = False) -> PageContents:
        """The facts and numbers with the payload of a plan.

        Args:
            plan: the payload.
            initial: the head that the page shows first.
            thumbnails: whether heads without a payload get small pooled maps, too.
        """
        pack = BinaryPack()
        attentions = [
            self._attention(index, plan, pack, thumbnails=thumbnails) for index in range(len(self.attentions))
        ]
        attention, head = initial
        pairs = attentions[attention]["heads"][head]["pairs"]
        query = self.query
        if query is None:
            query = pairs[0]["query"] if pairs else attentions[attention]["queries"] - 1
        if plan.rows is not None and query not in plan.rows:
            query = int(plan.rows[-1])
        omitted = omission_notes(
            self.attentions,
            plan,
            self.quantizations,
            self.unsupported,
            heads_given=self.heads_given,
            max_size=self.max_size,
        )
        facts = {
            **self.facts,
            "attentions": attentions,
            "omitted": omitted,
            "num_int16": pack.num_int16,
            "initial": {"attention": attention, "head": head, "query": query},
        }
        return PageContents(facts, pack.bytes())

    def _attention(self, index: int, plan: PagePlan, pack: BinaryPack, *, thumbnails: bool) -> dict[str, Any]:
        """`Attention` in static/core/data.js."""
        attention = self.attentions[index]
        facts = {**attention.facts, "heads": [dict(head) for head in attention.facts["heads"]]}
        heads = [head for at, head in plan.heads if at == index]
        if heads:
            quantization = self.quantizations[index]
            facts["max_weight_error"] = quantization.fit(plan.bound)
            writer = PayloadWriter(quantization, pack, plan.bound, plan.rows, values=plan.values)
            for head in heads:
                facts["heads"][head]["payload"] = writer.head(head)
            facts["kv_heads"] = writer.kv_heads
            facts["first_key"], facts["end_key"] = writer.key_ranges()
        statistics = attention.statistics
        large = facts["queries"] * facts["keys"] > MAX_EXACT_WEIGHTS
        thumbnails = thumbnails or len(heads) == len(facts["heads"])
        detailed = statistics.pooled(LARGE_MAP_CELLS) if large and heads else None
        pooled = statistics.pooled(THUMBNAIL_CELLS if thumbnails and not large else SUMMARY_CELLS)
        for i, head in enumerate(facts["heads"]):
            cells = (pooled if detailed is None or head["payload"] is None else detailed)[i]
            head["max_pooled"] = max(float(cells.max()), 1e-12)
            head["pooled"] = pack.uint8((cells / head["max_pooled"]).clamp(0, 1).sqrt())
        return facts


def write_page(facts: dict[str, Any], numbers: bytes) -> RenderedPage:
    """The page of some facts.

    Args:
        facts: `Facts` in static/core/data.js.
        numbers: the arrays that they refer to.
    """
    page, _ = assemble("main", facts["title"], data_elements(facts=encode_json(facts), numbers=numbers))
    return RenderedPage(page, facts)
