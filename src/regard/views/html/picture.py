"""The picture that stands for a page where no script runs: the map of the head that the page opens with, as SVG."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from regard.escape import visible
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.head_selection import most_informative_head
from regard.lens.recording.recording import Recording
from regard.notebook import preformatted
from regard.views.figures.cells import COLOURS, MapCells, head_cells, map_tokens

MAX_CELLS = 32
"""Cells along a side: more would make the picture larger than 30 KB."""

MAX_LABEL = 14
"""Characters of a token."""

CELL, GAP, FONT = 16, 6, 12
"""In pixels: the side of a cell, the space beside labels, the height of letters."""

LETTER_WIDTH, MIN_WIDTH = 8, 480
"""In pixels: the most that a letter of most scripts takes; the least width of the picture, for its headings."""

UNREADABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML may have."""


def draw_picture(recording: Recording, facts: Mapping[str, Any], batch: int = 0) -> str:
    """The opening head of a page as an SVG file, light on any background.

    Args:
        recording: of the page.
        facts: of the page, `RenderedPage.facts`.
        batch: the batch row that the page shows.
    """
    initial = facts["initial"]
    attention = facts["attentions"][initial["attention"]]
    head, m = attention["heads"][initial["head"]], recording[attention["path"]]
    cells = head_cells(m, batch if m.shape[0] > 1 else 0, initial["head"], MAX_CELLS, MAX_CELLS)
    sides = [facts["texts"][attention[name]]["tokens"] for name in ("query_text", "key_text")]
    queries = sides[0][-attention["queries"] :]  # without tokens of their own, queries are the last positions
    return _svg(cells, queries, sides[1], describe(facts), _strongest(head["pairs"], queries, sides[1]))


def draw_map(m: AttentionMap | AttentionSummary) -> str:
    """The head of a map that looks from word to word the most, as an SVG file; of a batch that of the first text.

    Raises:
        ValueError: the map is empty; NaN in a map that is pooled.
    """
    recording = Recording()
    recording.add(
        "attention", m, shape=(m.shape[0], m.shape[1], m.shape[2], m.shape[3]), mask="", kernel="", kind="", layer=None
    )
    try:
        _, head = most_informative_head(recording)
    except ValueError:  # no weight anywhere
        head = 0
    cells = head_cells(m, 0, head, MAX_CELLS, MAX_CELLS)
    names = map_tokens(m, 0)
    queries, keys = names or ([str(position) for position in range(size)] for size in m.shape[2:])
    return _svg(cells, queries, keys, f"head {head} of {m.shape[1]}, counted from 0", "")


def map_html(m: AttentionMap | AttentionSummary) -> str | None:
    """A map for a notebook: one head as a picture, and what is known of it; None where nothing can be drawn."""
    try:
        picture = draw_map(m)
    except ValueError:
        return None
    return f'<img src="{data_uri(picture)}" alt="one head of the map" style="max-width: 100%">{preformatted(repr(m))}'


def describe(facts: Mapping[str, Any]) -> str:
    """The opening head of a page in words."""
    attention = facts["attentions"][facts["initial"]["attention"]]
    number = attention["heads"][facts["initial"]["head"]]["number"]
    return f"{facts['model']}, {attention['path']}, head {number}"


def data_uri(svg: str) -> str:
    """An SVG file as the source of an image."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def _strongest(pairs: Sequence[Mapping[str, Any]], queries: Sequence[str], keys: Sequence[str]) -> str:
    if not pairs:
        return ""
    best = pairs[0]
    return f"{_label(queries[best['query']])} gives {_label(keys[best['key']])} {best['weight']:.2f}"


def _svg(cells: MapCells, queries: Sequence[str], keys: Sequence[str], title: str, strongest: str) -> str:
    rows, columns = len(cells.queries) - 1, len(cells.keys) - 1
    row_labels = [_label(queries[first]) for first in cells.queries[:-1]]
    column_labels = [_label(keys[first]) for first in cells.keys[:-1]]
    left, above = (GAP + LETTER_WIDTH * max(map(len, labels)) for labels in (row_labels, column_labels))
    top = 2 * FONT + 4 * GAP + above
    width = max(left + columns * CELL + GAP, MIN_WIDTH)
    height = top + rows * CELL + 2 * GAP
    size = "" if cells.exact else f", {len(queries):,} x {len(keys):,} in groups"
    subtitle = f"queries down, keys across{size}{'; ' if strongest else ''}{strongest}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="{FONT}" fill="#16191f">',
        f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
        f'<text x="{GAP}" y="{FONT + GAP}" font-weight="600">{_text(title, 64)}</text>',
        f'<text x="{GAP}" y="{2 * FONT + 2 * GAP}" fill="#59616e">{_text(subtitle, 72)}</text>',
        *_labels(row_labels, left, top, across=False),
        *_labels(column_labels, left, top, across=True),
        f'<g transform="translate({left} {top}) scale({CELL})" shape-rendering="crispEdges">',
        f'<rect width="{columns}" height="{rows}" fill="{COLOURS[0]}" stroke="#d3d8e0" stroke-width=".06"/>',
        *_paths(cells),
        "</g></svg>",
    ]
    return "\n".join(lines)


def _labels(texts: Sequence[str], left: int, top: int, *, across: bool) -> Iterator[str]:
    for number, text in enumerate(texts):
        at = number * CELL + CELL // 2
        x, y = (left + at, top - GAP) if across else (left - GAP, top + at)
        turn = f' transform="rotate(-90 {x} {y})"' if across else ""
        anchor = "start" if across else "end"
        yield f'<text x="{x}" y="{y}" dy=".35em" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def _paths(cells: MapCells) -> Iterator[str]:
    """A path for each colour: the cells of a row that have it and touch are one piece."""
    shades = _shades(cells)
    pieces: dict[int, list[str]] = {}
    for row, line in enumerate(shades):
        column = 0
        for shade, run in groupby(line):
            length = len(list(run))
            pieces.setdefault(shade, []).append(f"M{column} {row}h{length}v1h-{length}z")
            column += length
    for shade in sorted(pieces.keys() - {0}):
        yield f'<path fill="{COLOURS[shade]}" d="{"".join(pieces[shade])}"/>'


def _shades(cells: MapCells) -> list[list[int]]:
    """The number of the colour of each cell; 0 for NaN."""
    last = len(COLOURS) - 1
    scaled = (cells.weights / cells.vmax).nan_to_num(0.0).clamp(0, 1) * last
    return [[math.floor(value + 0.5) for value in row] for row in scaled.tolist()]


def _label(token: str) -> str:
    """A token as it can be read: short, and without characters that XML may not have."""
    text = UNREADABLE.sub("\ufffd", visible(token.strip() or token))
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _text(text: str, length: int) -> str:
    text = UNREADABLE.sub("\ufffd", visible(text))
    return escape(text if len(text) <= length else text[: length - 1] + "…")
