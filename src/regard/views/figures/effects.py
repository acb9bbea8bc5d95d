"""Effects as matplotlib figures for papers: what was looked at beside what mattered."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.lens.effects.effects import Effects
from regard.views.figures.fonts import FontFallback
from regard.views.figures.maps import DPI, MAX_FONT_SIZE, PaperFigure

EFFECT_COLOURS, LOOKED_AT_COLOURS = "RdBu", "Purples"
"""Blue raises the metric, red lowers it, white is no effect; the darker, the more attention."""
EFFECT_COLOUR, LOOKED_AT_COLOUR = "#2a6f97", "#7a5195"
"""The colours of bars and lines."""
CELL = 0.22
"""The side of a head's cell and the height of a bar, in inches."""
MAX_LINES = 8
"""The most keys that a figure of edges follows: those whose effects are strongest."""


def plot_effects(effects: Effects, *, text: int | None = None, title: str | None = None) -> PaperFigure:
    """The figure of `Effects.plot`; see there."""
    values = effects.best(text)
    looked_at = effects.of_text(effects.looked_at, text)
    fonts = FontFallback()
    draw = {"heads": _heads, "edges": _edges}.get(effects.over, _bars)
    figure = draw(effects, values, looked_at, text or 0, fonts)
    name = f"effect of each of the {effects.over} on {effects.metric}, {effects.ablation}" if title is None else title
    figure.suptitle(fonts.escape(name), fontsize=MAX_FONT_SIZE, **fonts.style)
    return figure


def _heads(effects: Effects, values: Tensor, looked_at: Tensor | None, text: int, fonts: FontFallback) -> PaperFigure:
    """A picture of layers x heads each for the effect and for the attention."""
    columns = [(_kind(effects), values, EFFECT_COLOURS)]
    columns += [] if looked_at is None else [("attention", looked_at, LOOKED_AT_COLOURS)]
    layers, heads = values.shape
    size = (len(columns) * (max(heads * CELL, 1.2) + 1.3), max(layers * CELL, 0.8) + 1.2)
    figure = PaperFigure(figsize=size, layout="compressed", dpi=DPI)
    for axes, (name, t, colours) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        largest = float(t.abs().nan_to_num(0.0).max()) or 1.0
        lowest = 0.0 if name == "attention" else -largest
        image = axes.imshow(t.numpy(), colours, vmin=lowest, vmax=largest, aspect="auto", interpolation="nearest")
        axes.set_yticks(
            range(layers), [fonts.shorten(effects.name_of((n, 0)).rpartition(".")[0]) for n in range(layers)]
        )
        axes.tick_params(labelsize=0.7 * MAX_FONT_SIZE)
        axes.set(xlabel="head", ylabel="layer")
        figure.colorbar(image).set_label(name)
    return figure


def _bars(effects: Effects, values: Tensor, looked_at: Tensor | None, text: int, fonts: FontFallback) -> PaperFigure:
    """A bar for each layer or token, for its effect and for its attention."""
    columns = [(_kind(effects), values, EFFECT_COLOUR)]
    columns += [] if looked_at is None else [("attention", looked_at, LOOKED_AT_COLOUR)]
    count = len(values)
    figure = PaperFigure(figsize=(3.0 * len(columns) + 1.0, count * CELL + 1.2), layout="compressed", dpi=DPI)
    rows = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    names = [fonts.shorten(effects.name_of((n,), text=text)) for n in range(count)]
    for axes, (name, t, colour) in zip(rows, columns, strict=True):
        axes.barh(range(count), t.nan_to_num(0.0).tolist(), color=colour)
        axes.axvline(0.0, color="black", linewidth=0.5)
        axes.set_xlabel(name)
    rows[0].set_yticks(range(count), names, fontsize=0.8 * MAX_FONT_SIZE, **fonts.style)
    rows[0].set_ylim(count - 0.5, -0.5)
    return figure


def _edges(effects: Effects, values: Tensor, looked_at: Tensor | None, text: int, fonts: FontFallback) -> PaperFigure:
    """For each query a panel: the effect of blocking each group of keys, by the window of layers."""
    windows, queries, keys = values.shape
    figure = PaperFigure(figsize=(6.4, 3.0 * queries + 0.4), layout="compressed", dpi=DPI)
    for query, axes in enumerate(figure.subplots(queries, 1, squeeze=False)[:, 0]):
        strength = values[:, query].abs().nan_to_num(0.0).amax(0)
        for key in strength.argsort(descending=True)[: min(MAX_LINES, keys)].tolist():
            label = effects.name_of((0, query, key), text=text).rpartition(", layer")[0]
            line: dict[str, Any] = {"linewidth": 1.0, "marker": "o", "markersize": 2.5, "label": fonts.escape(label)}
            axes.plot(range(windows), values[:, query, key].tolist(), **line)
        axes.axhline(0.0, color="black", linewidth=0.5)
        axes.set(xlabel="layer, the centre of the window" if windows > 1 else "all layers", ylabel=_kind(effects))
        axes.legend(frameon=False, prop={"size": 0.7 * MAX_FONT_SIZE, "family": fonts.style["family"]})
    return figure


def _kind(effects: Effects) -> str:
    return "estimated effect" if effects.method == "gradient" else "effect"
