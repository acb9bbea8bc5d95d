"""Effects as a matplotlib figure: what was looked at beside what mattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from torch import Tensor

from regard.lens.effects.effects import Effects
from regard.lens.effects.table import NOUNS
from regard.views.figures.cells import COLOURS
from regard.views.figures.fonts import FontFallback
from regard.views.figures.maps import DPI, MAX_FONT_SIZE, PaperFigure  # it says how to install matplotlib

# isort: split
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

DIVERGING = ("#8c2d04", "#d9762b", "#f6cfa5", "#ffffff", "#9bc6f8", "#316eba", "#172146")
"""Below 0, 0 and above: two hues that every colour vision tells apart."""

RAISES, LOWERS, LOOKED_AT, UNKNOWN_COLOUR = "#316eba", "#d9762b", "#59616e", "#e4e0da"

MAX_BARS, MAX_LINES = 60, 8
"""Of more tokens and layers, or of more edges, the strongest are drawn."""

CHARACTERS_PER_INCH = 14
"""Of a title."""


def plot_effects(effects: Effects, *, text: int | None = None, title: str | None = None) -> PaperFigure:
    """The figure of `Effects.plot`; see there."""
    draw = {"heads": _pictures, "layers": _bars, "tokens": _bars, "edges": _lines}[effects.over]
    fonts = FontFallback()
    figure = draw(effects, text, fonts)
    if title is None:
        title = f"Effect of each {NOUNS[effects.over]} on {effects.metric}, ablation: {effects.ablation}"
    lines = fill(fonts.escape(title), int(figure.get_figwidth() * CHARACTERS_PER_INCH))
    figure.suptitle(lines, fontsize=MAX_FONT_SIZE, **fonts.style)
    return figure


def _largest(*columns: Tensor | None) -> float:
    """The largest size of a number; 1 where there is none."""
    return max((float(t.abs().nan_to_num().max()) for t in columns if t is not None and t.numel()), default=0.0) or 1.0


def _pictures(effects: Effects, text: int | None, fonts: FontFallback) -> PaperFigure:
    """Heads: a row of cells for each attention; a dot marks what was computed exactly beside estimates."""
    best, looked_at = effects.best(text), effects.of_text(effects.looked_at, text)
    attentions, heads = best.shape
    width, height = max(2.2, 0.2 * heads), max(1.6, 0.16 * attentions)
    panels = 1 if looked_at is None else 2
    figure = PaperFigure(figsize=(panels * (width + 1.2), height + 1.2), layout="compressed", dpi=DPI)
    every_axes = figure.subplots(1, panels, squeeze=False)[0]
    if looked_at is not None:
        colours = LinearSegmentedColormap.from_list("regard", COLOURS)
        _picture(every_axes[0], looked_at, colours, (0.0, _largest(looked_at)), "looked at")
    largest = _largest(best)
    diverging = LinearSegmentedColormap.from_list("regard effects", DIVERGING)
    label = "effect (estimated to first order)" if effects.method == "gradient" else "effect"
    _picture(every_axes[-1], best, diverging, (-largest, largest), label)
    if effects.method == "both":
        exact = (~effects.of_text(effects.values, text).isnan()).nonzero().tolist()
        rows, columns = zip(*exact, strict=True) if exact else ((), ())
        every_axes[-1].plot(columns, rows, ".", color="black", markersize=2.0)
        every_axes[-1].set_title("• computed exactly, the others estimated", fontsize=MAX_FONT_SIZE - 2)
    names = [fonts.shorten(effects.name_of((n, 0)).rpartition(".")[0]) for n in range(attentions)]
    step = -(-attentions // 30)
    every_axes[0].set_yticks(range(0, attentions, step), names[::step], fontsize=MAX_FONT_SIZE - 2, **fonts.style)
    every_axes[0].set_ylabel("layer")
    return figure


def _picture(
    axes: Axes, values: Tensor, colours: LinearSegmentedColormap, limits: tuple[float, float], label: str
) -> None:
    image: Any = axes.imshow(
        values.numpy(), colours.with_extremes(bad=UNKNOWN_COLOUR), vmin=limits[0], vmax=limits[1], aspect="auto"
    )
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes).set_label(label)
    axes.set_xlabel("head")
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _bars(effects: Effects, text: int | None, fonts: FontFallback) -> PaperFigure:
    """Layers and tokens: a bar each, hollow for an estimate."""
    chosen = sorted(row.index[1] for row in effects.top(MAX_BARS, text=text))
    names = [fonts.shorten(_bar_name(effects, index, text)) for index in chosen]
    looked_at = effects.of_text(effects.looked_at, text)
    panels = 1 if looked_at is None else 2
    height = max(1.4, 0.17 * len(chosen))
    figure = PaperFigure(figsize=(1.2 + 2.6 * panels, height + 1.0), layout="compressed", dpi=DPI)
    every_axes = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
    places = range(len(chosen))
    if looked_at is not None:
        every_axes[0].barh(places, _numbers(looked_at, chosen), color=LOOKED_AT)
        every_axes[0].set_xlabel("looked at")
    axes = every_axes[-1]
    axes.axvline(0.0, color="black", linewidth=0.6)
    if effects.method != "gradient":
        exact = _numbers(effects.of_text(effects.values, text), chosen)
        axes.barh(places, exact, color=[RAISES if value >= 0 else LOWERS for value in exact])
    if (estimates := effects.of_text(effects.estimates, text)) is not None:
        numbers = _numbers(estimates, chosen)
        edges = [RAISES if value >= 0 else LOWERS for value in numbers]
        axes.barh(places, numbers, facecolor="none", edgecolor=edges, linewidth=0.8)
    has_both = effects.estimates is not None and effects.method != "gradient"
    estimated = "effect (hollow: estimated)" if has_both else "effect (estimated to first order)"
    axes.set_xlabel("effect" if effects.estimates is None else estimated)
    every_axes[0].set_yticks(places, names, fontsize=MAX_FONT_SIZE - 2, **fonts.style)
    every_axes[0].invert_yaxis()
    for each in every_axes:
        each.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def _bar_name(effects: Effects, index: int, text: int | None) -> str:
    if effects.over == "layers":
        return effects.name_of((index,))
    tokens = effects.tokens[text or 0] if effects.tokens else ()
    return tokens[index] if index < len(tokens) else str(index)


def _numbers(column: Tensor, chosen: Sequence[int]) -> list[float]:
    return [0.0 if math.isnan(value) else value for value in column[chosen].tolist()]


def _lines(effects: Effects, text: int | None, fonts: FontFallback) -> PaperFigure:
    """Edges: a line over the windows for the strongest pairs of a query and a group of keys."""
    best = effects.best(text)
    strength = best.abs().nan_to_num().amax(0)
    pairs = strength.flatten().argsort(descending=True)[:MAX_LINES].tolist()
    is_around_each = len(effects.windows) == len(effects.paths)
    centres = [n if is_around_each else window[len(window) // 2] for n, window in enumerate(effects.windows)]
    figure = PaperFigure(figsize=(6.4, 3.6), layout="compressed", dpi=DPI)
    axes = figure.add_subplot()
    axes.axhline(0.0, color="black", linewidth=0.6)
    style = "o--" if effects.method == "gradient" else "o-"
    for pair in pairs:
        query, key = divmod(pair, strength.shape[1])
        if bool(best[:, query, key].isnan().all()):
            continue
        label = fonts.escape(effects.name_of((0, query, key), text=text or 0).rpartition(", layer")[0])
        axes.plot(centres, best[:, query, key].tolist(), style, markersize=3, linewidth=1.0, label=label)
    axes.set_xlabel("layer around which the window of layers is blocked")
    axes.set_ylabel("effect (estimated to first order)" if effects.method == "gradient" else "effect")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(frameon=False, prop={"family": fonts.style["family"], "size": MAX_FONT_SIZE - 2})
    return figure
