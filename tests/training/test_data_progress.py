"""The progress bar of the first pass over the data: it appears after a second, on a terminal."""

import itertools

import pytest
from runs import write_pairs

from regard.training.data import pairs, progress_bar
from terminals import Stream


@pytest.mark.parametrize(("terminal", "seconds", "is_drawn"), [(True, 2, True), (True, 0, False), (False, 2, False)])
def test_when_it_appears(terminal, seconds, is_drawn, tmp_path, monkeypatch):
    """By a clock that moves on by some seconds whenever somebody looks at it."""
    stream = Stream(terminal=terminal, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.monotonic", itertools.count(0.0, seconds).__next__)
    pairs([write_pairs(tmp_path / "a.tsv")])
    stream.flush()
    drawn = stream.buffer.getvalue().decode()
    assert ("reading the data" in drawn) == ("hashing the files" in drawn) == ("100%" in drawn) == is_drawn
    assert bool(drawn) == is_drawn


def test_an_error_ends_it(monkeypatch):
    stream = Stream(terminal=True, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("time.monotonic", itertools.count(0.0, 2).__next__)
    with pytest.raises(RuntimeError), progress_bar.progress_bar("going on", 3) as on_progress:  # noqa: PT012
        on_progress(1)
        raise RuntimeError
    stream.flush()
    assert b"\x1b[?25h" in stream.buffer.getvalue()  # the cursor is there again
