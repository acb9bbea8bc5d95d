"""The plot of a run's losses."""

import pytest

from regard.views.figures.losses import MAX_POINTS, plot_losses


def test_updates_are_a_line_and_evaluations_are_dots():
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5, "exact_match": 0.1}]
    (axes,) = plot_losses(lines).axes
    line, dots = axes.lines
    assert line.get_xydata().tolist() == [[1, 3.0], [2, 2.0]]
    assert dots.get_xydata().tolist() == [[2, 2.5]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "held out"]
    assert axes.get_ylim()[0] == 0


def test_a_long_run_is_drawn_in_means():
    lines = [{"step": step, "loss": float(step % 2)} for step in range(1, 10 * MAX_POINTS + 6)]
    line, _ = plot_losses(lines).axes[0].lines
    assert len(line.get_xdata()) <= MAX_POINTS
    assert line.get_ydata()[:-1] == pytest.approx([0.5] * (len(line.get_ydata()) - 1), abs=0.05)
    assert line.get_xdata()[0] == pytest.approx(6)  # the middle of the first 11
    assert line.get_xdata()[-1] > 10 * MAX_POINTS
