"""Attention maps as matplotlib figures for papers.

A figure does not belong to pyplot: it opens no window, and its memory is free when nothing refers to it.
`PaperFigure.savefig` writes text as text into SVG and PDF.
"""

from __future__ import annotations

from io import BytesIO
from textwrap import fill
from typing import Any

from regard.errors import install_hint
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.figures.cells import (
    COLOURS,
    MapCells,
    all_head_cells,
    head_cells,
    map_tokens,
    mean_entropy,
    validate_location,
)

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError(f"figures are drawn by matplotlib, which is not installed: {install_hint('plot')}") from error

from regard.views.figures.fonts import FontFallback

DPI = 200
"""The resolution of PNG, in which every cell has a pixel."""

MAX_CELLS, THUMBNAIL_CELLS = 512, 48
"""The most cells of a side, for one head and for the thumbnails of all heads."""

MAX_SIDE, MAX_CELL = 6.0, 0.24
"""The largest sizes of a side and of a cell, in inches."""

MAX_FONT_SIZE, MIN_FONT_SIZE = 9.0, 5.0
"""Font sizes in points; without room for the smallest, tokens are omitted."""

THUMBNAIL_SIDE, THUMBNAIL_GAP, THUMBNAIL_FONT_SIZE = 0.95, 0.12, 5.5
"""The side of a thumbnail and the gap between two in inches, and the font size in points."""

MASKED_COLOUR, NAN_COLOUR = "#e4e0da", "#d62728"
"""The colours of a weight of 0 and of NaN."""


class PaperFigure(Figure):
    """A matplotlib figure whose SVG and PDF files keep text as text."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure as matplotlib does, with text as text: SVG names its fonts, PDF and PS embed TrueType fonts.

        matplotlib reads both settings while it writes, so they are set for that time.
        """
        with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """The figure in a notebook."""
        file = BytesIO()
        self.savefig(file, format="png", dpi=120)
        return file.getvalue()


def plot_map(m: AttentionMap, *, batch: int = 0, head: int = 0, title: str | None = None) -> PaperFigure:
    """The figure of `AttentionMap.plot`; see there."""
    validate_location(m.shape, batch, head)
    queries, keys = m.shape[2:]
    cells = head_cells(m, batch, head, MAX_CELLS, MAX_CELLS)
    cell = min(MAX_CELL, MAX_SIDE / max(queries, keys))
    width, height = (max(cell * n, 0.8) for n in (keys, queries))
    fonts = FontFallback()
    tokens, size = map_tokens(m, batch), min(MAX_FONT_SIZE, 0.8 * 72 * cell)
    labels = None
    if tokens is not None and size >= MIN_FONT_SIZE:
        labels = [[fonts.shorten(token) for token in side] for side in tokens]
    # The estimated length of the longest label: a character is 0.6 times as wide as high.
    margin = 0.6 if labels is None else max(map(len, labels[0] + labels[1])) * 0.6 * size / 72
    figure = PaperFigure(figsize=(max(width + margin + 1.5, 3.5), height + margin + 1.0), layout="compressed", dpi=DPI)
    axes = figure.add_subplot()
    axes.set_box_aspect(height / width)
    image = _image(axes, cells, (-0.5, keys - 0.5, queries - 0.5, -0.5))
    for axis, name, side in ((axes.yaxis, "query", 0), (axes.xaxis, "key", 1)):
        if labels is not None:
            axis.set_ticks(range(len(labels[side])), labels[side], fontsize=size, **fonts.style)
            axis.set_tick_params(length=0, rotation=90 * side)
        else:
            axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_label_text(name if labels is not None else f"{name} (position)")
    bar = figure.colorbar(image, extend="max" if bool((cells.weights > cells.vmax).any()) else "neither")
    bar.set_label("weight, %" if cells.exact else "weight of a query on the keys of a cell, %")
    title_text = title
    if title_text is None:
        text = f"text {batch}, " if m.shape[0] > 1 else ""
        title_text = f"{text}head {head}, entropy {mean_entropy(m, batch, head):.2f} nats"
    title_text = "\n".join([fonts.escape(title_text), *_remarks(cells)])
    axes.set_title(title_text, fontsize=MAX_FONT_SIZE, **fonts.style)
    return figure


def plot_heads(recording: Recording, part: str | None = None, *, batch: int = 0) -> PaperFigure:
    """The figure of `Recording.plot_heads`; see there."""
    name, entries = _stack(recording, part)
    heads = max(entry.shape[1] for entry in entries)
    step, line = THUMBNAIL_SIDE + THUMBNAIL_GAP, 1.25 * THUMBNAIL_FONT_SIZE / 72
    down = step + 2 * line
    _, _, queries, keys = entries[0].shape
    kind = f"{entries[0].kind}-attention, " if entries[0].kind else ""
    width, height = max(heads * step, 2.5) + 0.2, len(entries) * down
    fonts = FontFallback()
    description = (
        f"{name}: {kind}{queries:,} queries from top to bottom, {keys:,} keys from left to right. In each picture "
        "white is no weight, and the darkest its own largest."
    )
    above = fill(fonts.escape(description), max(30, int(width * 72 / (0.55 * MAX_FONT_SIZE))))
    figure = PaperFigure(figsize=(width, height + 0.3 + 0.17 * len(above.splitlines())), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / figure.get_figheight()))
    axes.set_axis_off()
    for row, entry in enumerate(entries):
        m, head_types = entry.map(), entry.head_types().names
        numbers = entry.heads or range(entry.shape[1])
        layer = entry.path if entry.layer is None else f"layer {entry.layer}"
        validate_location(m.shape, batch, 0)
        for column, pooled in enumerate(all_head_cells(m, batch, THUMBNAIL_CELLS, THUMBNAIL_CELLS)):
            left, top = 0.1 + column * step, row * down + 2 * line
            _image(axes, pooled, (left, left + THUMBNAIL_SIDE, top + THUMBNAIL_SIDE, top))
            title_text = fonts.escape(f"{layer} head {numbers[column]}:") + f"\n{head_types[column]}"
            axes.text(left, top - 0.02, title_text, fontsize=THUMBNAIL_FONT_SIZE, va="bottom", **fonts.style)
    axes.set(xlim=(0, width), ylim=(height, 0))
    figure.text(0.1 / width, 1 - 0.1 / figure.get_figheight(), above, fontsize=MAX_FONT_SIZE, va="top", **fonts.style)
    return figure


def _image(axes: Axes, cells: MapCells, extent: tuple[float, float, float, float]) -> Any:
    """The cells in per cent; the colours of pooled cells go by the square root, which shows small weights."""
    weights = cells.weights.masked_fill(cells.weights == 0, -1.0) * 100
    norm = PowerNorm(1.0 if cells.exact else 0.5, 0.0, 100 * cells.vmax)
    return axes.imshow(weights.numpy(), _colours(), norm, aspect="auto", interpolation="nearest", extent=extent)


def _colours() -> Colormap:
    colours = LinearSegmentedColormap.from_list("regard", COLOURS)
    return colours.with_extremes(under=MASKED_COLOUR, bad=NAN_COLOUR)


def _remarks(cells: MapCells) -> list[str]:
    """The meaning of colours that are not on the colour bar."""
    remarks = [
        (cells.weights == 0, "grey: no weight, masked"),
        (cells.weights.isnan(), "red: not a number"),
    ]
    return [text for where, text in remarks if bool(where.any())]


def _stack(recording: Recording, part: str | None) -> tuple[str, list[RecordingEntry]]:
    """The name of one stack, and its attentions."""
    stacks: dict[str, list[RecordingEntry]] = {}
    for path in recording.layers:
        entry = recording.entry(path)
        stacks.setdefault("cross" if entry.kind == "cross" else entry.stack, []).append(entry)
    if not stacks:
        raise ValueError(f"{recording!r} has nothing to draw: {'; '.join(recording.notes) or 'no attention was seen'}")
    if part is None:
        return next(iter(stacks.items()))
    for name, entries in stacks.items():
        if part == name or f".{part}." in f".{name}.":
            return name, entries
    raise KeyError(f"there is no stack {part!r} here; there is {', '.join(map(repr, stacks))}")
