"""The losses of a training run as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from regard.views.figures.maps import PaperFigure

MAX_POINTS = 400
"""The most points of the line; each is the mean of several updates."""


def plot_losses(metrics: Sequence[Mapping[str, Any]]) -> PaperFigure:
    """The training loss as a line, the evaluation loss as dots.

    Args:
        metrics: the lines of a run's ``metrics.jsonl``.
    """
    figure = PaperFigure(figsize=(6.4, 3.6), layout="compressed", dpi=150)
    axes = figure.add_subplot()
    updates = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    width = -(-len(updates) // MAX_POINTS) or 1
    groups = [updates[i : i + width] for i in range(0, len(updates), width)]
    axes.plot(
        [fmean(step for step, _ in group) for group in groups],
        [fmean(loss for _, loss in group) for group in groups],
        color="#2a6f97",
        linewidth=1.0,
        label="training" if width == 1 else f"training, mean of {width} updates",
    )
    evaluations = [(line["step"], line["eval_loss"]) for line in metrics if "eval_loss" in line]
    axes.plot(*zip(*evaluations, strict=True), "o-", color="#d1495b", markersize=4, linewidth=1.0, label="held out")
    axes.set(xlabel="update", ylabel="loss, nats per token", ylim=(0, None))
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.legend(frameon=False)
    return figure
