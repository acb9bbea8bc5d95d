"""The size budget of a page: the heads whose payload fits, the error bound they get, and notes on what is omitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.lens.maps.map import AttentionMap
from regard.views.html.facts import AttentionFacts
from regard.views.html.payload import MAX_EXACT_WEIGHTS, mask_and_bias_size
from regard.views.html.quantization import ERROR_BOUNDS, MAX_WEIGHT_ERROR, MapQuantization

ENCODED_BYTES = 8 / 7 * 1.055
"""The bytes of a page for each byte of payload (`codec.encode_seven_bits`); gzip is a little worse than entropy."""

MARGIN_BYTES = 5
"""Bytes for each query and for each key of a large map: log-sum-exp and entropy; received attention."""

ROW_BYTES = 8
"""Bytes for each query where the page has some rows only: its number and its log-sum-exp."""

MIN_ROWS = 16
"""A head of which fewer rows fit gets no payload."""

HeadRef = tuple[int, int]
"""The index of an attention, and of a head in it."""


@dataclass
class PagePlan:
    """The payload of a page."""

    bound: float = MAX_WEIGHT_ERROR
    """The bound on the error of its weights."""
    heads: list[HeadRef] = field(default_factory=list)
    """The heads with a payload, in the order of preference."""
    values: bool = True
    """Whether the payload has the values."""
    rows: Tensor | None = None
    """The queries of the one head in the payload, where not all fit."""
    size: float = 0.0
    """The estimated bytes of a page for this payload."""


def plan_page(
    quantizations: dict[int, MapQuantization], order: Sequence[HeadRef], room: float, query: int | None = None
) -> PagePlan:
    """The best plan that fits: every head, as many as fit, one without its values, or some rows of one.

    Args:
        quantizations: of each attention that can have a payload.
        order: the heads by preference.
        room: the bytes of the page that are free.
        query: of the first head, a row that is among those of the page if not all rows fit.
    """
    order = [ref for ref in order if ref[0] in quantizations]
    if not order:
        return PagePlan()
    for bound in ERROR_BOUNDS:
        heads, size = _Sizes(quantizations, bound).fitting(order, room)
        if len(heads) == len(order):
            return PagePlan(bound, heads, size=size)
    if heads:
        return PagePlan(MAX_WEIGHT_ERROR, heads, size=size)
    first = order[0]
    sizes = _Sizes(quantizations, MAX_WEIGHT_ERROR, values=False)
    heads, size = sizes.fitting([first], room)
    if heads:
        return PagePlan(MAX_WEIGHT_ERROR, heads, values=False, size=size)
    m = quantizations[first[0]].m
    base = sizes.keys_and_values(first) + ENCODED_BYTES * MARGIN_BYTES * sum(m.shape[2:])
    row = sizes.row(first)
    count = int((room - base) / row)
    if count < MIN_ROWS:
        return PagePlan()
    rows = _informative_rows(m, first[1], count, query)
    return PagePlan(MAX_WEIGHT_ERROR, [first], values=False, rows=rows, size=base + len(rows) * row)


class _Sizes:
    """The size of the payload of heads, in bytes of a page."""

    def __init__(self, quantizations: dict[int, MapQuantization], bound: float, *, values: bool = True) -> None:
        self.values = values
        self.packed = {index: (each, *each.packed_sizes(bound)) for index, each in quantizations.items()}
        self.mask_and_bias = {index: mask_and_bias_size(each.m) for index, each in quantizations.items()}

    def head(self, ref: HeadRef) -> float:
        """The queries of a head, its mask and its bias, and the margins of a large map."""
        quantization, queries, _, _ = self.packed[ref[0]]
        _, _, rows, keys = quantization.m.shape
        margins = MARGIN_BYTES * (rows + keys) if rows * keys > MAX_EXACT_WEIGHTS else 0
        return ENCODED_BYTES * (queries[ref[1]] + self.mask_and_bias[ref[0]] + margins)

    def row(self, ref: HeadRef) -> float:
        """One query of a head, its number and its log-sum-exp."""
        quantization, queries, _, _ = self.packed[ref[0]]
        return ENCODED_BYTES * (queries[ref[1]] / quantization.m.shape[2] + ROW_BYTES)

    def keys_and_values(self, ref: HeadRef) -> float:
        """The keys and values of a head, which other heads may share."""
        quantization, _, keys, values = self.packed[ref[0]]
        kv = ref[1] // quantization.group
        return ENCODED_BYTES * (keys[kv] + (values[kv] if self.values else 0))

    def fitting(self, order: Sequence[HeadRef], room: float) -> tuple[list[HeadRef], float]:
        """The heads, from the first on, that fit into the room; and their size."""
        heads: list[HeadRef] = []
        kv_heads: set[HeadRef] = set()
        size = 0.0
        for ref in order:
            kv = (ref[0], ref[1] // self.packed[ref[0]][0].group)
            more = self.head(ref) + (0 if kv in kv_heads else self.keys_and_values(ref))
            if size + more > room:
                break
            size += more
            kv_heads.add(kv)
            heads.append(ref)
        return heads, size


def _informative_rows(m: AttentionMap, head: int, count: int, query: int | None) -> Tensor:
    """The rows of the lowest entropy, the last row, which sees the whole text, and a query that is asked for.

    A row without any weight comes last.
    """
    entropy = m.entropy()[0, head]
    entropy = entropy.masked_fill(m.lse[0, head] == -torch.inf, torch.inf)
    entropy[-1] = -1
    if query is not None:
        entropy[query] = -1
    return entropy.topk(min(count, len(entropy)), largest=False).indices.sort().values.cpu()


def omission_notes(
    attentions: Sequence[AttentionFacts],
    plan: PagePlan,
    quantizations: Mapping[int, MapQuantization],
    unsupported: Mapping[str, str],
    *,
    heads_given: bool,
    max_size: float | int,
) -> list[str]:
    """What the page omits and how to get it, for its footer.

    Args:
        attentions: every attention of the page.
        plan: the payload.
        quantizations: of the attentions that can have a payload, by index.
        unsupported: for the paths of the others, the reason.
        heads_given: whether the caller chose the heads of the payload.
        max_size: of the page, in bytes.
    """
    notes = [f"{path}: pictures only: {reason}." for path, reason in unsupported.items()]
    notes += [
        f"{attentions[index].path}: its values hold NaN or infinity, so weights @ v is not in this page."
        for index, quantization in quantizations.items()
        if quantization.v is None and quantization.m.v is not None
    ]
    total = sum(len(attentions[index].facts["heads"]) for index in quantizations)
    missing = total - len(plan.heads)
    larger = 4 * max_size
    options = ""
    if larger < math.inf:
        options = f"to_html(max_size={math.ceil(larger):_}) or regard see --max-size {larger / 1e6:g}"
    if missing and heads_given:
        notes.append(
            f"{missing} of {total} heads are in this page as pictures only: other heads were requested. to_html() "
            "without heads=, or regard see without --head, includes all heads that fit. For a larger page: "
            f"{options}."
        )
    elif missing:
        notes.append(
            f"{missing} of {total} heads are in this page as pictures only: they did not fit into {max_size / 1e6:g} "
            f"MB. For a larger page: {options}. To choose the heads: to_html(heads=[(layer, head)]) or regard see "
            "--head LAYER.HEAD."
        )
    if plan.heads and not plan.values:
        notes.append(f"The values of the head, and so weights @ v, are not in this page. For a larger page: {options}.")
    if plan.rows is not None:
        queries = attentions[plan.heads[0][0]].facts["queries"]
        notes.append(
            f"{len(plan.rows):,} of {queries:,} rows of the head are in this page: those of the lowest entropy and the "
            f"last. For a larger page: {options}."
        )
    return notes
