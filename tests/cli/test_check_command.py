"""`regard check`: what the command reads, refuses and prints. Whether its verdicts are right is for tests/check/."""

import json
import re

import pytest

from regard.check.causes import MISTAKES
from regard.check.report import Report
from terminals import on_a_terminal, refusal

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

RIGHT = """
from regard import MultiHeadAttention
from torch.nn.functional import scaled_dot_product_attention as attention

COUNT = 3

class Attention(MultiHeadAttention):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)

class Told:
    def __init__(self, **values):
        raise TypeError(values)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with some files."""
    files = {
        "right.py": RIGHT,
        "scaleless.py": "def attention(q, k, v):\n    return (q @ k.transpose(-2, -1)).softmax(-1) @ v\n",
        "broken.py": "import math\n\ndef attention(q, k, v:\n    return v\n",
        "needy.py": "import no_such_library\n",
    }
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_has_every_cause_in_a_row(command, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    code, out, err = command("check", "--list")
    assert (code, err) == (0, "")
    for cause, row in zip(MISTAKES.values(), out.splitlines()[2:], strict=True):
        assert row.split()[:2] == [cause.id, cause.step]
        assert cause.example in row


def test_the_list_fits_a_terminal():
    code, shown = on_a_terminal("check", "--list")
    assert (code, b"\x1b[1m" in shown, b"mask-inverted" in shown) == (0, True, True)


def test_the_list_as_json(command):
    listed, names = json.loads(command("check", "--list", "--json", "-")[1]), ("id", "step", "example", "message")
    assert listed == [{name: getattr(cause, name) for name in names} for cause in MISTAKES.values()]


def test_arguments_are_read_as_python_writes_them_and_else_as_texts(command, here):
    values = {"n": 4, "p": 0.1, "bias": False, "d": None, "shape": (2, 3), "name": "rope", "path": "a=b", "none": ""}
    written = [f"--arg={name}={value}" for name, value in values.items()]
    said = refusal(command, "check", "right.py:Told", *written, "--arg=text='4'", "--arg=deep=" + "(" * 10**5)
    assert str({**values, "text": "4", "deep": "(" * 10**5}) in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give FILE.py:NAME or module.path:NAME, or --list"),
        (["right.py:attention", "--timeout", "0"], "--timeout 0: give a number of seconds above 0"),
        (["right.py:attention", "--timeout", "nan"], "--timeout nan"),
        (["right.py:attention", "--timeout", "86401"], "--timeout 86401: give a number of seconds above 0, and"),
        (["right.py:attention", "--timeout", "soon"], "Invalid value for '--timeout'"),
        (["right.py:attention", "--memory", "0"], "--memory 0: give a number of GiB above 0"),
        (["right.py:attention", "--memory", "1000001"], "--memory 1e+06: give a number of GiB above 0"),
        (["right.py:attention", "--json", "no/such/folder/x.json"], "cannot write 'no/such/folder/x.json'"),
        (["--list", "--json", "no/such/folder/x.json"], "cannot write 'no/such/folder/x.json'"),
        (["right.py:attention", "--arg", "heads"], "--arg 'heads': it is NAME=VALUE, such as num_heads=4"),
        (["right.py:attention", "--arg", "=4"], "--arg '=4': it is NAME=VALUE"),
        (["right.py:attention", "--arg", "num-heads=4"], "--arg 'num-heads=4': it is NAME=VALUE"),
        (["right.py:attention", "--arg", "n=4", "--arg", "n=5"], "--arg n is given twice"),
        (["right.py:attention", "--arg", "bias=false"], "--arg 'bias=false': Python writes it bias=False"),
        (["--list", "a.py:f"], "--list checks nothing"),
        (["--list", "--arg", "x=1"], "--list checks nothing"),
        (["right.py:attention", "right.py:Attention"], "unexpected extra argument"),
        (["missing.py:attention"], "missing.py: no such file"),
        (["right.py"], "give FILE.py:NAME"),
        (["right.py:Atention"], "right.py has no Atention; it has Attention, Told"),
        (["right.py:COUNT"], "right.py:COUNT is a int"),
        (["broken.py:attention"], "broken.py:3: not Python: '(' was never closed"),
        (
            ["needy.py:attention"],
            "needy.py:1: importing it raises ModuleNotFoundError: No module named 'no_such_library'",
        ),
        (["no_such_module.of_mine:attention"], "no_such_module.of_mine: no such file, and no module of that name"),
        (["no module:attention"], "no module: no such file, and no module of that name"),
        (["torch.no_such_thing:attention"], "torch.no_such_thing: no such file, and no module of that name"),
        (["right.py:Attention", "--arg", "n_heads=4"], "Attention takes no n_heads; it takes d_model, num_heads"),
    ],
)
def test_what_cannot_be_checked_is_one_line(command, here, arguments, said):
    before = sorted(here.iterdir())
    assert said in refusal(command, "check", *arguments)
    assert [path for path in sorted(here.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("x = 1\ny = x / 0", 2, "importing it raises ZeroDivisionError: division by zero"),
        ("y = x", 1, "importing it raises NameError: name 'x' is not defined"),
        (
            "def load():\n    raise RuntimeError('no CUDA\\nat all')\n\nload()",
            2,
            "importing it raises RuntimeError: no CUDA",
        ),
        ("import torch\ntorch.zeros(1).cuda()", 2, "importing it raises "),
        ("raise BrokenPipeError", 1, "importing it raises BrokenPipeError"),
        ("import typer\nraise typer.Exit(0)", 2, "importing it raises Exit: 0"),
        ("import sys\nsys.exit(0)", 2, "importing it raises SystemExit: 0"),
        ("raise KeyboardInterrupt", 1, "importing it raises KeyboardInterrupt"),
        ("n = input()", 1, "EOFError: EOF when reading a line (in a check, the standard input is empty)"),
        ("from helper import f", 1, "importing it raises ZeroDivisionError: division by zero"),
        (
            "from os import no_such_name",
            1,
            "importing it raises ImportError: cannot import name 'no_such_name' from 'os'",
        ),
        ("eval('1 +')", 1, "importing it raises SyntaxError"),
        ("'\\udcff'.encode()", 1, "importing it raises UnicodeEncodeError"),
    ],
)
def test_an_import_that_fails_is_one_line_with_its_line(command, here, source, line, says):
    (here / "helper.py").write_text("f = 1 / 0\n")
    (here / "mine.py").write_text(f"{source}\n{RIGHT}")
    said = refusal(command, "check", "mine.py:attention")
    assert said.startswith(f"regard: mine.py:{line}: ")
    assert says in said


def test_an_import_that_fails_elsewhere_has_the_line_there(command, here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    (here / "mine.py").write_text("import broken\n")
    (here / "of_mine.py").write_text("import os\nx = 1 / 0\n")
    assert f"{here / 'broken.py'}:3: not Python: " in refusal(command, "check", "mine.py:attention")
    assert f"{here / 'of_mine.py'}:2: importing it raises " in refusal(command, "check", "of_mine:attention")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise BrokenPipeError", "BrokenPipeError"),
        ("raise SystemExit(0)", "raised SystemExit: 0; it was at mine.py:4: raise SystemExit(0)"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt; it was at mine.py:4: raise KeyboardInterrupt"),
        ("os._exit(0)", "ended with exit code 0 and no answer, as by os._exit"),
        ("input()", "EOFError: EOF when reading a line"),
        ("time.sleep(60)", "did not end within 0.2 s; it was at mine.py:4: time.sleep(60)"),
    ],
)
def test_what_stops_within_a_call_is_undetermined_and_told_once(command, here, body, says):
    (here / "mine.py").write_text(f"import os, time\n\ndef attention(q, k, v):\n    {body}\n")
    timeout = "0.2" if "sleep" in body else "60"
    code, out, err = command("check", "mine.py:attention", "--timeout", timeout)
    assert (code, err) == (3, "")
    assert out.startswith("attention: undetermined\n\n- ")
    assert out.splitlines()[2].endswith(says)


def test_what_the_file_prints_is_no_part_of_the_json(command, here):
    loud = "import os\nprint('{')\nos.write(1, b'}')\n\ndef attention(q, k, v):\n    print(q)\n"
    (here / "mine.py").write_text(loud)
    code, out, err = command("check", "mine.py:attention", "--json", "-")
    assert (code, err, json.loads(out)["verdict"]) == (3, "", "undetermined")


@pytest.mark.parametrize(
    "target",
    [
        ["right.py:Attention", "--arg", "num_heads=4", "--arg", "d_model=32"],
        ["torch.nn.functional:scaled_dot_product_attention"],
        ["regard.course:SelfAttention"],
    ],
)
def test_the_report_of_what_is_right(command, here, target):
    code, out, err = command("check", *target)
    assert (code, err) == (0, ""), out
    assert re.search(": (right|different by design)", out.splitlines()[0]), out


def test_the_report_of_what_is_wrong_as_text_as_json_and_in_a_file(command, here):
    code, out, err = command("check", "scaleless.py:attention", "--json", "report.json")
    report = Report.from_json((here / "report.json").read_text())
    assert (code, out, err) == (1, f"{report}\n", "")
    assert out.splitlines()[0].endswith(": wrong")
    assert "no-scale" in out


@pytest.mark.parametrize(
    ("name", "code", "heading"), [("scaleless", 1, b"\x1b[1;31mwrong"), ("right", 0, b"\x1b[1;32mright")]
)
def test_on_a_terminal_the_verdict_has_its_color(here, name, code, heading):
    ended, shown = on_a_terminal("check", f"{name}.py:attention")
    assert ended == code
    assert heading in shown
    assert (b"\x1b[1mno-scale (in " in shown) == (code == 1)
