"""The command `regard exercise`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import files
from regard.cli.app import app
from regard.cli.check import check_exercise
from regard.cli.check_lists import print_table
from regard.cli.options import ensure_json_writable, import_torch, json_option, option, status, write_json
from regard.errors import InputError, short_repr
from regard.escape import visible
from regard.files import ensure_writable

COLUMNS = ("who", "exercise", "verdict", "step", "cause", "line")
"""Of the table of a class; the CSV has the message and the file as well."""


@app.command(
    help="Exercises that answer: from one dot product to a decoder with a cache.\n\n"
    "Without arguments it lists the exercises, the pages of the course they belong to, and which of their files lie in "
    "the current folder. With the number or the name of an exercise it writes the exercise's file, with the statement, "
    "the shapes, a stub to fill in, and the numbers of the course; a file that is there is never overwritten.\n\n"
    "--check says which step of your code is wrong, and why, with your own line, and on the course's numbers what came "
    "out beside what should have come out. regard check FILE does the same for such a file. --hint gives the first of "
    "three hints, --hint 2 and --hint 3 the others; none of them is the solution.\n\n"
    "--class reads a folder of submissions, FOLDER/STUDENT/05_projections.py or FOLDER/05_STUDENT.py, into a table: "
    "who, "
    "which exercise, which step, which cause. One that crashes, never ends or cannot be imported is a row like the "
    "others.\n\n"
    "Files run in a process of their own, with a limit of time and memory. This is no sandbox: it guards against "
    "accidents, not against malice. Check only code that you would run.\n\n"
    "Exit codes of --check: 0 right; 1 wrong; 3 undetermined or not filled in yet, also where the code exits, "
    "crashes or "
    "takes too long; 2 for what cannot be checked at all, such as a file whose import fails. --class ends with 0 where "
    "the table was made.",
    epilog="Examples:\n\n"
    "regard exercise\n\n"
    "regard exercise 05\n\n"
    "regard exercise 05 --check\n\n"
    "regard exercise projections --check mine.py\n\n"
    "regard exercise 05 --hint 2\n\n"
    "regard exercise --class results/ --csv table.csv",
)
def exercise(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Of an exercise: 05, 5 or projections.", show_default=False),
    ] = None,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="With --check, the file; by default the one that the exercise was written to, in the current folder. "
            "With --hint, which one: 1, 2 or 3.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the file.")] = False,
    hint: Annotated[bool, typer.Option("--hint", help="Give a hint, by default the first of three.")] = False,
    out: Annotated[Path | None, option("PATH", "Write to this file, or into this folder.")] = None,
    class_: Annotated[Path | None, option("FOLDER", "Check a folder of submissions.", "--class")] = None,
    csv_path: Annotated[
        Path | None, option("PATH", "With --class, write the table as CSV; - prints only the CSV.", "--csv")
    ] = None,
    timeout: Annotated[
        float | None,
        option("SECONDS", "Stop the code after this time; 60 by default, and 20 for each submission of --class."),
    ] = None,
    memory: Annotated[float, typer.Option(metavar="GIB", help="The memory that the code may allocate.")] = 4.0,
    json_path: Annotated[Path | None, json_option("the list, the report or the table")] = None,
) -> int:
    """Exercises that answer: from one dot product to a decoder with a cache."""
    limits = _limits(timeout, memory)
    if csv_path is not None and class_ is None:
        raise InputError("--csv is for the table of --class, which is not given")
    ensure_json_writable(json_path)
    if class_ is not None:
        if name is not None or check or hint or out is not None:
            raise InputError("--class checks a folder of submissions: leave out NAME, --check, --hint and --out")
        return _check_class(class_, limits, csv_path, json_path)
    if name is None:
        if check or hint or out is not None:
            raise InputError("name the exercise, as in regard exercise 05; regard exercise lists them")
        _list(json_path)
        return 0
    if check + hint + (out is not None) > 1:
        raise InputError("--check, --hint and --out are three things to do: give one of them")
    if hint:
        return _hint(name, file)
    if check:
        return check_exercise(_file_of(name, file), name, limits, json_path)
    if file is not None:
        raise InputError(f"{short_repr(file)}: a file is checked with --check, and written with --out")
    return _write(name, out)


def _limits(timeout: float | None, memory: float) -> dict[str, Any]:
    if timeout is not None and not 0 < timeout <= 86_400:
        raise InputError(f"--timeout {timeout:g}: give a number of seconds above 0, and at most a day")
    if not 0 < memory <= 1e6:
        raise InputError(f"--memory {memory:g}: give a number of GiB above 0")
    limits: dict[str, Any] = {"memory": int(memory * 2**30)}
    return limits if timeout is None else {**limits, "timeout": timeout}


def _list(json_path: Path | None) -> None:
    """Print every exercise; nothing is imported but texts."""
    from regard.exercises.catalog import EXERCISES
    from regard.exercises.exercise import PAGES
    from regard.exercises.sheet import is_stub

    rows, facts = [], []
    for each in EXERCISES:
        is_here = Path(each.file_name).is_file()
        here = (
            "" if not is_here else f"{each.file_name} (to fill in)" if is_stub(each.file_name, each) else each.file_name
        )
        rows.append((each.code, each.title, f"{each.page} {PAGES[each.page]}", here))
        facts.append(
            {
                "number": each.number,
                "slug": each.slug,
                "title": each.title,
                "page": each.page,
                "name": each.name,
                "file": each.file_name if is_here else None,
            }
        )
    if write_json(facts, json_path):
        return
    print_table(("exercise", "title", "page of the course", "file here"), rows)
    print("\nregard exercise 05 writes 05_projections.py; regard exercise 05 --check checks it.")


def _hint(name: str, step: str | None) -> int:
    from regard.exercises.catalog import find
    from regard.exercises.writing import hint

    exercise_ = find(name)
    if step is not None and not (step.isascii() and step.isdigit()):
        raise InputError(f"--hint {step}: it is 1, 2 or 3")
    number = 1 if step is None else int(step[:9])
    text = hint(name, number)
    print(f"Hint {number} of {len(exercise_.hints)}, exercise {exercise_.code}:")
    print(text)
    if number < len(exercise_.hints):
        print(f"\nThe next one tells more: regard exercise {exercise_.number:02d} --hint {number + 1}")
    return 0


def _write(name: str, out: Path | None) -> int:
    from regard.exercises.catalog import find
    from regard.exercises.writing import sheet_path, statement, write

    exercise_ = find(name)
    sheet_path(name, out)  # a file that is there is told before PyTorch is imported
    import_torch()
    with status("writing"):
        path = write(name, out)
    print(statement(name).split("\nCheck it:")[0])
    where = "" if out is None else f" {path}"
    print(visible(f"Written: {path}"))
    print("1. Fill in the stub; python " + visible(str(path)) + " prints what it gives for the numbers of the course.")
    print(visible(f"2. Check it: regard exercise {exercise_.number:02d} --check{where}"))
    print(f"3. A hint, if you need one: regard exercise {exercise_.number:02d} --hint")
    return 0


def _file_of(name: str, file: str | None) -> str:
    from regard.exercises.catalog import find

    exercise_ = find(name)
    if file is None and not Path(exercise_.file_name).is_file():
        raise InputError(
            f"{exercise_.file_name} is not here: regard exercise {exercise_.number:02d} writes it; or name your "
            f"file, as "
            f"in regard exercise {exercise_.number:02d} --check FILE"
        )
    return file or exercise_.file_name


def _check_class(folder: Path, limits: dict[str, Any], csv_path: Path | None, json_path: Path | None) -> int:
    if csv_path == Path("-") and json_path == Path("-"):
        raise InputError("--csv - and --json - both print: give one of them a file")
    if csv_path is not None and csv_path != Path("-"):
        ensure_writable(csv_path)
    from regard.exercises.class_table import check_class, submissions

    several = submissions(folder)  # a folder without any is told before PyTorch is imported
    import_torch()
    from regard.progress_bar import progress_bar

    with progress_bar(f"checking {len(several)} submission{'s' * (len(several) != 1)}", len(several)) as on_progress:
        table = check_class(folder, on_progress=lambda done, _total: on_progress(done), **limits)
    if csv_path is not None and csv_path != Path("-"):
        files.write_text(table.to_csv(), csv_path)
    if write_json(table.to_dict(), json_path):
        return 0
    if csv_path == Path("-"):
        sys.stdout.write(table.to_csv())
        return 0
    print_table(
        COLUMNS,
        [
            (row.student, row.exercise, row.verdict, row.step, row.cause or _shortened(row.message), row.line)
            for row in table.rows
        ],
    )
    print(f"\n{table}")
    return 0


def _shortened(message: str) -> str:
    return message if len(message) <= 80 else f"{message[:77]}..."
