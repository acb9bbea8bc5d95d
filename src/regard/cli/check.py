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
from regard.cli.options import ensure_json_writable, import_torch, json_option, option, status, write_json
from regard.errors import InputError, short_repr
from regard.escape import visible

VERDICT_STYLES = {"wrong": "bold red", "undetermined": "bold yellow", "different by design": "bold cyan"}
"""Styles of the verdicts; of any other, `OK_STYLE`."""
OK_STYLE = "bold green"


@app.command(
    help="Check an attention: which step is wrong, and why.\n\n"
    "NAME is a function of (q, k, v), with or without a mask or a causal flag, or a class: self-attention, "
    "cross-attention, multi-head attention, a block or a decoder. Arguments of its constructor are guessed by their "
    "names, and the report lists them; --arg sets one.\n\n"
    "The verdict is right, right in another layout or convention, different by design, wrong, or undetermined. If it "
    "is wrong, the report shows the first step that deviates, this step in your code and in the definition on a small "
    "example, the mistake with the measured number, its line where that was found, and what it does to a model.\n\n"
    "The file runs in a process of its own, with a limit of time and memory. This is no sandbox: it guards against "
    "accidents, not against malice. Check only code that you would run: it may do whatever you may do, and code that "
    "means to deceive can forge the verdict.\n\n"
    "Exit codes: 0 right in any way; 1 wrong; 3 undetermined, also where the code exits, crashes or takes too long; 2 "
    "for what cannot be checked at all, such as a file whose import fails.",
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
            "An argument of the constructor: a number, True, None, a list, ... as Python writes it; anything else is a "
            "text. May be given several times.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Stop the check after this time.")] = 60.0,
    memory: Annotated[float, typer.Option(metavar="GIB", help="The memory that the code may allocate.")] = 4.0,
    json_path: Annotated[Path | None, json_option("the report")] = None,
    list_mistakes: Annotated[bool, typer.Option("--list", help="List every known mistake, and stop.")] = False,
) -> int:
    """Check an attention: which step is wrong, and why."""
    if list_mistakes:
        if target is not None or arg:
            raise InputError("--list checks nothing: leave out FILE.py:NAME and --arg")
        _list(json_path)
        return 0
    if target is None:
        raise InputError("give FILE.py:NAME or module.path:NAME, or --list")
    if not 0 < timeout <= 86_400:
        raise InputError(f"--timeout {timeout:g}: give a number of seconds above 0, and at most a day")
    if not 0 < memory <= 1e6:
        raise InputError(f"--memory {memory:g}: give a number of GiB above 0")
    ensure_json_writable(json_path)
    values = _arguments(arg or [])
    import_torch()
    from regard.check import check_file

    with status("checking"):
        report = check_file(target, values, timeout=timeout, memory=int(memory * 2**30))
    if not write_json(json.loads(report.to_json()), json_path):
        _show(report)
    return report.exit_code


def _arguments(pairs: list[str]) -> dict[str, Any]:
    """The values of NAME=VALUE."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, written = pair.partition("=")
        if not sign or not name.isidentifier():
            raise InputError(f"--arg {short_repr(pair)}: it is NAME=VALUE, such as num_heads=4")
        if name in values:
            raise InputError(f"--arg {name} is given twice")
        if written in ("true", "false"):  # as a text both would count as true
            raise InputError(f"--arg {short_repr(pair)}: Python writes it {name}={written.capitalize()}")
        try:
            values[name] = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name] = written
    return values


def _show(report: Any) -> None:
    """Print a report, with the verdict in color."""
    from rich.text import Text

    from regard.views.terminal.console import console_for

    headings = {f"{cause.id} (in {cause.step}):" for cause in report.causes}
    console = console_for(sys.stdout)
    for number, line in enumerate(str(report).split("\n")):
        shown = Text(visible(line))
        if number == 0:
            shown.stylize(VERDICT_STYLES.get(report.verdict, OK_STYLE), len(shown) - len(report.verdict))
        for heading in headings:
            if line.startswith(heading):
                shown.stylize("bold", 0, len(heading))
        console.print(shown, soft_wrap=not console.is_terminal)  # lines of a pipe are for programs


def _list(json_path: Path | None) -> None:
    """Print every known mistake."""
    ensure_json_writable(json_path)
    import_torch()
    from regard.check.causes import MISTAKES

    names = ("id", "step", "example", "message")
    if write_json([{name: getattr(each, name) for name in names} for each in MISTAKES.values()], json_path):
        return

    from rich import box
    from rich.table import Table
    from rich.text import Text

    from regard.views.terminal.console import console_for

    console = console_for(sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000  # one row for each mistake, for programs
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("mistake", "step", "example"):
        table.add_column(title, no_wrap=title == "mistake", overflow="fold")
    for each in MISTAKES.values():
        table.add_row(Text(each.id, style="bold"), Text(each.step), Text(visible(each.example)))
    console.print(table)
