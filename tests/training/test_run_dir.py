"""The directory of a run."""

import pytest

import regard
from regard import InputError
from regard.training.run_dir import RunDir, versions

FACTS = {"task": "lm", "paths": [], "eval_file": None, "model": None, "config": {}, "data": {"name": "größer"}}


def test_facts_are_written_and_read(tmp_path):
    run_dir = RunDir(tmp_path / "deep" / "run")
    run_dir.create()
    assert not run_dir.has_run
    run_dir.write_run(FACTS)
    assert run_dir.has_run
    facts = run_dir.read_run()
    assert {name: facts[name] for name in FACTS} == FACTS
    assert facts["versions"] == versions() | {"regard": regard.__version__}
    assert "größer" in (run_dir.path / "run.json").read_text(encoding="utf-8")


def test_what_is_somebody_elses_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path, message in (
        (tmp_path, "is not empty: a run needs an empty folder, or one that does not exist yet"),
        (tmp_path / "file", "file is a file: a run needs a folder"),
        (tmp_path / "file" / "run", "file/run cannot be made: Not a directory"),
    ):
        with pytest.raises(InputError, match=message):
            RunDir(path).create()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(InputError, match=r"cannot write '.*run\.json': Is a directory"):
        RunDir(tmp_path).write_run(FACTS)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"metrics\.jsonl cannot be written: No space left on device"):
        RunDir(tmp_path).append_metrics({"step": 1})


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"task": "lm"}'])
def test_a_file_that_is_no_run(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        RunDir(tmp_path).read_run()


def test_metrics_are_truncated_after_a_step(tmp_path):
    run_dir, path = RunDir(tmp_path), tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 2.5}, {"step": 2, "eval_loss": 0.1}, {"step": 3}]
    assert list(run_dir.metrics()) == []
    for line in lines:
        run_dir.append_metrics(line)
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert list(run_dir.metrics()) == lines
    run_dir.truncate_metrics(2)
    assert list(run_dir.metrics()) == lines[:3]
    run_dir.truncate_metrics(0)
    assert path.read_text() == ""
