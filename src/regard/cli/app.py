"""The application: runs a command and turns its errors into messages and exit codes."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import typer

import regard
from regard.errors import InputError
from regard.escape import visible

app = typer.Typer(
    help="Attention for transformers that you can run, see and check.",
    epilog="Completion of commands, options and values in your shell: regard --install-completion",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
"""A quotation; the quotation mark of "model's" begins none."""

LIBRARY_COMMANDS = ("embed", "generate", "live", "train", "translate")
"""Commands whose options are the arguments of a function of the library, which has its own names for them."""

# The base class of Typer's usage errors is in another module in each version of Typer.
USAGE_ERROR: type[Any] = typer.BadParameter.__bases__[0]


def main() -> None:
    """Run the command line and leave with its exit code: 0, 2 for input that cannot be used, 130 for Ctrl-C."""
    # Output to a closed stream is discarded, and a closed standard input is empty; a character that the encoding lacks
    # is written as an escape.
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code, message = _run()
    for stream, text in ((sys.stderr, message), (sys.stdout, "")):
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            # The reader of a pipe may have closed it. Nothing more can be written, not even when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not message and not isinstance(error, BrokenPipeError):
                code = 2
                with suppress(OSError):
                    print(f"regard: cannot write the output: {error.strerror}", file=sys.stderr)
    sys.exit(code)


@cache
def _command() -> Any:
    """The application's commands and options, read from its functions once."""
    command: Any = typer.main.get_command(app)
    for option in command.params:
        if option.name in ("install_completion", "show_completion"):
            option.hidden = True  # the help of the application has a line on them
    for each in (command, *getattr(command, "commands", {}).values()):
        for holder in (each, *each.params):
            if getattr(holder, "help", None):
                # rich takes "[n]" for the name of a style, and leaves it out.
                holder.help = re.sub(r"(\\*)(\[[a-z#/@][^\[]*?\])", r"\1\1\\\2", holder.help)
    return command


def _run() -> tuple[int, str]:
    """The exit code of the command, and the message for standard error."""
    try:
        code = _command()(standalone_mode=False)
    except InputError as error:
        return 2, f"regard: {visible(_in_options(str(error)))}\n"
    except USAGE_ERROR as error:
        message = visible(error.format_message()).rstrip(".?")  # empty if the help was shown
        message = message.replace(": Value error, ", ": ")  # which a version of Typer puts before its own words
        if message.startswith("Got unexpected extra argument"):
            message += ": a text of several words stands in quotes"
        command = f" {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else ""
        return 2, f"regard: {message}. See regard{command} --help\n" if message else ""
    except (typer.Abort, KeyboardInterrupt):
        return 130, ""
    except (BrokenPipeError, SystemExit):  # rich turns BrokenPipeError into SystemExit
        return 0, ""
    except OSError as error:
        return 2, f"regard: {error.filename or 'cannot write the output'}: {error.strerror or error}\n"
    return code if isinstance(code, int) else 0, ""


def _in_options(message: str) -> str:
    """A message of the library with the options of the command in place of Python's arguments.

    ``max_steps=0`` is ``--max-steps 0``, ``truncate=True`` is ``--truncate``. What is quoted are the user's own words.
    """
    name = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    for parameter in _command().commands[name].params if name in LIBRARY_COMMANDS else ():
        option = next((each for each in parameter.opts if each.startswith("--")), None)
        if option is None:
            continue
        is_flag = getattr(parameter, "is_flag", False)
        given = r"=True\b" if is_flag else r"=(?=\S)"
        message = _replaced(rf"(?<![\w./-]){parameter.name}{given}", option if is_flag else f"{option} ", message)
        if "_" in parameter.name:
            message = _replaced(rf"(?<![\w./=-]){parameter.name}\b(?![\w./=])", option, message)
    return message


def _replaced(pattern: str, text: str, message: str) -> str:
    """A message with a text in place of what a pattern matches outside quotation marks."""
    return re.sub(rf"{QUOTED}|{pattern}", lambda match: match[0] if match[0][0] in "'\"" else text, message)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Attention for transformers that you can run, see and check."""
