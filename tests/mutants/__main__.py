"""How many faults the tests find: mutations drawn from src against the fast tier, survivors against all that lands.

`make mutants` writes tests/MUTANTS.md. Mutmut and cosmic-ray were looked at first. Mutmut 3 mutates functions behind
trampolines, which show in what inspects code here (jaxtyping, torch.compile, check), draws no seeded share of each
package and does not follow tests into processes of their own; cosmic-ray starts the whole test command anew for each
mutation, 20 s of imports each. This one forks a process that has torch already and runs the tests that reach the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .mutations import Mutation, draw
from .report import write_report
from .runs import Run, copy_checkout, preload

CHECKOUT = Path(__file__).parents[2]
NEAREST = 3
FULL_TIER = (
    "-m",
    "not slow",
    "--hypothesis-profile=more",
    f"@{CHECKOUT / 'tests' / 'enforced_shapes.txt'}",
)


@dataclass
class Reach:
    """Which tests of the fast tier reach which mutation, and how long each test of it takes."""

    tests: dict[int, set[str]]
    seconds: dict[str, float]
    imported: set[int]
    """Mutations of what runs when a module is imported."""

    def of(self, number: int, mutation: Mutation, tier: str) -> set[str]:
        """The tests that can see a mutation: those that reach it, and for what an import runs those of its package.

        The further tests of the full tier are not known here: of these, the files of its package are looked through.
        """
        if tier == "fast" and number not in self.imported:
            return self.tests[number]
        package = f"tests/{mutation.package}/"
        return self.tests[number] | {test for test in self.seconds if test.startswith(package)}

    def files(self, number: int, mutation: Mutation, tier: str) -> list[str]:
        """The files of these tests, nearest first."""
        counts = Counter(test.split("::")[0] for test in self.of(number, mutation, tier))
        package = f"tests/{mutation.package}/"
        return sorted(counts, key=lambda file: (not file.startswith(package), -counts[file], file))


def find_reach(mutations: list[Mutation], tree: Path, tests: str) -> Reach:
    """Run the fast tier once on a copy of src in which each mutation's place notes who comes by."""
    instrument(mutations, tree / "src")
    notes = tree / "reached"
    notes.mkdir()
    run = Run(tree, tests.split(), environment={"REACHED": str(notes)}).begin()
    while run.poll() is None:
        time.sleep(1)
    if not (tree / "log.tsv").exists():
        sys.exit((tree / "output.txt").read_text())
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for line in (tree / "log.tsv").read_text().splitlines():
        outcome, test, duration = line.split("\t")
        seconds[test] += float(duration)
        if outcome == "failed":
            failed.add(test)
    print(
        f"{len(seconds)} tests, {sum(seconds.values()):.0f} s, {len(failed)} failed: {sorted(failed)[:20]}", flush=True
    )
    reaching: dict[int, set[str]] = defaultdict(set)
    imported = set()
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            test, tab, number = line.rpartition("\t")
            if not tab:
                continue  # a test of a full disk: what it reached was noted in part
            if not test:
                imported.add(int(number))
                continue
            test, _, phase = test.rpartition(" ")
            # What a fixture reaches, or an import, matters to the other tests of that file as well.
            same = [test] if phase == "(call)" else [t for t in seconds if t.split("::")[0] == test.split("::")[0]]
            reaching[int(number)].update(same)
    for test in failed:
        seconds.pop(test)
        for tests_of_one in reaching.values():
            tests_of_one.discard(test)
    return Reach(reaching, dict(seconds), imported)


def instrument(mutations: list[Mutation], src: Path) -> None:
    """Put `note(number)` where each mutation would be: before a statement, or in an expression's value."""
    by_file: dict[str, list[tuple[int, Mutation]]] = defaultdict(list)
    for number, mutation in enumerate(mutations):
        by_file[mutation.file].append((number, mutation))
    for file, places in by_file.items():
        text = (src / file).read_text()
        inserts = []
        for number, mutation in places:
            note = f"__import__('mutants.reached').reached.note({number})"
            if mutation.kind == "slice":  # a slice is no value: its first number is
                inner = mutation.before.split(":")[0]
                inserts.append((mutation.start, len(inner), f"({note} or ({inner or None}))"))
            elif mutation.kind == "statement":
                inserts.append((mutation.start, 0, f"{note}; "))
            else:
                inserts += [(mutation.start, 0, f"({note} or ("), (mutation.end, 0, "))")]
        for start, length, new in sorted(inserts, key=lambda insert: insert[0], reverse=True):
            text = text[:start] + new + text[start + length :]
        compile(text, file, "exec")
        (src / file).write_text(text)


class Trial:
    """One mutation against one tier: first the few files of tests that reach it most, then the others."""

    def __init__(self, number: int, mutation: Mutation, tier: str, reach: Reach) -> None:
        self.number, self.mutation, self.tier, self.reach = number, mutation, tier, reach
        files = reach.files(number, mutation, tier)
        # They find most faults, and to collect the tests of every file takes longer than to run a few.
        self.parts = [part for part in (files[:NEAREST], files[NEAREST:]) if part]
        self.seconds = 0.0

    def begin(self, tree: Path, limit: float) -> Run:
        """Write the fault into the tree's src and run the next part."""
        self.path = tree / "src" / self.mutation.file
        self.correct = self.path.read_text()
        self.path.write_text(self.mutation.apply(self.correct))
        # Python compares time and size of a file with its compiled form: no two faults of a file may share both.
        os.utime(self.path, (time.time(), 1e9 + self.number))
        options = FULL_TIER if self.tier == "full" else ()
        part = self.parts.pop(0)
        return Run(tree, part, self.chosen(), ("-x", *options), self.reach.seconds, limit - self.seconds).begin()

    def end(self, run: Run) -> None:
        """Take the fault out again."""
        self.path.write_text(self.correct)
        self.seconds += time.monotonic() - run.began

    def outcome(self, outcome: str, test: str) -> dict[str, Any]:
        """What came out, as it is kept."""
        return {
            "mutation": str(self.mutation),
            "package": self.mutation.package,
            "tier": self.tier,
            "outcome": outcome,
            "test": test,
            "seconds": round(self.seconds, 1),
            "reached": len(self.reach.tests[self.number]),
        }

    def chosen(self) -> Callable[[str], bool]:
        """The tests that reach the fault, or those of its package; in the full tier their further cases as well."""
        package = f"tests/{self.mutation.package}/"
        tests, seconds = self.reach.of(self.number, self.mutation, self.tier), self.reach.seconds
        if self.tier == "fast":
            return lambda test: test in tests
        reaching = {test.split("[")[0] for test in tests}
        fast = {test.split("[")[0] for test in seconds}
        return lambda test: test.split("[")[0] in reaching or test.split("[")[0] not in fast or test.startswith(package)


def run_trials(trials: Iterator[Trial], trees: list[Path], limit: float) -> Iterator[dict[str, Any]]:
    """Each trial in the next free tree; their outcomes as they come."""
    busy: dict[Path, tuple[Trial, Run]] = {}
    while True:
        for tree in trees:
            while tree not in busy and (trial := next(trials, None)):
                if trial.parts:
                    busy[tree] = trial, trial.begin(tree, limit)
                else:
                    yield trial.outcome("passed", "no test comes there")
        if not busy:
            return
        time.sleep(0.1)
        for tree, (trial, run) in list(busy.items()):
            if (outcome := run.poll()) is None:
                continue
            trial.end(run)
            if outcome[0] == "passed" and trial.parts and trial.seconds < limit:
                busy[tree] = trial, trial.begin(tree, limit)
                continue
            del busy[tree]
            yield trial.outcome(*outcome)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=16, help="which mutations are drawn (default: 16)")
    parser.add_argument("--count", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--package", action="append", help="only those of a package, such as lens; also several times")
    parser.add_argument("--tests", default="tests", help="only these tests, such as tests/lens")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many at once (default: the cores)")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a mutation in a tier (default: 600)")
    parser.add_argument("--results", type=Path, help="where outcomes are kept; an earlier run goes on from there")
    parser.add_argument("--fast-only", action="store_true", help="do not try survivors against the other tiers")
    parser.add_argument("--report", type=Path, help="write the report here")
    chosen = parser.parse_args()
    if chosen.report and (chosen.package or chosen.tests != "tests"):
        parser.error("--report is of every package and all tests: leave out --package and --tests")
    fast_only = " --fast-only" if chosen.fast_only else ""
    command = f"make mutants ARGS='--seed {chosen.seed} --count {chosen.count}{fast_only}'"
    drawn = [
        m for m in draw(CHECKOUT / "src", chosen.count, chosen.seed) if m.package in (chosen.package or [m.package])
    ]
    results = chosen.results or Path(tempfile.mkdtemp()) / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        trees = [Path(temporary) / str(i) for i in range(chosen.processes)]
        for tree in trees:
            copy_checkout(CHECKOUT, tree)
        reach = find_reach(drawn, trees[0], chosen.tests)
        shutil.rmtree(trees[0] / "src")
        shutil.copytree(CHECKOUT / "src", trees[0] / "src")
        for tier in ("fast", "full"):
            if tier == "full" and chosen.fast_only:
                break
            done = {row["mutation"] for row in rows if row["tier"] == tier}
            killed = {row["mutation"] for row in rows if row["outcome"] != "passed"}
            trials = (
                Trial(i, mutation, tier, reach)
                for i, mutation in enumerate(drawn)
                if str(mutation) not in done | (killed if tier == "full" else set())
            )
            for row in run_trials(trials, trees, chosen.limit):
                rows.append(row)
                with results.open("a") as file:
                    print(json.dumps(row), file=file)
                print(
                    f"{len(rows)}: {row['outcome']} in {row['seconds']} s: {row['mutation']} ({row['test']})",
                    flush=True,
                )
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=CHECKOUT, text=True).strip()
    write_report(rows, command, commit, chosen.report)


if __name__ == "__main__":
    main()
