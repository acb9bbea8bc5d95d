"""Figures of effects: what they hold is the effects, and estimates look unlike exact effects."""

import matplotlib.colors
import pytest
import torch

from views.made_effects import edge_effects, head_effects, layer_effects, river_tokens, token_effects


def picture(axes):
    return torch.from_numpy(axes.images[0].get_array().filled(torch.nan))


def test_heads_are_two_pictures_attention_beside_effect():
    effects = head_effects()
    looked_at, mattered, *_ = effects.plot().axes
    torch.testing.assert_close(picture(looked_at), effects.looked_at[0])
    torch.testing.assert_close(picture(mattered), effects.values[0])
    low, high = mattered.images[0].get_clim()
    assert low == -high == -float(effects.values.abs().max())


def test_heads_that_were_computed_exactly_are_marked_among_estimates():
    effects = head_effects("both")
    _, mattered, *_ = effects.plot().axes
    torch.testing.assert_close(picture(mattered), effects.best())
    (dots,) = mattered.lines
    marked = {(int(row), int(column)) for column, row in zip(*dots.get_data(), strict=True)}
    assert marked == {tuple(index) for index in (~effects.values[0].isnan()).nonzero().tolist()}


def test_tokens_are_bars_under_their_names():
    effects = token_effects()
    looked_at, mattered = effects.plot().axes
    assert [label.get_text() for label in looked_at.get_yticklabels()] == list(river_tokens())
    for axes, column in ((looked_at, effects.looked_at), (mattered, effects.values)):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(column[0].tolist())


def test_an_estimate_is_a_hollow_bar():
    (axes,) = layer_effects("gradient").plot().axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(layer_effects("gradient").estimates[0].tolist())
    assert {matplotlib.colors.to_rgba(bar.get_facecolor())[3] for bar in axes.patches} == {0.0}
    assert axes.get_xlabel() == "effect (estimated to first order)"


def test_edges_are_a_line_for_each_group_of_keys_over_the_layers():
    effects = edge_effects()
    (axes,) = effects.plot().axes
    lines = {line.get_label(): line.get_data() for line in axes.lines if not line.get_label().startswith("_")}
    assert len(lines) == 2
    name = next(label for label in lines if "@3" in label)
    assert list(lines[name][0]) == list(range(6))
    assert list(lines[name][1]) == pytest.approx(effects.values[0, :, 0, 1].tolist())


def test_the_title_names_metric_and_ablation_unless_another_is_given():
    assert head_effects().plot().get_suptitle() == "Effect of each head on cosine(), ablation: zero"
    assert head_effects().plot(title="mine").get_suptitle() == "mine"
