"""Texts for messages: visible, short, and of what is not installed."""

import os
import re

import pytest

from regard.errors import InputError, import_optional, short_repr
from regard.escape import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\\tb\\nc"),
        ("\x9b31m", "\\x9b31m"),
        ("שלום 🙂 e\u0301 👩\u200d👧", "שלום 🙂 e\u0301 👩\u200d👧"),
        ("\u2028\udce9", "\\u2028\\udce9"),
        ("zero\u200bwidth\ufeff\u00ad", "zero\\u200bwidth\\ufeff\\xad"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(("length", "shown"), [(60, repr("a" * 60)), (61, f"{'a' * 60!r}... (61 characters)")])
def test_of_a_long_text_a_message_has_the_beginning(length, shown):
    assert short_repr("a" * length) == shown


def test_a_library_that_is_not_installed_is_named_with_the_extra_that_has_it():
    with pytest.raises(
        InputError, match=re.escape("needs no_such, which is not installed: pip install '.[plot]' in a clone of regard")
    ):
        import_optional("no_such.part", "plot")
    assert import_optional("os.path", "plot") is os.path
