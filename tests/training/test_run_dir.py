"""The directory of a run, and the plot of its losses."""

import pytest

import regard
from regard import InputError
from regard.training.run_dir import RunDir, versions
from regard.views.figures.losses import MAX_POINTS, plot_losses

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
    with pytest.raises(InputError, match="missing cannot be written: No such file or directory"):
        RunDir(tmp_path / "missing").write_run(FACTS)
    (tmp_path / "run.json").write_text("of a run that began a moment before")
    with pytest.raises(InputError, match=r"another process trains in .* now"):
        RunDir(tmp_path).write_run(FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
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
