"""Attention maps as figures for papers, by matplotlib, which nothing else here needs.

A figure does not belong to pyplot: it opens no window, and its memory is free when nothing refers to it.
`PaperFigure.savefig` writes text as text into SVG and PDF.
"""

from __future__ import annotations

from io import BytesIO
from textwrap import fill
from typing import Any

from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.figures.cells import COLOURS, Cells, cells_of, cells_of_all, check_place, entropy_of, texts_of

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("figures are drawn by matplotlib, which is not installed: pip install 'regard[plot]'") from error

from regard.views.figures.fonts import Letters

__all__ = ["PaperFigure", "plot_heads", "plot_map"]

DPI = 200
"""Of PNG, so that every cell gets a dot."""

CELLS, SMALL_CELLS = 512, 48
"""The most cells of a side, in the picture of one head and in the small ones of all heads."""

SIDE, CELL = 6.0, 0.24
"""In inches: the most that a side takes, and a cell."""

LARGEST, SMALLEST = 9.0, 5.0
"""The size of letters in points; tokens that would have to be smaller are left away."""

SMALL_SIDE, SMALL_GAP, SMALL_LETTERS = 0.95, 0.12, 5.5
"""Of the small pictures of all heads: their side and what lies between in inches, their letters in points."""

BLOCKED, BROKEN = "#e4e0da", "#d62728"
"""The colours of what has no weight at all and of what is no number."""


class PaperFigure(Figure):
    """A matplotlib figure that is written as it should stand in a paper."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """As matplotlib's, but text stays text: SVG names its fonts, PDF and PS embed them as TrueType.

        matplotlib takes both from its settings at the time of writing, which are set meanwhile.
        """
        with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        written = BytesIO()
        self.savefig(written, format="png", dpi=120)
        return written.getvalue()


def plot_map(m: AttentionMap, *, batch: int = 0, head: int = 0, title: str | None = None) -> PaperFigure:
    """The figure of `AttentionMap.plot`, which says what is in it."""
    check_place(m.shape, batch, head)
    queries, keys = m.shape[2:]
    cells = cells_of(m, batch, head, CELLS, CELLS)
    cell = min(CELL, SIDE / max(queries, keys))
    width, height = (max(cell * n, 0.8) for n in (keys, queries))
    letters = Letters()
    tokens, size = texts_of(m, batch), min(LARGEST, 0.8 * 72 * cell)
    labels = None
    if tokens is not None and size >= SMALLEST:
        labels = [[letters.short(token) for token in side] for side in tokens]
    # About how long the longest label is: letters are 0.6 as wide as high.
    margin = 0.6 if labels is None else max(map(len, labels[0] + labels[1])) * 0.6 * size / 72
    figure = PaperFigure(figsize=(max(width + margin + 1.5, 3.5), height + margin + 1.0), layout="compressed", dpi=DPI)
    axes = figure.add_subplot()
    axes.set_box_aspect(height / width)
    image = _image(axes, cells, (-0.5, keys - 0.5, queries - 0.5, -0.5))
    for axis, name, side in ((axes.yaxis, "query", 0), (axes.xaxis, "key", 1)):
        if labels is not None:
            axis.set_ticks(range(len(labels[side])), labels[side], fontsize=size, **letters.style)
            axis.set_tick_params(length=0, rotation=90 * side)
        else:
            axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_label_text(name if labels is not None else f"{name} (position)")
    bar = figure.colorbar(image, extend="max" if bool((cells.weights > cells.high).any()) else "neither")
    bar.set_label("weight, %" if cells.single else "weight of a query on the keys of a cell, %")
    said = title
    if said is None:
        text = f"text {batch}, " if m.shape[0] > 1 else ""
        said = f"{text}head {head}, entropy {entropy_of(m, batch, head):.2f} nats"
    said = "\n".join([letters.write(said), *_remarks(cells)])
    axes.set_title(said, fontsize=LARGEST, **letters.style)
    return figure


def plot_heads(recording: Recording, part: str | None = None, *, batch: int = 0) -> PaperFigure:
    """The figure of `Recording.plot_heads`, which says what is in it."""
    name, entries = _stack(recording, part)
    heads = max(entry.shape[1] for entry in entries)
    step, line = SMALL_SIDE + SMALL_GAP, 1.25 * SMALL_LETTERS / 72
    down = step + 2 * line
    _, _, queries, keys = entries[0].shape
    kind = f"{entries[0].kind}-attention, " if entries[0].kind else ""
    width, height = max(heads * step, 2.5) + 0.2, len(entries) * down
    letters = Letters()
    says = (
        f"{name}: {kind}{queries:,} queries from top to bottom, {keys:,} keys from left to right. In each picture "
        "white is no weight, and the darkest its own largest."
    )
    above = fill(letters.write(says), max(30, int(width * 72 / (0.55 * LARGEST))))
    figure = PaperFigure(figsize=(width, height + 0.3 + 0.17 * len(above.splitlines())), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / figure.get_figheight()))
    axes.set_axis_off()
    for row, entry in enumerate(entries):
        m, kinds = entry.map(), entry.head_types().names
        numbers = entry.heads or range(entry.shape[1])
        layer = entry.path if entry.layer is None else f"layer {entry.layer}"
        check_place(m.shape, batch, 0)
        for column, pooled in enumerate(cells_of_all(m, batch, SMALL_CELLS, SMALL_CELLS)):
            left, top = 0.1 + column * step, row * down + 2 * line
            _image(axes, pooled, (left, left + SMALL_SIDE, top + SMALL_SIDE, top))
            said = letters.write(f"{layer} head {numbers[column]}:") + f"\n{kinds[column]}"
            axes.text(left, top - 0.02, said, fontsize=SMALL_LETTERS, va="bottom", **letters.style)
    axes.set(xlim=(0, width), ylim=(height, 0))
    figure.text(0.1 / width, 1 - 0.1 / figure.get_figheight(), above, fontsize=LARGEST, va="top", **letters.style)
    return figure


def _image(axes: Axes, cells: Cells, extent: tuple[float, float, float, float]) -> Any:
    """The cells in per cent; where one stands for many weights, the small ones are told apart better."""
    weights = cells.weights.masked_fill(cells.weights == 0, -1.0) * 100
    norm = PowerNorm(1.0 if cells.single else 0.5, 0.0, 100 * cells.high)
    return axes.imshow(weights.numpy(), _colours(), norm, aspect="auto", interpolation="nearest", extent=extent)


def _colours() -> Colormap:
    colours = LinearSegmentedColormap.from_list("regard", COLOURS)
    return colours.with_extremes(under=BLOCKED, bad=BROKEN)


def _remarks(cells: Cells) -> list[str]:
    """What colours that are not on the bar mean."""
    remarks = [
        (cells.weights == 0, "grey: no weight, masked"),
        (cells.weights.isnan(), "red: not a number"),
    ]
    return [says for where, says in remarks if bool(where.any())]


def _stack(recording: Recording, part: str | None) -> tuple[str, list[RecordingEntry]]:
    """The attentions of one stack of layers, and what it is called."""
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
