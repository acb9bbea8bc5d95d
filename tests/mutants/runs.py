"""Runs of pytest in forked processes that have torch imported already, each in a copy of the checkout of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRELOADED = (
    *("torch", "numpy", "transformers", "hypothesis.strategies", "pytest", "tokenizers", "rich.console", "typer"),
    *("jaxtyping", "playwright.sync_api", "matplotlib", "datasets", "lightning_fabric", "safetensors.torch"),
)


def preload() -> None:
    """Import what the tests need and no mutation touches, so that each forked run starts at once."""
    for name in PRELOADED:
        importlib.import_module(name)


def copy_checkout(checkout: Path, target: Path) -> None:
    """What git knows or does not ignore, and links to the installed tools."""
    shutil.rmtree(target, ignore_errors=True)
    listing = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=checkout, text=True)
    for name in filter(lambda name: (checkout / name).exists(), listing.splitlines()):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, target / name)
    for name in (".venv", "node_modules"):
        if (checkout / name).exists():
            (target / name).symlink_to((checkout / name).resolve())


class Chosen:
    """A pytest plugin: runs the tests that `chosen` accepts, and writes down each test with its seconds."""

    def __init__(self, chosen: Any, log: Path) -> None:
        self.chosen, self.log = chosen, log

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.chosen is not None:
            items[:] = [item for item in items if self.chosen(item.nodeid)]

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.note("start", nodeid, 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.note(report.outcome if report.when == "call" or report.failed else "part", report.nodeid, report.duration)

    def note(self, *words: Any) -> None:
        with self.log.open("a") as file:
            print(*words, sep="\t", file=file)


@dataclass
class Run:
    """One run of pytest in a forked process: begin, then poll until it answers."""

    tree: Path
    files: Collection[str]
    chosen: Any = None
    options: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    limit: float = 1e9
    environment: dict[str, str] = field(default_factory=dict)

    def begin(self) -> Run:
        """Fork."""
        self.log = self.tree / "log.tsv"
        self.log.unlink(missing_ok=True)
        self.began = time.monotonic()
        self.process = os.fork()
        if not self.process:
            try:
                os.setsid()
                os._exit(self._pytest())
            except BaseException:
                traceback.print_exc()
                os._exit(70)
        return self

    def _pytest(self) -> int:
        import pytest

        with (self.tree / "output.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        paths = [str(self.tree / name) for name in ("src", "tests")]
        os.chdir(self.tree)
        sys.path[:0] = paths
        os.environ.update(self.environment, PYTHONPATH=os.pathsep.join(paths))
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={self.tree}/tmp", *self.options]
        # Plugins that were imported before the fork.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main([*options, *self.files], plugins=[Chosen(self.chosen, self.log)]))

    def poll(self) -> tuple[str, str] | None:
        """None while it runs, then `passed`, `failed` or `stuck` and the last test."""
        ended, status = os.waitpid(self.process, os.WNOHANG)
        rows = [line.split("\t") for line in self.log.read_text().splitlines()] if self.log.exists() else []
        test = next((row[1] for row in reversed(rows) if row[0] in ("start", "failed")), "")
        if ended:
            self._kill()
            code = os.waitstatus_to_exitcode(status)
            return ("passed" if code in (0, 5) else "failed"), test or "collection"
        quiet = time.time() - self.log.stat().st_mtime if rows else 0.0
        if quiet > 60 + 10 * self.seconds.get(test, 0) or (not rows and time.monotonic() - self.began > 300):
            self._kill()
            os.waitpid(self.process, 0)
            return "stuck", test
        if time.monotonic() - self.began > self.limit:
            self._kill()
            os.waitpid(self.process, 0)
            return "passed", f"limit of {self.limit:.0f} s"
        return None

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
