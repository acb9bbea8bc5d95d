"""The table of effects in the terminal: looked at beside mattered, estimates apart from exact effects."""

import re

import pytest

import terminals
from regard.lens.effects.table import summary
from regard.views.terminal.effects_table import BAR_WIDTH, draw
from views.made_effects import head_effects, token_effects


def drawn(effects, **options):
    """The table of effects."""
    return terminals.drawn(draw, effects, **options)


def rows(text):
    """The cells of each row of heads: name, numbers and bars."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if re.match(r"\d\.\d", line)]


def test_the_strongest_come_first_with_their_attention_and_a_bar_each():
    effects = head_effects()
    found = rows(drawn(effects, top=5))
    assert len(found) == 5
    for row, expected in zip(found, effects.top(5), strict=True):
        name, *numbers = [cell for cell in row if not set(cell) <= set("█░")]
        assert (name, *map(float, numbers)) == (
            expected.name,
            pytest.approx(expected.looked_at, abs=0.01),
            pytest.approx(expected.effect, abs=0.1),
        )
    assert found[0][-1] in ("█" * BAR_WIDTH, "░" * BAR_WIDTH)


def test_a_bar_below_0_is_another_one():
    for row in rows(drawn(head_effects(), top=20)):
        effect, bar = next(cell for cell in row[1:] if cell[0] in "+-"), row[-1]
        assert set(bar) <= {"█" if effect.startswith("+") else "░"} | set(effect)


@pytest.mark.parametrize(("encoding", "bars"), [("utf-8", "□▫"), ("ascii", "o.")])
def test_estimates_have_bars_of_their_own(encoding, bars):
    text = drawn(head_effects("both"), top=30, encoding=encoding)
    assert f"{bars[0]} raises the metric, {bars[1]} lowers it, estimated to first order" in text
    heading = next(line for line in text.splitlines() if line.startswith("head "))
    assert heading.replace("|", "").split() == ["head", "looked", "at", "effect", "estimate"]
    assert sum(" - " in line for line in text.splitlines() if re.match(r"\d\.\d", line)) == 10


def test_metric_ablation_attention_and_notes_are_named_and_a_sentence_sums_it_up():
    text = " ".join(drawn(head_effects(), columns=200).split())
    for part in ("cosine()", "Ablation: zero", "Looked at: attention from the last token.", "Note: a note."):
        assert part in text
    assert summary(head_effects()) in text


def test_tokens_are_named():
    assert "'bank'" in drawn(token_effects())


def test_a_narrow_console_loses_no_number():
    text = drawn(head_effects("both"), top=3, columns=30)
    assert all(len(line) <= 30 for line in text.splitlines())
    for row in head_effects("both").top(3):
        assert f"{row.effect:+.1f}" in text
        assert f"{row.estimate:+.1f}" in text
