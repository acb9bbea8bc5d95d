"""Notebooks: their code cells as one Python module, and the cell and line of what stands in it.

The cells are compiled as if they stood below one another in one file, which is what lines are counted in while the
check runs; a report names the cell and the line in it.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.check.report import Report
from regard.check.sandbox.answer import error_text, first_line, wants_memory
from regard.check.sandbox.schema import from_builtins, to_builtins
from regard.errors import InputError

__all__ = ["NOTEBOOK_SUFFIX", "Notebook", "NotebookRun", "read_notebook"]

NOTEBOOK_SUFFIX = ".ipynb"
MAGIC = re.compile(r"\s*(?:[%!?]|[\w., ]+=\s*[%!]|.*[\w\])]\?{1,2}\s*$)")
"""The beginning of a line that IPython runs and Python does not: a magic, a command of the shell, a question."""
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3")
"""Magics of a whole cell whose other lines are Python."""
MAX_NAMED_FAILURES = 3
"""Cells that failed, as notes name them."""
MAX_NAMED_LINES = 3
"""Lines that were left out, as a note quotes them."""


class _TooLong(BaseException):
    """The cells took their time; no `except Exception` of theirs catches it."""


@dataclass(frozen=True)
class Cell:
    """A code cell."""

    number: int
    """Among the code cells, from 1: as In [3] after "Restart and run all"."""
    first_line: int
    """In the file that all cells would be, from 1."""
    source: str
    """With ``pass`` in place of each line that is not Python's."""
    skipped: tuple[str, ...]
    """The lines that were left out."""

    @property
    def num_lines(self) -> int:
        """The number of its lines."""
        return self.source.count("\n") + 1


@dataclass(frozen=True)
class NotebookRun:
    """What the cells of a notebook defined."""

    module: ModuleType
    failures: tuple[str, ...]
    """One for each cell that did not end, with its line."""
    skipped: str
    """The lines that were left out, in a sentence; empty where there are none."""

    @property
    def notes(self) -> list[str]:
        """What a report is to tell."""
        failed = list(self.failures[:MAX_NAMED_FAILURES])
        if failed:
            failed[0] += "; judged is what the cells defined all the same"
        if len(self.failures) > len(failed):
            failed.append(f"{len(self.failures) - len(failed)} more cells fail")
        return [*failed, *([self.skipped] if self.skipped else [])]


@dataclass(frozen=True)
class Notebook:
    """The code cells of a notebook."""

    path: str
    """As the user wrote it."""
    cells: tuple[Cell, ...]

    @cached_property
    def source(self) -> str:
        """All cells as one file."""
        return "\n".join(cell.source for cell in self.cells)

    def cell_at(self, line: int) -> Cell:
        """The cell that a line of `source` is in."""
        return next(cell for cell in reversed(self.cells) if cell.first_line <= max(line, 1))

    def place(self, line: int) -> str:
        """The words for a line of `source`: "lesson.ipynb cell 3, line 5"."""
        cell = self.cell_at(line)
        return f"{self.path} cell {cell.number}, line {line - cell.first_line + 1}"

    def syntax_errors(self) -> list[str]:
        """One line for each cell that is not Python."""
        found = []
        for cell in self.cells:
            try:
                ast.parse(cell.source)
            except SyntaxError as error:
                line = cell.first_line - 1 + (error.lineno or 1)
                found.append(f"{self.place(line)} is not Python: {error.msg}")
            except (ValueError, RecursionError, MemoryError) as error:
                found.append(f"{self.place(cell.first_line)} cannot be read: {first_line(error_text(error))}")
        return found

    def remember(self) -> None:
        """Let `linecache` read the lines of the cells, for tracebacks, `inspect` and places in a report."""
        for file in (self.path, os.path.abspath(self.path), os.path.realpath(self.path)):
            # Without a time of change, it is not compared with the file on the disk.
            linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)

    def run(self, seconds: float | None) -> NotebookRun:
        """Run the cells in order, in the folder of the notebook; after one that fails the others are run all the same.

        Args:
            seconds: when they are stopped, all together; None for no limit.
        """
        file = os.path.abspath(self.path)
        name = f"regard_checked_{Path(self.path).stem}"
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = file
        vars(module)["display"] = lambda *_args, **_named: None
        if os.path.dirname(file) not in sys.path:
            sys.path.insert(0, os.path.dirname(file))
        self.remember()
        failures: list[str] = []
        with _in_folder(os.path.dirname(file)):
            try:
                with _stopped_after(seconds):
                    for cell in self.cells:
                        failures += self._run_cell(cell, file, vars(module))
            except _TooLong as error:
                failures.append(f"{self.place(_line_of(error, file) or 1)} was stopped after {seconds:g} s")
        skipped = [line for cell in self.cells for line in cell.skipped]
        quoted = ", ".join(repr(line) for line in skipped[:MAX_NAMED_LINES])
        quoted += f" and {len(skipped) - MAX_NAMED_LINES} more" if len(skipped) > MAX_NAMED_LINES else ""
        return NotebookRun(module, tuple(failures), f"left out of the notebook: {quoted}" if skipped else "")

    def _run_cell(self, cell: Cell, file: str, names: dict[str, Any]) -> Iterator[str]:
        """Run a cell; how it failed, if it did."""
        try:
            code = compile("\n" * (cell.first_line - 1) + cell.source, file, "exec", dont_inherit=True)
            exec(code, names)
        except _TooLong:
            raise
        except BaseException as error:
            if wants_memory(error):
                raise
            line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else _line_of(error, file)
            says = f"is not Python: {error.msg}" if isinstance(error, SyntaxError) else f"raises {error_text(error)}"
            yield f"{self.place(line or cell.first_line)} {first_line(says)}"

    def relocate(self, report: Report) -> Report:
        """A report with cells and their lines in place of lines of `source`, wherever it names the notebook."""
        names = "|".join(re.escape(name) for name in (os.path.abspath(self.path), self.path))
        written = re.compile(rf"(?:{names}):(\d+)\b")

        def moved(value: Any) -> Any:
            if isinstance(value, str):
                return written.sub(lambda match: self.place(int(match[1])), value)
            if isinstance(value, list):
                return [moved(each) for each in value]
            if isinstance(value, Mapping):
                made = {key: moved(each) for key, each in value.items()}
                if {"file", "line", "cell"} <= set(made) and _same(made["file"], self.path):
                    cell = self.cell_at(made["line"])
                    made |= {"file": self.path, "cell": cell.number, "line": made["line"] - cell.first_line + 1}
                    made["text"] = self.source.splitlines()[value["line"] - 1].strip()
                return made
            return value

        return from_builtins(Report, moved(to_builtins(report)))


def read_notebook(path: str) -> Notebook:
    """The code cells of a notebook of Jupyter's format 4.

    Raises:
        InputError: there is no such file, it is no notebook, of another format, or not in Python.
    """
    try:
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"not a notebook: {error_text(error)}"
        raise InputError(f"{path}: {reason}") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("cells"), list):
        raise InputError(f"{path}: not a notebook of format 4: it has no list of cells; save it anew in Jupyter")
    info = facts.get("metadata") if isinstance(facts.get("metadata"), dict) else {}
    language = (info.get("language_info") or {}).get("name", "python") if isinstance(info, dict) else "python"
    if str(language).lower() not in ("python", "ipython", "python3"):
        raise InputError(f"{path}: a notebook in {language}; check reads Python")
    cells: list[Cell] = []
    first_line = 1
    for each in facts["cells"]:
        if not isinstance(each, dict) or each.get("cell_type") != "code":
            continue
        written = each.get("source", "")
        text = "".join(map(str, written)) if isinstance(written, list) else str(written)
        source, skipped = _as_python(text.replace("\r\n", "\n").rstrip("\n"))
        cells.append(Cell(len(cells) + 1, first_line, source, skipped))
        first_line += cells[-1].num_lines
    if not cells:
        raise InputError(f"{path}: it has no code cells")
    return Notebook(path, tuple(cells))


def _as_python(text: str) -> tuple[str, tuple[str, ...]]:
    """A cell with as many lines, without those that are not Python's; and those."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in PYTHON_CELLS:
        return "\n".join("" for _ in lines), (first.strip(),)
    if _is_python(text):
        return text, ()
    kept, skipped, goes_on = [], [], False
    for line in lines:
        if goes_on or MAGIC.match(line):
            skipped.append(line.strip())
            kept.append("" if goes_on else f"{_indent(line)}pass")
            goes_on = line.endswith("\\")
        else:
            kept.append(line)
    return "\n".join(kept), tuple(skipped)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _line_of(error: BaseException, file: str) -> int | None:
    """The deepest line of a file in the traceback of an error."""
    found, frames = None, error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == file:
            found = frames.tb_lineno
        frames = frames.tb_next
    return found


def _same(one: object, other: str) -> bool:
    return isinstance(one, str) and os.path.realpath(one) == os.path.realpath(other)


@contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    """Inside, the notebook's folder is the current one, as in Jupyter."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


@contextmanager
def _stopped_after(seconds: float | None) -> Iterator[None]:
    """Inside, `_TooLong` is raised after this time, where signals and the main thread allow it."""
    can = hasattr(signal, "pthread_kill") and threading.current_thread() is threading.main_thread()
    if seconds is None or not can:
        yield
        return

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a signal that comes after the next line would end the process
        signal.signal(signal.SIGUSR1, before)
