"""What importing regard gives and costs. The order of its packages is kept by import-linter: `make lint`."""

import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent

OPTIONAL = [
    "jaxtyping",
    "beartype",
    "transformers",
    "sentence_transformers",
    "hypothesis",
    "pytest",
    "matplotlib",
    "pyarrow",
]


def test_only_display_calls_the_views_by_name():
    """`make lint` keeps the order of imports, but cannot read a name in a string."""
    by_name = [path for path in SOURCE.rglob("*.py") if 'import_module("regard.' in path.read_text()]
    assert sorted(path.relative_to(SOURCE).as_posix() for path in by_name) == ["__init__.py", "lens/display.py"]


def test_every_public_name_is_there_and_no_other():
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    assert set(regard.__all__) <= set(dir(regard))
    with pytest.raises(
        AttributeError, match="module 'regard' has no attribute 'attention_please'; it has AttentionMap, Beam"
    ):
        _ = regard.attention_please


def test_every_module_has_a_docstring_and_the_names_it_lists():
    for path in SOURCE.rglob("*.py"):
        name = ".".join(("regard", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        if name == "regard.__main__":
            continue
        module = importlib.import_module(name)
        assert module.__doc__, f"{name} has no docstring"
        for name in getattr(module, "__all__", []):
            assert hasattr(module, name)


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_no_optional_package_is_read():
    """Not even where they are installed: here importing one fails, and everything still works."""
    output = python(
        f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # None: as if it were not installed
import regard
for name in regard.__all__:
    getattr(regard, name)
import regard.cli, regard.views.terminal.explanation
e = regard.explain("the river bank", "bank")
import typing
assert typing.get_type_hints(regard.attend)["q"].__name__ == "Tensor"
print(e)
"""
    )
    assert output.startswith("'bank' gives 'river'")


def test_importing_regard_loads_torch_only_when_it_is_used():
    assert python("import sys, regard; print('torch' in sys.modules, 'typer' in sys.modules)") == "False False\n"


def test_help_does_not_wait_for_torch():
    help_ = "import sys, regard.cli.app; sys.argv = ['regard', 'explain', '--help']; regard.cli.app._run()"
    assert python(f"{help_}; print('torch' in sys.modules)").endswith("False\n")


def test_importing_takes_no_longer_than_torch_and_15_percent():
    """Not the lazy door alone: the whole mechanism, imported."""
    codes = {"torch": "import torch", "regard": "import regard; regard.attend, regard.MultiHeadAttention"}
    best = dict.fromkeys(codes, float("inf"))
    # The shortest of several is the least disturbed; beside other tests it takes more of them to meet a quiet moment.
    for done in range(16):
        for name, code in codes.items():
            start = time.perf_counter()
            python(code)
            best[name] = min(best[name], time.perf_counter() - start)
        ratio = best["regard"] / best["torch"]
        if done >= 3 and ratio < 1.15:
            break
    print(f"import regard takes {ratio:.3f} of import torch")
    assert ratio < 1.15
