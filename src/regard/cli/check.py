"""The command `regard check`."""

from __future__ import annotations

import ast
import json
import operator
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import app
from regard.cli.check_lists import show_candidates, show_mistakes
from regard.cli.options import (
    ensure_json_writable,
    import_torch,
    json_option,
    option,
    require_choice,
    status,
    write_json,
)
from regard.errors import InputError, short_repr
from regard.escape import visible

VERDICT_STYLES = {
    "wrong": "bold red",
    "different": "bold red",
    "undetermined": "bold yellow",
    "not filled in yet": "bold yellow",
    "different by design": "bold cyan",
}
"""Styles of the verdicts; of any other, `OK_STYLE`."""
OK_STYLE = "bold green"
MARK_STYLES = {
    **dict.fromkeys(("✓", "ok"), "green"),
    **dict.fromkeys(("✗", "X"), "bold red"),
    "~": "cyan",
    "?": "yellow",
    **dict.fromkeys(("–", "-"), "dim"),
}
"""Styles of the marks before steps and attentions."""
STEP_MARK = re.compile("  ({}) ".format("|".join(re.escape(mark) for mark in MARK_STYLES)))
STEP_TEXT = re.compile(STEP_MARK.pattern + r" *[\w.,-]+:? +")
"""What stands before the text of a step or an attention."""
FILE_SUFFIXES = (".py", ".ipynb")
"""How a target ends that has no NAME."""
FORMATS = ("text", "json", "github")
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
"""What may stand between numbers in the value of an argument."""
LARGEST_EXPONENT = 64
"""A power of a larger one takes long to compute."""
UNDETERMINED = 3
BADNESS = (0, UNDETERMINED, 1)
"""Exit codes of reports, the worst one last."""


@app.command(
    help="Check an attention: which step is wrong, and why.\n\n"
    "NAME is a function of (q, k, v), with or without a mask or a causal flag, or a class: self-attention, "
    "cross-attention, multi-head attention, a block or a decoder. Arguments of its constructor are guessed by their "
    "names, and the report lists them; --arg sets one. Of a function that makes a module, such as make_model, the "
    "module is checked: --arg gives what it takes. NAME may be dotted (Outer.Inner), or be given to an object. A "
    "file without a NAME lists what it has that can be checked, read from its text: nothing is run. A file that regard "
    "exercise wrote is checked as this exercise.\n\n"
    "Of a notebook, the code cells are run in order; lines for IPython or the shell are left out. A cell that fails or "
    "does not end is told, and what the cells defined is checked all the same. Lines are counted in their cell.\n\n"
    "The verdict is right, right in another layout or convention, different by design, wrong, or undetermined. The "
    "report shows every step of the definition: what holds, what was not exercised. If it is wrong, it shows the first "
    "step that deviates, the mistake with the measured number, its line where that was found, what it does to a model, "
    "what to write instead, and this step in your code and in the definition on a small example.\n\n"
    "With --against OTHER.py:NAME the question is another one: do both compute the same? How the weights of the first "
    "have to be reordered for the second is found, proved in float64 and printed as code: same, same after reordering, "
    "or different, with the first step at which they part. Both have to be of the same sizes.\n\n"
    "The file runs in a process of its own, with a limit of time and memory. This is no sandbox: it guards against "
    "accidents, not against malice. Check only code that you would run: it may do whatever you may do, and code that "
    "means to deceive can forge the verdict.\n\n"
    "Exit codes: 0 right in any way, or the same; 1 wrong, or different; 3 undetermined, also where the code exits, "
    "crashes or takes too long; 2 for what cannot be checked at all, such as a file whose import fails. --all ends "
    "with the worst of its codes.",
    epilog="Examples:\n\n"
    "regard check attention.py\n\n"
    "regard check attention.py:scaled_dot_product\n\n"
    "regard check package/attention.py:Block.Attention\n\n"
    "regard check lesson.ipynb --all\n\n"
    "regard check model.py --all --format github\n\n"
    "regard check model.py:CausalSelfAttention --arg n_embd=64 --arg n_head=4\n\n"
    "regard check model.py:Attention --args 'x=(B,T,D), freqs=rope(T,d)'\n\n"
    "regard check torch.nn:MultiheadAttention --arg embed_dim=32 --arg num_heads=4 --arg batch_first=True\n\n"
    "regard check model.py:SelfAttention --against torch.nn:MultiheadAttention --against-arg batch_first=True",
)
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.py[:NAME]]",
            help="A function or a class; or LESSON.ipynb:NAME, or module.path:NAME. FILE.py alone lists what it has.",
            show_default=False,
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "An argument of the constructor, or of a function: a number, 64 ** -0.5, True, a list, ... as Python "
            "writes it, or what the file's own names make, as GPTConfig(n_head=4); anything else is a text. A field of "
            "a config is config.n_head=4. May be given several times.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--args",
            metavar="NAME=SHAPE, ...",
            help="Arguments of the call, where their names tell too little: shapes of B, T, S, H, D, d and V, such as "
            "x=(B,T,D); rope(T,d), cos, sin, causal(T), ids(B,T,V); numbers. What it leaves open is guessed.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option("OTHER.py:NAME", "Another function or class: do both compute the same? Or module.path:NAME."),
    ] = None,
    against_arg: Annotated[
        list[str] | None, option("NAME=VALUE", "An argument of the constructor of --against, as --arg.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Stop the check after this time.")] = 60.0,
    memory: Annotated[float, typer.Option(metavar="GIB", help="The memory that the code may allocate.")] = 4.0,
    check_all: Annotated[
        bool, typer.Option("--all", help="Check every attention of FILE.py or LESSON.ipynb, each one by itself.")
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="What to print: the report as text or as JSON, or annotations for GitHub Actions.",
        ),
    ] = "text",
    json_path: Annotated[Path | None, json_option("the report")] = None,
    list_mistakes: Annotated[
        bool, typer.Option("--list", help="List every known mistake and property, and stop.")
    ] = False,
) -> int:
    """Check an attention: which step is wrong, and why."""
    require_choice("--format", format_, FORMATS)
    if list_mistakes:
        if target is not None or arg or inputs or check_all or against is not None or against_arg:
            raise InputError("--list checks nothing: leave out FILE.py:NAME, --all, --against, --arg and --args")
        show_mistakes(_json_path(json_path, format_))
        return 0
    if target is None:
        raise InputError("give FILE.py:NAME or module.path:NAME, or --list; FILE.py alone lists what it has")
    if not 0 < timeout <= 86_400:
        raise InputError(f"--timeout {timeout:g}: give a number of seconds above 0, and at most a day")
    if not 0 < memory <= 1e6:
        raise InputError(f"--memory {memory:g}: give a number of GiB above 0")
    ensure_json_writable(json_path)
    if against_arg and against is None:
        raise InputError("--against-arg is for the constructor of --against, which is not given")
    values, others = _arguments(arg or []), _arguments(against_arg or [], "--against-arg")
    limits: dict[str, Any] = {"timeout": timeout, "memory": int(memory * 2**30)}
    if inputs and (against is not None or check_all or target.endswith(FILE_SUFFIXES)):
        raise InputError("--args is for the call of one implementation: give FILE.py:NAME, without --against and --all")
    if against is not None:
        if check_all or format_ == "github" or target.endswith(FILE_SUFFIXES) or against.endswith(FILE_SUFFIXES):
            raise InputError("--against compares two implementations: FILE.py:NAME each, without --all or annotations")
        names, both = (target, against), (values, others)
        return guarded(target, lambda: _compare(names, both, limits, json_path, format_))
    if not (arg or check_all) and _is_exercise(target):
        return check_exercise(target, None, limits, json_path, format_)
    if target.endswith(FILE_SUFFIXES):
        if arg:
            raise InputError(f"--arg is for one implementation: give {target}:NAME")
        if not check_all:
            list_path = _json_path(json_path, format_)
            return guarded(target, lambda: show_candidates(target, list_path))
        return guarded(target, lambda: _check_all(target, limits, json_path, format_))
    if check_all:
        raise InputError(f"--all checks every attention of a file: give FILE.py, not {short_repr(target)}")
    return guarded(target, lambda: _check_one(target, values, inputs, limits, json_path, format_))


def guarded(target: str, run: Callable[[], int]) -> int:
    """The exit code of a run; an error of our own is told, and undetermined: by itself, Python would end with 1.

    Args:
        target: what is checked.
        run: lists or checks it.
    """
    try:
        return run()
    except (InputError, OSError):
        raise
    except Exception as error:
        from regard.check.sandbox.faults import fault_reason

        if (fault := fault_reason(error)) is None:
            raise
        print(visible(f"{target}: undetermined"), visible(f"- {fault}"), sep="\n\n")
        return UNDETERMINED


def _check_one(
    target: str, values: dict[str, Any], inputs: str | None, limits: Any, json_path: Path | None, format_: str
) -> int:
    import_torch()
    from regard.check import check_file

    with status("checking"):
        report = check_file(target, values, inputs, **limits)
    if not write_json(json.loads(report.to_json()), json_path):
        _print(report, target, format_)
    return report.exit_code


def _is_exercise(target: str) -> bool:
    """Whether a target is a file that `regard exercise` wrote."""
    if not target.endswith(".py"):
        return False
    from regard.exercises.sheet import exercise_in

    return exercise_in(target) is not None


def check_exercise(file: str, exercise: str | None, limits: Any, json_path: Path | None, format_: str = "text") -> int:
    """Check the file of an exercise, and print the report; the exit code.

    Args:
        file: its path.
        exercise: its number or name; by default the one of the file's marker.
        limits: timeout and memory, where they are given.
        json_path: see `write_json`.
        format_: one of `FORMATS`.
    """

    def run() -> int:
        import_torch()
        from regard.exercises.checks import check as check_file

        with status("checking"):
            report = check_file(file, exercise, **limits)
        if not write_json(json.loads(report.to_json()), json_path):
            _print(report.as_check_report() if format_ == "github" else report, file, format_)
        return report.exit_code

    return guarded(file, run)


def _compare(targets: tuple[str, str], args: Any, limits: Any, json_path: Path | None, format_: str) -> int:
    """Say whether two implementations compute the same."""
    import_torch()
    from regard.check import compare_files

    with status("comparing"):
        found = compare_files(*targets, *args, **limits)
    if not write_json(json.loads(found.to_json()), json_path):
        _print(found, targets[0], format_)
    return found.exit_code


def _json_path(json_path: Path | None, format_: str) -> Path | None:
    """Where a list goes: as text or as JSON, since it has nothing to annotate.

    Raises:
        InputError: annotations are wanted.
    """
    if format_ == "github":
        raise InputError("--format github is for reports: give FILE.py:NAME, or FILE.py --all")
    return Path("-") if format_ == "json" and json_path is None else json_path


def _check_all(target: str, limits: Any, json_path: Path | None, format_: str) -> int:
    """Check every attention of a file, and tell how many are what; the worst exit code."""
    from regard.check.source.candidates import candidates_of

    candidates = [each for each in candidates_of(target) if each.kind == "attention"]
    if not candidates:
        raise InputError(f"{target}: no attention was seen in it; give {target}:NAME to check one all the same")
    import_torch()
    from regard.check import Report, check_file

    quiet = format_ == "json" or json_path == Path("-")
    reports: list[Report] = []
    for number, each in enumerate(candidates, 1):
        one = f"{target}:{each.name}"
        with status(f"checking {each.name}, {number} of {len(candidates)}"):
            try:
                report = replace(check_file(one, {}, **limits), name=each.name)
            except InputError as error:
                report = Report(each.name, "undetermined", reasons=(str(error),))
        reports.append(report)
        if not quiet:
            _print(report, one, format_)
            print()
    facts = [json.loads(report.to_json()) for report in reports]
    if not write_json(facts, json_path):
        if format_ == "json":
            write_json(facts, Path("-"))
        else:
            print(_summary(reports))
    return max((report.exit_code for report in reports), key=BADNESS.index)


def _summary(reports: list[Any]) -> str:
    """How many reports have which verdict, and which of them are not right."""
    names: dict[str, list[str]] = {}
    for report in reports:
        names.setdefault(report.verdict, []).append(report.name)
    said = [
        f"{len(each)} {verdict}" + (f" ({', '.join(each)})" if verdict in VERDICT_STYLES else "")
        for verdict, each in names.items()
    ]
    return visible(f"{len(reports)} checked: {', '.join(said)}")


def _print(report: Any, target: str, format_: str) -> None:
    if format_ == "json":
        write_json(json.loads(report.to_json()), Path("-"))
    elif format_ == "github":
        print(visible(f"{report.name}: {report.verdict}"))
        for line in _annotations(report, target):
            print(line)
    else:
        _show(report)


def _annotations(report: Any, target: str) -> list[str]:
    """The annotations of a report, at the line where its implementation begins where they have none of their own."""
    from regard.check.report import CodeLocation
    from regard.check.report.annotations import github_annotations
    from regard.check.source.candidates import candidates_of

    path, _, name = target.rpartition(":")
    if not path.endswith(FILE_SUFFIXES):
        return github_annotations(report)
    begins = next((each for each in candidates_of(path) if each.name == name), None)
    if begins is None:
        return github_annotations(report, CodeLocation(path, 1, ""))
    return github_annotations(report, CodeLocation(path, begins.line, "", begins.cell))


def _arguments(pairs: list[str], option_name: str = "--arg") -> dict[str, Any]:
    """The values of NAME=VALUE; those of CONFIG.FIELD=VALUE in a dict for the config."""
    values: dict[str, Any] = {}
    for pair in pairs:
        path, sign, written = pair.partition("=")
        *configs, name = path.split(".")
        if not sign or not all(each.isidentifier() for each in (*configs, name)):
            raise InputError(
                f"{option_name} {short_repr(pair)}: it is NAME=VALUE, such as num_heads=4, or config.num_heads=4"
            )
        within: Any = values
        for each in configs:
            within = within.setdefault(each, {})
            if not isinstance(within, dict):
                raise InputError(
                    f"{option_name} {path}: {each} is given as {short_repr(str(within))}, which has no fields"
                )
        if name in within:
            raise InputError(f"{option_name} {path} is given twice")
        if written in ("true", "false"):  # as a text both would count as true
            raise InputError(f"{option_name} {short_repr(pair)}: Python writes it {path}={written.capitalize()}")
        try:
            within[name] = _value(written)
        except (ValueError, SyntaxError, TypeError, ArithmeticError, MemoryError, RecursionError):
            within[name] = written
    return values


def _value(written: str) -> Any:
    """What Python writes so: a literal, or numbers that are computed with, as 64 ** -0.5 and 4 * 512."""
    node = ast.parse(written, mode="eval").body
    return _number(node) if isinstance(node, ast.BinOp) else ast.literal_eval(node)


def _number(node: ast.expr) -> int | float:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > LARGEST_EXPONENT:
            raise ValueError(f"{left} ** {right} is too large")
        return ARITHMETIC[type(node.op)](left, right)  # type: ignore[no-any-return]
    value = ast.literal_eval(node)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return value


def _show(report: Any) -> None:
    """Print a report, with the verdict and what is wrong in color; on a terminal, lines are folded under their text."""
    from rich.text import Text

    from regard.views.terminal.console import console_for

    headings = {f"{cause.id} (in {cause.step}):" for cause in getattr(report, "causes", ())}
    console = console_for(sys.stdout)
    for number, line in enumerate(str(report).split("\n")):
        line = visible(line)
        shown = Text("\n".join(_folded(line, console.width)) if console.is_terminal else line)
        if number == 0:
            shown.stylize(VERDICT_STYLES.get(report.verdict, OK_STYLE), len(shown) - len(report.verdict))
        if mark := STEP_MARK.match(line):
            shown.stylize(MARK_STYLES[mark[1]], 0, mark.end(1))
        for heading in headings:
            if line.startswith(heading):
                shown.stylize("bold", 0, len(heading))
        console.print(shown, soft_wrap=not console.is_terminal)  # lines of a pipe are for programs


def _folded(line: str, width: int) -> list[str]:
    """A line in several, each but the first under the beginning of its text."""
    step = STEP_TEXT.match(line)
    indent = step.end() if step else len(line) - len(line.lstrip(" -"))
    indent += 2 if line.startswith("  ") and not step else 0
    indent = indent if indent < width // 2 else 0
    folded = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return folded or [line]
