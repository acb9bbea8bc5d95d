"""What every test can use."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from importlib import import_module
from typing import Any

# Where pytest-xdist runs tests side by side, each on a core of its own, more threads would only wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it runs in the background (`make test &`) ignore Ctrl-C, and the commands that tests stop would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The width of a terminal is a test's own choice. GNU readline, which pytest imports, writes that of the terminal it
# believes it is on into the environment that the tests' processes inherit.
if "COLUMNS" in os.environ:
    del os.environ["COLUMNS"]

import jaxtyping
import pytest
from hypothesis import HealthCheck, register_random, settings

# The tiers that decide whether work lands draw the same examples every time; `make test-all` draws anew. A random test
# that fails prints the line that reproduces it.
COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", max_examples=30, derandomize=True, database=None, **COMMON)
settings.register_profile("more", max_examples=200, derandomize=True, database=None, **COMMON)
settings.register_profile("all", max_examples=500, **COMMON)
settings.load_profile("fast")


class TorchRandom:
    """PyTorch's random numbers, for hypothesis: the same in each example, whichever examples came before.

    PyTorch is imported when a test begins: the process that hands the tests to the others needs none of it.
    """

    def seed(self, seed: int) -> None:
        torch = import_module("torch")
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 300 times as long
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)

    def getstate(self) -> Any:
        return import_module("torch").get_rng_state()

    def setstate(self, state: Any) -> None:
        import_module("torch").set_rng_state(state)


gc.disable()


def pytest_collection_finish() -> None:
    """What the tests imported stays: looking through its million objects again and again would find nothing to free."""
    gc.collect()
    gc.freeze()
    gc.enable()


TORCH_RANDOM = TorchRandom()  # hypothesis holds it by a weak reference
register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _same_numbers_every_run() -> None:
    TORCH_RANDOM.seed(0)


@pytest.fixture
def as_a_user_runs_it() -> Iterator[None]:
    """Without the shape checks of the test run, so that regard's own errors are the ones that show."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def command(monkeypatch, capsys, as_a_user_runs_it):
    """The command line without the seconds that a new process needs: exit code, standard output, standard error."""
    from regard.cli import main

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return call


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests of a process: playwright refuses a second one in it."""
    from views.html import browsing

    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
    if not (executable := shutil.which("chromium")):
        pytest.skip("no Chromium here: make install-browser")
    with sync_api.sync_playwright() as playwright:
        browser = browsing.Chromium(playwright, executable)
        yield browser
        browser.close()
