"""The bar over the first look at the data: for those who wait, and for nobody else."""

import pytest
from written import tsv

from regard.training.data import pairs, progress
from terminals import Stream


@pytest.mark.parametrize(
    ("terminal", "patience", "is_drawn"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_who_sees_it(terminal, patience, is_drawn, tmp_path, monkeypatch, capsys):
    stream = Stream(terminal=terminal, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE", patience)
    pairs([tsv(tmp_path / "a.tsv")])
    stream.flush()
    drawn = stream.buffer.getvalue().decode()
    assert ("reading the data" in drawn) == ("looking at the files" in drawn) == ("100%" in drawn) == is_drawn
    assert bool(drawn) == is_drawn
    assert capsys.readouterr().out == ""


def test_it_ends_where_something_is_wrong(tmp_path, monkeypatch):
    stream = Stream(terminal=True, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with pytest.raises(RuntimeError, match="in between"), progress.progress("going on", 3) as tell:  # noqa: PT012
        tell(1)
        raise RuntimeError("in between")
    stream.flush()
    assert b"\x1b[?25h" in stream.buffer.getvalue()  # the cursor is there again
