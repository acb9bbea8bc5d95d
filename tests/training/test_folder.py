"""The folder of a run."""

import json
import os

import pytest

import regard
from regard import InputError
from regard.training.run_dir import Folder, versions

FACTS = {"task": "lm", "paths": [], "held_out": None, "model": None, "settings": {}, "data": {"name": "größer"}}


def test_a_run_claims_a_folder_that_is_not_there(tmp_path):
    folder = Folder(tmp_path / "deep" / "run")
    assert not folder.begun
    folder.claim()
    assert not folder.begun
    folder.begin(FACTS)
    assert folder.begun
    told = folder.facts()
    assert {name: told[name] for name in FACTS} == FACTS
    assert told["versions"] == versions()
    assert told["versions"]["regard"] == regard.__version__
    assert "größer" in (folder.path / "run.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"run holds a run already. Go on with it by --resume, or name another folder"):
        folder.claim()
    folder.give_up()
    assert not list(folder.path.iterdir())


def test_what_a_killed_run_was_about_to_write_does_not_count(tmp_path):
    (tmp_path / ".draft-run.json").write_text("{")
    Folder(tmp_path).claim()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty: a run wants a folder of its own"):
        Folder(tmp_path).claim()


def test_a_file_and_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file is a file: a run wants a folder"):
        Folder(tmp_path / "file").claim()
    with pytest.raises(InputError, match="file/run cannot be made: Not a directory"):
        Folder(tmp_path / "file" / "run").claim()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"run\.json cannot be written: Permission denied"):
        Folder(tmp_path).begin(FACTS)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"task": "lm"}'])
def test_a_file_that_tells_no_run(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        Folder(tmp_path).facts()


def test_metrics_are_forgotten_from_a_step_on(tmp_path):
    folder = Folder(tmp_path)
    assert list(folder.metrics()) == []
    lines = [{"step": step, "loss": step / 3} for step in range(1, 6)]
    lines.insert(3, {"step": 3, "held_out_loss": 0.1})
    for line in lines:
        folder.note(line)
    assert list(folder.metrics()) == lines
    folder.forget(after=3)
    assert list(folder.metrics()) == lines[:4]
    folder.forget(after=0)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    folder = Folder(tmp_path)
    folder.note({"step": 1, "loss": 2.5})
    folder.note({"step": 2, "loss": 2.25})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text()[:-7])
    assert [line["step"] for line in folder.metrics()] == [1]
    folder.forget(after=2)
    assert path.read_text() == json.dumps({"step": 1, "loss": 2.5}) + "\n"
    folder.note({"step": 2, "loss": 2.25})
    assert [line["step"] for line in folder.metrics()] == [1, 2]


def test_metrics_that_cannot_be_written(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: Is a directory"):
        Folder(tmp_path).note({"step": 1})
