"""How often `regard check` is right on code that it was not made for.

`make collected ARGS=FOLDER` checks what somebody collected: each case is a folder with a `subject.py` and a `case.json`

    {"target": "MultiHeadAttention", "args": {"embed_dim": "64"}, "label": "right", "why": "..."}

whose label is "right", "design" (a documented departure) or "wrong"; `args` are those of the constructor that have no
default. `--package transformers` draws attentions of an installed package instead. Each is checked by the command, in
a process of its own. A third of the cases, by their names, is kept unread: develop with `--part development` and
measure once, at the end, with `--part kept`. Nothing of what was collected belongs into this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .cases import LABELS, CollectedCase, cases_in, classes_of

NO_VERDICT = "no call"
TOLD_RIGHT = ("right", "right in another layout or convention", "different by design")


@dataclass(frozen=True)
class Checked:
    """A case and what was told of it."""

    case: CollectedCase
    verdict: str
    seconds: float
    said: str
    """The causes, or what was missing."""

    @property
    def expected(self) -> bool:
        """Whether the verdict is what the label asks for."""
        return self.verdict == "wrong" if self.case.label == "wrong" else self.verdict in TOLD_RIGHT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of cases")
    parser.add_argument("--package", action="append", default=[], help="an installed package; also several times")
    parser.add_argument("--count", type=int, default=20, help="attentions of each package (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument("--part", choices=["all", "development", "kept"], default="all", help="of the cases")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many at once (default: the cores)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case (default: 120)")
    parser.add_argument("--results", type=Path, help="write what was told of each case here, as JSON lines")
    options = parser.parse_args()
    if options.folder is None and not options.package:
        parser.error("give a folder of cases, or --package NAME")
    try:
        cases = [*(cases_in(options.folder) if options.folder else ())]
        for package in options.package:
            cases += classes_of(package, count=options.count, seed=options.seed)
    except ValueError as error:
        parser.error(str(error))
    chosen = [
        each
        for each in cases
        if options.only in each.name and options.part in ("all", "kept" if each.kept else "development")
    ]
    if not chosen:
        parser.error(f"none of {len(cases)} cases is chosen")
    checked = []
    with ThreadPoolExecutor(options.processes) as threads:
        for each in threads.map(lambda case: _check(case, options.limit), chosen):
            checked.append(each)
            if not each.expected:
                print(f"{each.case.name}: {each.case.label}, told {each.verdict} in {each.seconds:.1f} s: {each.said}")
    if options.results:
        options.results.write_text("".join(json.dumps(asdict(each)) + "\n" for each in checked))
    print("\n".join(_table(checked)))


def _check(case: CollectedCase, limit: float) -> Checked:
    given = [part for name, value in case.arguments.items() for part in ("--arg", f"{name}={value}")]
    command = [sys.executable, "-m", "regard", "check", case.target, "--json", "-", *given]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Checked(case, NO_VERDICT, limit, f"did not end within {limit:g} s")
    seconds = time.monotonic() - begun
    try:
        report = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        return Checked(case, NO_VERDICT, seconds, done.stderr.strip()[-300:])
    causes = [f"{cause['id']}: {cause['message']}" for cause in report["causes"]]
    return Checked(case, report["verdict"], seconds, "; ".join(causes or report["reasons"])[:300])


def _table(checked: Sequence[Checked]) -> list[str]:
    """A row for each label: how many got each verdict, and the share that is as it should be."""
    verdicts = (*TOLD_RIGHT, "wrong", "undetermined", NO_VERDICT)
    rows = [f"| label | cases | {' | '.join(verdicts)} | as it should be |", "|---|" + "---|" * (len(verdicts) + 2)]
    for label in LABELS:
        mine = [each for each in checked if each.case.label == label]
        if mine:
            told = Counter(each.verdict for each in mine)
            share = sum(each.expected for each in mine) / len(mine)
            counts = " | ".join(str(told[verdict]) for verdict in verdicts)
            rows.append(f"| {label} | {len(mine)} | {counts} | {share:.0%} |")
    seconds = sorted(each.seconds for each in checked)
    slow = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return [*rows, f"seconds: median {median(seconds):.1f}, 95 % within {slow:.1f}"]


if __name__ == "__main__":
    main()
