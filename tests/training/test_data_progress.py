"""The progress bar of the first pass over the data: it appears after a second, on a terminal."""

import pytest
from data_files import tsv

from regard.training.data import pairs, progress_bar
from terminals import Stream


@pytest.mark.parametrize(
    ("terminal", "delay", "is_drawn"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_when_it_appears(terminal, delay, is_drawn, tmp_path, monkeypatch, capsys):
    stream = Stream(terminal=terminal, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_bar, "DELAY_SECONDS", delay)
    pairs([tsv(tmp_path / "a.tsv")])
    stream.flush()
    drawn = stream.buffer.getvalue().decode()
    assert ("reading the data" in drawn) == ("hashing the files" in drawn) == ("100%" in drawn) == is_drawn
    assert bool(drawn) == is_drawn
    assert capsys.readouterr().out == ""


def test_an_error_ends_it(tmp_path, monkeypatch):
    stream = Stream(terminal=True, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_bar, "DELAY_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="in between"), progress_bar.progress_bar("going on", 3) as on_progress:  # noqa: PT012
        on_progress(1)
        raise RuntimeError("in between")
    stream.flush()
    assert b"\x1b[?25h" in stream.buffer.getvalue()  # the cursor is there again
