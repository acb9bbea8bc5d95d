"""What FILE.py:NAME and module.path:NAME name: files by themselves, in packages and beside others; dotted names."""

import sys

import pytest

from regard.check.source.importer import load
from regard.errors import InputError
from user_modules import forget_modules

ATTENTION = "def attention(q, k, v):\n    return v\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write files into a folder, which is the current one; what they import is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write(files):
        for name, source in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(source)
        return tmp_path

    yield write
    forget_modules(tmp_path)


def loaded(target):
    return load(target, [])


@pytest.mark.parametrize(
    ("files", "target"),
    [
        ({"mine.py": ATTENTION}, "mine.py:attention"),
        ({"a/mine.py": "from helper import attention", "a/helper.py": ATTENTION}, "a/mine.py:attention"),
        (
            {
                "pk/__init__.py": "",
                "pk/sub/__init__.py": "",
                "pk/sub/a.py": "from ..b import attention",
                "pk/b.py": ATTENTION,
            },
            "pk/sub/a.py:attention",
        ),
        (
            {"pk/__init__.py": "", "pk/a.py": "from pk.b import attention", "pk/b.py": ATTENTION},
            "pk/a.py:attention",
        ),
        ({"ns/a.py": "from .b import attention", "ns/b.py": ATTENTION}, "ns/a.py:attention"),
        ({"ns/a/m.py": "from ..b.n import attention", "ns/b/n.py": ATTENTION}, "ns/a/m.py:attention"),
        (
            {"ns/a/m.py": "from .n import attention", "ns/a/n.py": "from ..b import attention", "ns/b.py": ATTENTION},
            "ns/a/m.py:attention",
        ),
        ({"pk/__init__.py": "", "pk/a.py": "from b import attention", "pk/b.py": ATTENTION}, "pk/a.py:attention"),
        ({"pk/__init__.py": "import no_such", "pk/a.py": ATTENTION}, "pk/a.py:attention"),
        (
            {"json/__init__.py": "", "json/a.py": "from .b import attention", "json/b.py": ATTENTION},
            "json/a.py:attention",
        ),
        ({"a/b/m.py": "from aside.n import attention", "aside/n.py": ATTENTION}, "a/b/m.py:attention"),
        (
            {"a/m.py": "import one, two\nattention = two.attention", "one.py": "", "two.py": ATTENTION},
            "a/m.py:attention",
        ),
        ({"pk/__init__.py": ATTENTION}, "pk/__init__.py:attention"),
        ({"pk/__init__.py": "", "pk/a.py": ATTENTION}, "pk.a:attention"),
        (
            {"late.py": "def attention(q, k, v):\n    from helper import n\n    return n", "helper.py": "n = 1"},
            "late.py:attention",
        ),
    ],
    ids=[
        "a file",
        "a sibling by its plain name",
        "relative imports in a package",
        "the package by its own name",
        "relative imports without __init__.py",
        "up two folders",
        "a sibling that leads up further",
        "a sibling by its plain name in a package",
        "a package that cannot be imported and is not needed",
        "a package with the name of another module",
        "a folder beside one that is above it",
        "two files above it",
        "an __init__.py",
        "a module from the current folder",
        "an import when it is called",
    ],
)
def test_it_is_found_and_can_be_called(folder, files, target):
    folder(files)
    assert loaded(target)(1, 2, 3) in (3, 1)


def test_a_package_of_another_name_stays_what_it_was(folder):
    import json

    folder({"json/__init__.py": "", "json/a.py": "from .b import attention", "json/b.py": ATTENTION})
    loaded("json/a.py:attention")
    assert sys.modules["json"] is json


def test_a_module_above_a_file_is_meant_and_not_one_of_its_name_elsewhere(folder, monkeypatch):
    files = {"a/m.py": "from aside.n import attention", "aside/__init__.py": "", "aside/n.py": ATTENTION}
    root = folder({**files, "installed/aside/__init__.py": ""})
    monkeypatch.syspath_prepend(root / "installed")
    assert loaded("a/m.py:attention")(1, 2, 3) == 3


NESTED = """
class Outer:
    class Inner:
        def forward(self, q, k, v):
            return v

        @staticmethod
        def attend(q, k, v):
            return v

        def __call__(self, q, k, v):
            return v

made = Outer.Inner()
count = 3
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Outer.Inner", "type"), ("Outer.Inner.attend", "function"), ("made", "Inner"), ("made.forward", "method")],
)
def test_names_may_be_dotted_or_given_to_an_object(folder, name, kind):
    folder({"mine.py": NESTED})
    assert type(loaded(f"mine.py:{name}")).__name__ == kind


def test_of_a_package_with_many_names_those_like_the_wanted_one_are_listed():
    with pytest.raises(InputError, match=r"regard has no MultiheadAttention; it has MultiHeadAttention, .*others$"):
        loaded("regard:MultiheadAttention")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Outer.Other", "mine.py has no Outer.Other; it has Outer"),
        ("Outer.Inner.forward", "mine.py:Outer.Inner.forward is a method: give its class, mine.py:Outer.Inner"),
        ("count", "mine.py:count is a int; check takes a function, a class or a module"),
        ("made.forward.no", "mine.py has no made.forward.no"),
    ],
)
def test_what_cannot_be_checked_is_told(folder, name, says):
    folder({"mine.py": NESTED})
    with pytest.raises(InputError) as caught:
        loaded(f"mine.py:{name}")
    assert says in str(caught.value)


def test_a_package_that_is_needed_and_fails_is_told_with_its_line(folder):
    root = folder({"pk/__init__.py": "\nimport no_such", "pk/a.py": "from .b import f"})
    with pytest.raises(InputError) as caught:
        loaded("pk/a.py:attention")
    says = "pk/a.py: importing it raises ModuleNotFoundError: No module named 'no_such', at "
    assert str(caught.value) == f"{says}{root / 'pk/__init__.py'}:2"


def test_a_file_that_fails_is_told_with_its_line_once(folder):
    folder({"mine.py": "import math\n\nmath.sqrt(-1)\n"})
    with pytest.raises(InputError, match=r"^mine.py:3: importing it raises ValueError: [^:]*$"):
        loaded("mine.py:attention")


def test_a_module_of_a_package_that_cannot_be_imported_says_what_it_lacks(folder):
    folder({"pk/__init__.py": "", "pk/inner/__init__.py": "", "pk/inner/needy.py": f"import no_such_lib\n{ATTENTION}"})
    with pytest.raises(InputError, match=r"needy.py:1: importing it raises ModuleNotFoundError: .*no_such_lib"):
        loaded("pk.inner.needy:attention")
