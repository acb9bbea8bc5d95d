"""The directory of a run."""

import json
import os

import pytest

import regard
from regard import InputError
from regard.training.run_dir import RunDir, versions

FACTS = {"task": "lm", "paths": [], "eval_file": None, "model": None, "config": {}, "data": {"name": "größer"}}


def test_a_run_creates_its_directory(tmp_path):
    run_dir = RunDir(tmp_path / "deep" / "run")
    run_dir.create()
    assert not run_dir.has_run
    run_dir.write_run(FACTS)
    assert run_dir.has_run
    facts = run_dir.read_run()
    assert {name: facts[name] for name in FACTS} == FACTS
    assert facts["versions"] == versions()
    assert facts["versions"]["regard"] == regard.__version__
    assert "größer" in (run_dir.path / "run.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"run holds a run already. Continue it with --resume, or name another folder"):
        run_dir.create()
    run_dir.clear()
    assert not list(run_dir.path.iterdir())


def test_drafts_of_a_killed_run_do_not_count(tmp_path):
    (tmp_path / ".draft-run.json").write_text("{")
    RunDir(tmp_path).create()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty: a run needs an empty folder, or one that does not exist yet"):
        RunDir(tmp_path).create()


def test_a_file_and_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file is a file: a run needs a folder"):
        RunDir(tmp_path / "file").create()
    with pytest.raises(InputError, match="file/run cannot be made: Not a directory"):
        RunDir(tmp_path / "file" / "run").create()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot write '.*run\.json': Permission denied"):
        RunDir(tmp_path).write_run(FACTS)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"task": "lm"}'])
def test_a_file_that_is_no_run(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        RunDir(tmp_path).read_run()


class TestMetrics:
    LINES = (
        {"step": 1, "loss": 1 / 3},
        {"step": 2, "loss": 2.5},
        {"step": 2, "eval_loss": 0.1},
        {"step": 3, "loss": 2},
    )

    @pytest.fixture
    def run_dir(self, tmp_path):
        run_dir = RunDir(tmp_path)
        assert list(run_dir.metrics()) == []
        for line in self.LINES:
            run_dir.append_metrics(line)
        return run_dir

    def test_they_are_truncated_after_a_step(self, run_dir):
        assert list(run_dir.metrics()) == [*self.LINES]
        run_dir.truncate_metrics(2)
        assert list(run_dir.metrics()) == [*self.LINES[:3]]
        run_dir.truncate_metrics(0)
        assert (run_dir.path / "metrics.jsonl").read_text() == ""

    def test_an_incomplete_last_line_is_ignored(self, run_dir):
        path = run_dir.path / "metrics.jsonl"
        path.write_text(path.read_text()[:-7])
        assert list(run_dir.metrics()) == [*self.LINES[:3]]
        run_dir.truncate_metrics(3)
        assert path.read_text() == "".join(json.dumps(line) + "\n" for line in self.LINES[:3])

    def test_a_file_that_cannot_be_written(self, tmp_path):
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: Is a directory"):
            RunDir(tmp_path).append_metrics({"step": 1})
