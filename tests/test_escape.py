import pytest

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
