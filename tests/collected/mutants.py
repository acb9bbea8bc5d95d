"""Faults in collected code that is right: what `check` says of each shows what it is blind to.

`python -m collected.mutants FOLDER INTO --count 100` (in tests/) draws from the cases below FOLDER that are labelled
"right" or "design": one small change each (`faults`), kept where the call that `check` finds for the code runs as well
with the change, and gives something else. Each becomes a case below INTO, labelled "wrong", for `make collected`.

Some compute the same with other weights, as an exchange of keys and values that are made alike; or what is right as
well, as another constant within a norm. Read those that are told right before you call them missed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from regard.check.source.importer import load
from regard.check.target import invocations

from .cases import CollectedCase, cases_in
from .faults import faults_of

TraceFunction = Callable[[FrameType, str, Any], Any]
SECONDS_EACH = 20
"""For one fault: its call has to be found and run."""
TRIES_EACH = 12
"""Faults that are tried for one that is kept: most of them do not run."""


def main() -> None:
    """Draw faults, and write those that change something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of cases")
    parser.add_argument("into", type=Path, help="where the cases with a fault are written")
    parser.add_argument("--count", type=int, default=100, help="cases to write (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument("--part", choices=["all", "development", "kept"], default="all", help="of the cases")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [
        each
        for each in cases_in(options.folder)
        if each.label != "wrong" and options.part in ("all", "kept" if each.kept else "development")
    ]
    if not cases:
        parser.error(f"{options.folder} has no case that is labelled right or design")
    share = -(-options.count // len(cases))
    if options.of:
        (case,) = (each for each in cases if each.name == options.of)
        for number, (text, told) in enumerate(islice(_changed(case, options.seed, share * TRIES_EACH), share)):
            _write(case, options.into / f"{case.name.replace('/', '-')}-fault{options.seed}-{number}", text, told)
        return

    def draw(case: CollectedCase) -> None:
        command = [sys.executable, "-m", "collected.mutants", *sys.argv[1:], "--of", case.name]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(draw, cases))
    print(f"{len(list(options.into.glob('*/case.json')))} cases below {options.into}")


def _changed(case: CollectedCase, seed: int, tries: int) -> Iterator[tuple[str, str]]:
    """Texts of a case with a fault that changes what it computes, and what the fault is."""
    path, _, name = case.target.rpartition(":")
    source = Path(path).read_text()
    lines: set[int] = set()
    with _noting(path, lines):
        before = _outputs(path, name, case)
    if before is None:
        return
    several = [each for each in faults_of(source, Path(path).name) if each.line in lines]
    random.Random(f"{seed} {case.name}").shuffle(several)
    for each in several[:tries]:
        text = each.apply(source)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "subject.py"
            file.write_text(text)
            after = _outputs(str(file), name, case)
        if after is not None and _differ(before, after):
            yield text, str(each)


@contextlib.contextmanager
def _noting(path: str, lines: set[int]) -> Iterator[None]:
    """Inside, the lines of a file that run are noted."""

    def note(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != path:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return note

    sys.settrace(note)
    try:
        yield
    finally:
        sys.settrace(None)


def _outputs(path: str, name: str, case: CollectedCase) -> list[torch.Tensor] | None:
    """What the first call that runs returns; None where none does, or not in time."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError))
    signal.alarm(SECONDS_EACH)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            call = next(invocations(load(f"{path}:{name}", []), args=_values(case.arguments)))
            return call.outputs(call.run())
    except Exception:
        return None
    finally:
        signal.alarm(0)


def _values(arguments: dict[str, str]) -> dict[str, object]:
    """Arguments of a constructor: literals, and texts that are none."""
    values: dict[str, object] = {}
    for name, written in arguments.items():
        try:
            values[name] = ast.literal_eval(written)
        except (ValueError, SyntaxError):
            values[name] = written
    return values


def _differ(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether the outputs have the same shapes, are finite, and are not the same numbers."""
    if [each.shape for each in before] != [each.shape for each in after]:
        return False
    if not all(each.isfinite().all() for each in after):
        return False
    return any(not torch.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in zip(before, after, strict=True))


def _write(case: CollectedCase, folder: Path, text: str, told: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "subject.py").write_text(text)
    name = case.target.rpartition(":")[2]
    kept = {"target": name, "args": case.arguments, "label": "wrong", "why": told}
    (folder / "case.json").write_text(json.dumps(kept, indent=2))


if __name__ == "__main__":
    main()
