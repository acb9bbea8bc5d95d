"""The lists of `regard check`: what a file has that can be checked, and every known mistake."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from regard.cli.options import ensure_json_writable, import_torch, write_json
from regard.escape import visible

__all__ = ["print_table", "show_candidates", "show_mistakes"]


def show_candidates(path: str, json_path: Path | None) -> int:
    """Print what a file or a notebook has that can be checked, found without running it; the exit code, always 0.

    Args:
        path: of the file.
        json_path: see `write_json`.
    """
    from regard.check.source.candidates import candidates_of
    from regard.check.source.notebook import NOTEBOOK_SUFFIX, read_notebook

    found = candidates_of(path)
    if write_json([asdict(each) for each in found], json_path):
        return 0
    listed = [each for each in found if each.kind != "module"]
    others = [each.name for each in found if each.kind == "module"]
    if listed:
        rows = [
            (
                each.name,
                str(each.line) if each.cell is None else f"cell {each.cell}, line {each.line}",
                each.description,
                each.command,
            )
            for each in listed
        ]
        print_table(("name", "line", "seems to be", "how to check it"), rows)
    else:
        print(visible(f"{path}: no attention was seen in it"))
    if others:
        print()
        print(visible(f"modules in which no attention was seen: {', '.join(others)}"))
    for error in read_notebook(path).syntax_errors() if path.endswith(NOTEBOOK_SUFFIX) else ():
        print(visible(error))
    return 0


def show_mistakes(json_path: Path | None) -> None:
    """Print every known mistake, and every property that is held against code.

    Args:
        json_path: see `write_json`.
    """
    ensure_json_writable(json_path)
    import_torch()
    from regard.check.mistakes.catalog import MISTAKES
    from regard.check.properties.catalog import PROPERTIES

    mistakes = [
        {"kind": "mistake", **{name: getattr(each, name) for name in ("id", "step", "example", "message")}}
        for each in MISTAKES.values()
    ]
    properties = [
        {"kind": "property", **{name: getattr(each, name) for name in ("id", "step", "definition", "impact", "fix")}}
        for each in PROPERTIES.values()
    ]
    if write_json([*mistakes, *properties], json_path):
        return
    print_table(("mistake", "step", "example"), [(each.id, each.step, each.example) for each in MISTAKES.values()])
    print()
    rows = [(each.id, each.step, each.definition) for each in PROPERTIES.values()]
    print_table(("property", "step", "what holds"), rows)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is bold and never folded.

    Args:
        titles: of the columns.
        rows: the texts of each.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from regard.views.terminal.console import console_for

    console = console_for(sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000  # one row for each, for programs
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title == titles[0], overflow="fold")
    for first, *more in rows:
        table.add_row(Text(visible(first), style="bold"), *(Text(visible(each)) for each in more))
    console.print(table)
