"""Build what would be released, look at it, install it into empty environments, run its own tests.

`make release-check` writes nothing into the checkout. ARGS="--python 3.12" tries one version of Python,
ARGS=--without-tests leaves the tests of the sdist out, ARGS=--with-cuda installs torch also where that brings CUDA.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .distributions import sdist_problems, wheel_problems
from .environments import EmptyEnvironment, clean_variables, find_interpreter
from .processes import CommandFailed, run, temporary_folder

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
PASSED, PARTIAL, NOT_CHECKED, FAILED = "passed", "in part", "not checked", "FAILED"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    step: str
    outcome: str
    seconds: float
    note: str = ""


class ReleaseCheck:
    """The steps, each of which adds a result.

    Args:
        folder: an empty folder for everything that is built, installed and written.
        with_cuda: install torch also where that brings CUDA's libraries.
    """

    def __init__(self, folder: Path, with_cuda: bool = False) -> None:
        self.folder, self.with_cuda = folder, with_cuda
        self.dist = folder / "dist"
        self.variables = clean_variables(folder)
        self.results: list[Result] = []

    def step(self, name: str, work: Callable[[], str]) -> bool:
        """Do a step; it returns what could not be checked, or nothing.

        Returns:
            Whether it passed, at least in part.
        """
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        try:
            note = work()
            outcome = PARTIAL if note else PASSED
        except CommandFailed as error:
            print(f"{error}\n", flush=True)
            outcome, note = FAILED, "see above"
        self.results.append(Result(name, outcome, time.monotonic() - began, note))
        print(f"{name}: {outcome}, {self.results[-1].seconds:.0f} s", flush=True)
        return outcome != FAILED

    def run(self, *command: object, cwd: Path = ROOT, **variables: str) -> str:
        """Run a command of the development environment."""
        return run(sys.executable, *command, cwd=cwd, environment={**self.variables, **variables})

    def build(self) -> str:
        """The sdist, and from it the wheel, by the pinned hatchling in an environment of its own."""
        pins = str(ROOT / "constraints.txt")
        self.run("-m", "build", "--outdir", self.dist, ROOT, PIP_CONSTRAINT=pins)
        return ""

    def only(self, pattern: str) -> Path:
        """The one file that was built under such a name."""
        (path,) = self.dist.glob(pattern)
        return path

    def look(self) -> str:
        """The files and the metadata of both, and the README as a package index would render it."""
        problems = wheel_problems(self.only("*.whl"), ROOT) + sdist_problems(self.only("*.tar.gz"), ROOT)
        if problems:
            raise CommandFailed("\n".join(problems))
        self.run("-m", "twine", "check", "--strict", *self.dist.iterdir())
        return ""

    def install(self, version: str) -> None:
        """The wheel in an empty environment of one version of Python."""
        step = f"the wheel in Python {version}"
        interpreter = find_interpreter(version)
        if interpreter is None:
            note = f"no Python {version} with ensurepip on the PATH or in pyenv"
            print(f"{step}: {note}", flush=True)
            self.results.append(Result(step, NOT_CHECKED, 0, note))
            return
        environment = EmptyEnvironment(interpreter, self.folder / f"python{version}", ROOT, self.with_cuda)
        self.step(step, lambda: environment.check(self.only("*.whl")))

    def test(self) -> str:
        """The fast tier of the sdist, unpacked, with the packages of the development environment."""
        with tarfile.open(self.only("*.tar.gz")) as archive:
            archive.extractall(self.folder / "sdist", filter="data")
        (unpacked,) = (self.folder / "sdist").iterdir()
        source = {"PYTHONPATH": str(unpacked / "src")}
        imported = self.run("-P", "-c", "import regard; print(regard.__path__[0])", cwd=unpacked, **source).strip()
        if imported != str(unpacked / "src/regard"):
            raise CommandFailed(f"import regard takes {imported}, not the sdist's")
        options = (
            "-q",
            "-n",
            "auto",
            "--dist",
            "worksteal",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            self.folder / "tests",
        )
        print(self.run("-m", "pytest", *options, cwd=unpacked, **source).strip().splitlines()[-1])
        return ""

    def run_all(self, versions: Sequence[str], with_tests: bool) -> list[Result]:
        """Every step; those after the build only if there is something built."""
        if self.step("sdist and wheel are built", self.build):
            self.step("their files, metadata and README", self.look)
            for version in versions:
                self.install(version)
            if with_tests:
                self.step("the tests of the sdist", self.test)
        if not with_tests:
            self.results.append(Result("the tests of the sdist", NOT_CHECKED, 0, "--without-tests"))
        return self.results


def table(results: Sequence[Result]) -> str:
    """One line a step: its name, what came out, how long it took, and what was not checked."""
    width = max(len(result.step) for result in results)
    lines = [f"{r.step:<{width}}  {r.outcome:<11}  {r.seconds:5.0f} s  {r.note}".rstrip() for r in results]
    return "\n".join(lines)


def conclusion(results: Sequence[Result]) -> tuple[int, str]:
    """The exit code, and the last line: 1 if a step failed; what was not checked is said, and fails nothing."""
    failed = [result.step for result in results if result.outcome == FAILED]
    if failed:
        return 1, f"failed: {'; '.join(failed)}"
    incomplete = [f"{result.step} ({result.note})" for result in results if result.outcome in (PARTIAL, NOT_CHECKED)]
    return 0, f"nothing failed, but not all was checked: {'; '.join(incomplete)}" if incomplete else "all passed"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--python", nargs="+", default=VERSIONS, metavar="VERSION", help=f"default: {' '.join(VERSIONS)}"
    )
    parser.add_argument("--without-tests", action="store_true", help="do not run the tests of the sdist (minutes)")
    parser.add_argument("--with-cuda", action="store_true", help="install torch also where it brings 5.5 GB of CUDA")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with temporary_folder() as folder:
            check = ReleaseCheck(folder, options.with_cuda)
            results = check.run_all(options.python, not options.without_tests)
    except KeyboardInterrupt:
        print("stopped; what was built and installed is removed", file=sys.stderr)
        return 130
    code, last = conclusion(results)
    print(f"\n{table(results)}\n\n{last}")
    return code


if __name__ == "__main__":
    sys.exit(main())
