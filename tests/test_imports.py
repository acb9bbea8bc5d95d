"""What importing regard gives and costs. The order of its packages is kept by import-linter: `make lint`."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
OPTIONAL = ["jaxtyping", "beartype", "transformers", "sentence_transformers", "hypothesis", "matplotlib", "pyarrow"]


def test_only_display_calls_the_views_by_name():
    """`make lint` keeps the order of imports, but cannot read a name in a string."""
    by_name = [path for path in SOURCE.rglob("*.py") if 'import_module("regard.' in path.read_text()]
    assert sorted(path.relative_to(SOURCE).as_posix() for path in by_name) == ["__init__.py", "lens/display.py"]


def test_every_public_name_is_there_and_no_other():
    assert set(regard.__all__) < set(dir(regard))
    assert all(getattr(regard, name) is not None for name in dir(regard))
    assert not [name for name in dir(regard) if name.startswith("_") and name != "__version__"]
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(regard))
    assert regard.transformer.Encoder.__module__.startswith("regard.transformer")
    has = "module 'regard' has no attribute 'attention_please'; it has AttentionMap, Beam"
    with pytest.raises(AttributeError, match=has):
        _ = regard.attention_please


@pytest.mark.parametrize("name", ["check", "course", "cache"])
def test_dir_of_what_regard_has_shows_its_public_names(name):
    assert dir(getattr(regard, name)) == sorted(getattr(regard, name).__all__)


def test_the_package_check_has_the_signature_of_its_function():
    assert inspect.signature(regard.check) == inspect.signature(regard.check.check)


def test_help_names_every_default_and_argument():
    """No default is told by its place in memory; each function documents its arguments."""
    functions = [value for name in regard.__all__ if inspect.isfunction(value := getattr(regard, name))]
    assert len(functions) > 8
    for function in functions:
        assert " at 0x" not in str(inspect.signature(function))
        assert "Args:" in (function.__doc__ or ""), function


@pytest.fixture(scope="module")
def process():
    """What a new Python has imported after each step; no optional package can be imported, though they are there."""
    code = f"""
import contextlib, inspect, io, json, sys, typing
sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # None: as if it were not installed
steps = {{}}
def note(step):
    steps[step] = [name for name, module in sys.modules.items() if module is not None]
import regard
note("regard")
import regard.cli.app
sys.argv = ["regard", "explain", "--help"]
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
    regard.cli.app.main()
note("help")
import torch
note("torch")
regard.attend, regard.MultiHeadAttention
note("mechanism")
for name in regard.__all__:
    getattr(regard, name)
import regard.cli, regard.views.terminal.explanation
steps["sentence"] = str(regard.explain("the river bank", "bank"))
steps["signature"] = str(inspect.signature(regard.attend))
steps["hint"] = typing.get_type_hints(regard.attend)["q"].__name__
print(json.dumps(steps))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_torch_is_imported_only_when_it_is_used(process):
    assert "torch" not in process["regard"] + process["help"]
    assert "typer" not in process["regard"]


def test_the_mechanism_imports_little_besides_torch(process):
    new = set(process["mechanism"]) - set(process["torch"])
    of_regard = {name for name in new if name.startswith("regard.")}
    assert {name.split(".")[1] for name in of_regard} == {"_shapes", "attention", "notebook"}
    assert len(new - of_regard) <= 4, "each module costs time, most of all one of another library"


def test_a_signature_is_read_without_quotes_in_quotes(process):
    """The shapes are in the docstring: ``(..., heads, queries, d_key)``."""
    assert process["signature"].startswith("(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: regard.")
    assert "'" not in process["signature"]


def test_everything_works_without_the_optional_packages(process):
    assert process["sentence"].startswith("'bank' gives 'river'")
    assert process["hint"] == "Tensor"
