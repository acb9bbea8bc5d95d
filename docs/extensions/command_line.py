"""The reference of the command line, written from the commands themselves when the site is built."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from sphinx.application import Sphinx

from regard.__main__ import main  # noqa: F401  registers the commands
from regard.cli.app import app as application

PLACEHOLDER = "<!-- commands -->"


def write_commands(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put every command in place of the page's placeholder."""
    if PLACEHOLDER in source[0]:
        source[0] = source[0].replace(PLACEHOLDER, "\n".join(command_pages()))


def command_pages() -> Iterator[str]:
    """MyST markdown of each command: its usage, what it does, its arguments and options, and its examples."""
    group: Any = typer.main.get_command(application)
    for name in sorted(group.commands):
        command = group.commands[name]
        context = command.make_context(f"regard {name}", [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"## {name}\n\n```console\n$ regard {name} {usage}\n```\n"
        yield _text(command.help or "") + "\n"
        visible = [each for each in command.params if not getattr(each, "hidden", False)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            chosen = [each for each in visible if each.param_type_name == kind and each.name != "help"]
            if chosen:
                yield f":::{{dropdown}} {title} of `regard {name}`\n:open:\n"
                for parameter in chosen:
                    yield f"{_names(parameter)}\n: {_text(parameter.help or '')}{_default(parameter)}\n"
                yield ":::\n"
        yield from _examples(command.epilog or "")


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    metavar = "" if parameter.is_flag else f" {parameter.metavar or parameter.type.name.upper()}"
    return ", ".join(f"`{each}{metavar}`" for each in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    default = parameter.default
    if default in (None, False, [], ()) or callable(default) or parameter.show_default is False:
        return ""
    return f" Default: `{default}`."


def _examples(epilog: str) -> Iterator[str]:
    """Each example as a command that can be copied, with the words before it."""
    for paragraph in epilog.split("\n\n"):
        words, command = re.fullmatch(r"(.*?)((?:regard |cat )\S.*)?", paragraph, re.DOTALL).groups()
        yield f"{_text(words.strip())}\n"
        if command:
            yield f"```console\n$ {command}\n```\n"


def _text(help_text: str) -> str:
    """Text of a command as markdown: what markdown would take for markup stays text."""
    escaped = help_text.replace("\\", "\\\\")
    for character in "*_<[{$|`":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", write_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
