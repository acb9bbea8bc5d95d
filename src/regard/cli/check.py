"""The command `regard check`."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import app
from regard.cli.options import import_torch, option, status
from regard.errors import InputError, quoted
from regard.escape import visible

__all__ = ["check"]

STYLES = {"wrong": "bold red", "undetermined": "bold yellow", "different by design": "bold cyan"}
"""Of the verdicts; any other is green."""
RIGHT = "bold green"


@app.command(
    help="Check an attention: which step is wrong, and why.\n\n"
    "NAME is a function of (q, k, v), with or without a mask or a causal flag, or a class: a self-attention, a "
    "cross-attention, a multi-head module, a block, a decoder. What its constructor wants is guessed from its "
    "signature, and said; --arg tells it.\n\n"
    "The verdict is right, right in another layout or convention, different by design, wrong, or undetermined. Where "
    "it is wrong: the first step that deviates, yours beside the definition's on a small example, the cause with its "
    "measured number, the line where it can be told, and what it does to a model.\n\n"
    "The file runs in a process of its own, with a limit of time and memory. Exit codes: 0 right, in whatever way; 1 "
    "wrong; 3 undetermined; 2 for what cannot be checked at all.",
    epilog="Examples:\n\n"
    "regard check attention.py:scaled_dot_product\n\n"
    "regard check model.py:CausalSelfAttention --arg n_embd=64 --arg n_head=4\n\n"
    "regard check torch.nn:MultiheadAttention --arg embed_dim=32 --arg num_heads=4 --arg batch_first=True",
)
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.py:NAME]", help="A function or a class; or module.path:NAME.", show_default=False
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "An argument of the constructor: a number, True, None, a list, ... as Python writes it, else a text. May "
            "be given several times.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="The time of the whole check.")] = 60.0,
    memory: Annotated[float, typer.Option(metavar="GIB", help="The memory that it may ask for.")] = 4.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[Path | None, option("FILE", "Also write the report as JSON.")] = None,
    every: Annotated[bool, typer.Option("--list", help="Show every cause that is known, and stop.")] = False,
) -> int:
    """Check an attention: which step is wrong, and why."""
    if every:
        if target is not None or arg or out is not None:
            raise InputError("--list shows every cause and checks nothing: leave out FILE.py:NAME, --arg and --out")
        _list(as_json)
        return 0
    if target is None:
        raise InputError("give FILE.py:NAME or module.path:NAME, or --list")
    if not 0 < seconds <= 86_400:
        raise InputError(f"--seconds {seconds:g}: a time above 0, and at most a day")
    if not 0 < memory <= 1e6:
        raise InputError(f"--memory {memory:g}: a number of GiB above 0")
    if out == Path("-"):
        raise InputError("--out -: it is a file; --json prints the report")
    given = _arguments(arg or [])
    import_torch()
    from regard.check import check_file
    from regard.files import ensure_writable, write_text

    if out is not None:
        ensure_writable(out)
    with status("checking"):
        report = check_file(target, given, seconds=seconds, memory=int(memory * 2**30))
    if out is not None:
        write_text(report.to_json() + "\n", out)
    if as_json:
        print(report.to_json())
    else:
        _show(report)
    return report.code


def _arguments(pairs: list[str]) -> dict[str, Any]:
    """The values of NAME=VALUE."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, written = pair.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--arg {quoted(pair)}: it is NAME=VALUE, such as num_heads=4")
        if name in values:
            raise InputError(f"--arg {name} is given twice")
        if written in ("true", "false"):  # as a text both would count as true
            raise InputError(f"--arg {quoted(pair)}: Python writes it {name}={written.capitalize()}")
        try:
            values[name] = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name] = written
    return values


def _show(report: Any) -> None:
    """Print a report, the verdict in its colour."""
    from rich.text import Text

    from regard.views.terminal.console import console_for

    headings = {f"{cause.id} (in {cause.step}):" for cause in report.causes}
    console = console_for(sys.stdout)
    for number, line in enumerate(str(report).split("\n")):
        shown = Text(visible(line))
        if number == 0:
            shown.stylize(STYLES.get(report.verdict, RIGHT), len(shown) - len(report.verdict))
        for heading in headings:
            if line.startswith(heading):
                shown.stylize("bold", 0, len(heading))
        console.print(shown, soft_wrap=not console.is_terminal)  # lines of a pipe are for programs


def _list(as_json: bool) -> None:
    """Print every cause that is known."""
    import_torch()
    from regard.check.causes import CAUSES

    if as_json:
        facts = [
            {"id": id_, "step": each.step, "example": each.example, "says": each.says} for id_, each in CAUSES.items()
        ]
        print(json.dumps(facts, indent=1))
        return

    from rich import box
    from rich.table import Table
    from rich.text import Text

    from regard.views.terminal.console import console_for

    console = console_for(sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000  # one row a cause, for programs
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("cause", "step", "example"):
        table.add_column(title, no_wrap=title == "cause", overflow="fold")
    for id_, each in CAUSES.items():
        table.add_row(Text(id_, style="bold"), Text(each.step), Text(visible(each.example)))
    console.print(table)
