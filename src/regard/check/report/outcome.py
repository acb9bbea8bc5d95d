"""What every outcome of a check has: a verdict that an exit code stands for, and a way to JSON and back."""

from __future__ import annotations

from html import escape
from json import loads
from typing import Any, ClassVar, TypeVar

from regard.check.sandbox.schema import from_builtins, to_builtins, to_json
from regard.errors import InputError
from regard.notebook import preformatted_html

__all__ = ["Outcome"]

# Not typing.Self: where a test run enforces the types, each method is wrapped by itself, outside its class.
OutcomeRecord = TypeVar("OutcomeRecord", bound="Outcome")

EXIT_CODES = {"wrong": 1, "different": 1, "undetermined": 3, "not filled in yet": 3}
"""Exit codes of the command line; any other verdict is 0."""


class Outcome:
    """The base of records with a field `verdict`."""

    verdict: str
    noun: ClassVar[str]
    """What it is, in the message about a text that is none."""

    @property
    def ok(self) -> bool:
        """Whether the verdict is good: right in any way, or the same."""
        return self.verdict not in EXIT_CODES

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if `ok`, 1 for "wrong" or "different", 3 for what has no verdict."""
        return EXIT_CODES.get(self.verdict, 0)

    def __bool__(self) -> bool:
        return self.ok

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """In a notebook, a cell that ends with a report shows it whole."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """The report for notebooks, its verdict in bold."""
        verdict, *lines = str(self).split("\n")
        return preformatted_html("\n".join([f"<b>{escape(verdict)}</b>", *map(escape, lines)]), wrap=True)

    def to_json(self) -> str:
        """The whole record as JSON; infinite and undefined numbers are the texts "inf", "-inf" and "nan"."""
        return to_json({**to_builtins(self), "ok": self.ok}, indent=1)

    @classmethod
    def from_json(cls: type[OutcomeRecord], text: str) -> OutcomeRecord:
        """A record that `to_json` wrote.

        Raises:
            InputError: it is no such record; the message names what is wrong.
        """
        try:
            facts = loads(text)
            if isinstance(facts, dict):
                facts.pop("ok", None)
            return from_builtins(cls, facts)
        except (ValueError, RecursionError) as error:
            raise InputError(f"this is no {cls.noun} of regard check: {error}") from error
