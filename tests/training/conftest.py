"""Runs that many tests read."""

from functools import cache
from types import SimpleNamespace

import matplotlib
import pytest
from runs import SMALL_PLOTS, Stop, TrainedTask, run, upper_case_pairs, write_pairs, write_tsv

from regard.training.tasks import TASKS


@pytest.fixture(scope="module", autouse=True)
def _small_plots():
    with matplotlib.rc_context(SMALL_PLOTS):
        yield


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="session")
def finished_run(pairs_file, tmp_path_factory):
    """A run from its beginning to its end, with dropout. Copy its folder before changing it."""
    out = tmp_path_factory.mktemp("finished") / "out"
    return SimpleNamespace(out=out, result=run("translate", pairs_file, out))


@pytest.fixture(scope="session")
def stopped_run(pairs_file, tmp_path_factory):
    """The folder of such a run, stopped after update 4, one after its evaluation. Copy it before changing it."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    run("translate", pairs_file, out, callback=Stop(4))
    return out


@pytest.fixture(scope="session")
def trained_tasks(tmp_path_factory):
    """A function that returns a trained task, and trains it at the first call."""
    return cache(lambda name: TrainedTask(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(params=TASKS)
def trained(request, trained_tasks):
    """Every task, trained."""
    return trained_tasks(request.param)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def long_pairs(tmp_path):
    """Pairs of which five are too long, two of them eval rows."""
    rows = upper_case_pairs()
    for i in (0, 7, 30, 31, 40):
        rows[i] = (rows[i][0], "xyz " * 20 + str(i))
    return write_tsv(tmp_path / "long.tsv", rows)
