"""One run that many tests read."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from runs import Recorder, Stop, run, write_pairs

from regard.training.callbacks import TrainResult


@dataclass
class FinishedRun:
    out: Path
    result: TrainResult
    callback: Recorder


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="session")
def finished_run(pairs_file, tmp_path_factory):
    """A run from its beginning to its end, with dropout. Copy its folder before changing it."""
    out, callback = tmp_path_factory.mktemp("finished") / "out", Recorder()
    return FinishedRun(out, run("translate", pairs_file, out, callback=callback), callback)


@pytest.fixture(scope="session")
def stopped_run(pairs_file, tmp_path_factory):
    """The folder of such a run, stopped after update 4, one after its evaluation. Copy it before changing it."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    run("translate", pairs_file, out, callback=Stop(4))
    return out


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"
