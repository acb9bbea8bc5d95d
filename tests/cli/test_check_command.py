"""`regard check`: what the command reads, refuses and prints. Whether its verdicts are right is for tests/check/."""

import json
import re

import pytest

from regard.check.mistakes.catalog import MISTAKES
from regard.check.properties.catalog import PROPERTIES
from regard.check.report import Report
from regard.check.search.layouts import to_layout
from regard.check.search.subject import subject_of
from regard.cli.check import guarded
from regard.errors import InputError
from terminals import on_a_terminal, printed, refusal

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
def here(here):
    """A folder with some files, in which the command runs."""
    files = {
        "right.py": RIGHT,
        "scaleless.py": "def attention(q, k, v):\n    return (q @ k.transpose(-2, -1)).softmax(-1) @ v\n",
        "broken.py": "import math\n\ndef attention(q, k, v:\n    return v\n",
        "needy.py": "import no_such_library\n",
    }
    for name, source in files.items():
        (here / name).write_text(source)
    return here


def test_the_list_has_every_cause_and_every_property_in_a_row(command, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    out = printed(command, "check", "--list")
    mistakes, properties = (part.splitlines()[2:] for part in out.split("\n\n"))
    for cause, row in zip(MISTAKES.values(), mistakes, strict=True):
        assert row.split()[:2] == [cause.id, cause.step]
        assert cause.example in row
    for known, row in zip(PROPERTIES.values(), properties, strict=True):
        assert row.split()[:2] == [known.id, known.step]
        assert known.definition in row


def test_the_list_fits_a_terminal():
    code, shown = on_a_terminal("check", "--list")
    assert (code, b"\x1b[1m" in shown, b"mask-inverted" in shown) == (0, True, True)


def test_the_list_as_json(command):
    listed = json.loads(command("check", "--list", "--json", "-")[1])
    assert [(each["kind"], each["id"]) for each in listed] == [
        *(("mistake", name) for name in MISTAKES),
        *(("property", name) for name in PROPERTIES),
    ]
    assert listed[0].keys() == {"kind", "id", "step", "example", "message"}
    assert listed[-1].keys() == {"kind", "id", "step", "definition", "impact", "fix"}


def test_arguments_are_read_as_python_writes_them_and_else_as_texts(command, here):
    values = {"n": 4, "p": 0.1, "bias": False, "d": None, "shape": (2, 3), "name": "rope", "path": "a=b", "none": ""}
    written = [f"--arg={name}={value}" for name, value in values.items()]
    written += ["--arg=width=4 * 16", "--arg=scale=64 ** -0.5", "--arg=large=9 ** 9 ** 9", "--arg=odd='a' * 2"]
    of_config = ("--arg=config.heads=4", "--arg=config.vision.width=32", "--arg=config.name=ViT")
    said = refusal(
        command, "check", "right.py:Told", *written, "--arg=text='4'", "--arg=deep=" + "(" * 10**5, *of_config
    )
    fields = {"heads": 4, "vision": {"width": 32}, "name": "ViT"}
    computed = {"width": 64, "scale": 0.125, "large": "9 ** 9 ** 9", "odd": "'a' * 2"}
    assert str({**values, **computed, "text": "4", "deep": "(" * 10**5, "config": fields}) in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give FILE.py:NAME or module.path:NAME, or --list; FILE.py alone lists what it has"),
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
        (["right.py:attention", "--arg", "config.=4"], "--arg 'config.=4': it is NAME=VALUE"),
        (
            ["right.py:attention", "--arg", "config.heads=4", "--arg", "config.heads=2"],
            "--arg config.heads is given twice",
        ),
        (
            ["right.py:attention", "--arg", "config=4", "--arg", "config.heads=2"],
            "--arg config.heads: config is given as '4', which has no fields",
        ),
        (["right.py:attention", "--arg", "n=4", "--arg", "n=5"], "--arg n is given twice"),
        (["right.py:attention", "--arg", "bias=false"], "--arg 'bias=false': Python writes it bias=False"),
        (["--list", "a.py:f"], "--list checks nothing"),
        (["--list", "--arg", "x=1"], "--list checks nothing"),
        (["right.py:attention", "right.py:Attention"], "unexpected extra argument"),
        (["missing.py:attention"], "missing.py: no such file"),
        (["missing.py"], "missing.py: no such file"),
        (["missing.ipynb"], "missing.ipynb: no such file"),
        (["broken.py"], "broken.py:3: not Python: '(' was never closed"),
        (["broken.py", "--all"], "broken.py:3: not Python: '(' was never closed"),
        (["needy.py", "--all"], "needy.py: no attention was seen in it; give needy.py:NAME to check one all the same"),
        (["right.py", "--arg", "n=4"], "--arg is for one implementation: give right.py:NAME"),
        (["right.py", "--all", "--arg", "n=4"], "--arg is for one implementation: give right.py:NAME"),
        (["right.py", "--format", "github"], "--format github is for reports: give FILE.py:NAME, or FILE.py --all"),
        (["--list", "--format", "github"], "--format github is for reports"),
        (["right.py:attention", "--format", "xml"], "--format xml: it is text, json or github"),
        (["right.py:attention", "--all"], "--all checks every attention of a file: give FILE.py, not 'right.py:at"),
        (["--list", "--all"], "--list checks nothing"),
        (["right.py:Atention"], "right.py has no Atention; it has Attention, Told"),
        (["right.py:COUNT"], "right.py:COUNT is a int"),
        (["broken.py:attention"], "broken.py:3: not Python: '(' was never closed"),
        (["needy.py:attention"], "needy.py:1: importing it raises ModuleNotFoundError: No module named 'no_such_lib"),
        (["no_such_module.of_mine:attention"], "no_such_module.of_mine: no such file, and no module of that name"),
        (["no module:attention"], "no module: no such file, and no module of that name"),
        (["torch.no_such_thing:attention"], "torch.no_such_thing: no such file, and no module of that name"),
        (["right.py", "--args", "x=(B,T,D)"], "--args is for the call of one implementation: give FILE.py:NAME"),
        (
            ["right.py:Attention", "--args", "y=(B,T,D)"],
            "unexpected keyword argument 'y'; hand over its inputs: --args",
        ),
        (["right.py:attention", "--args", "query=(B,T,Q)"], "--args: Q is no size"),
        (["right.py:Attention", "--arg", "n_heads=4"], "Attention takes no n_heads; it takes d_model, num_heads"),
        (["scaleless.py:attention", "--arg", "heads=4"], "attention takes no heads; it takes q, k, v"),
    ],
)
def test_what_cannot_be_checked_is_one_line(command, here, arguments, said):
    before = sorted(here.iterdir())
    assert said in refusal(command, "check", *arguments)
    assert [path for path in sorted(here.iterdir()) if path.name != "__pycache__"] == before


TURNED = """
import torch

def attention(blob, twist):
    q = torch.view_as_real(torch.view_as_complex(blob.unflatten(-1, (-1, 2))) * twist).flatten(-2)
    return (q @ q.mT / blob.shape[-1]).softmax(-1) @ blob
"""


def test_the_inputs_are_handed_over(command, here):
    (here / "turned.py").write_text(TURNED)
    code, shown, _ = command("check", "turned.py:attention")
    assert (code, '--args "blob=(' in shown) == (3, True)
    code, shown, _ = command("check", "turned.py:attention", "--args", "blob=(B,T,D), twist=rope(T,D)")
    assert (code, "not by 1/sqrt(12) = 0.2887" in shown, "turned.py:6: return (q @ q.mT" in shown) == (1, True, True)


@pytest.mark.more
@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("x = 1\ny = x / 0", 2, "importing it raises ZeroDivisionError: division by zero"),
        ("y = x", 1, "importing it raises NameError: name 'x' is not defined"),
        ("def f():\n    raise RuntimeError('no CUDA\\nat all')\nf()", 2, "importing it raises RuntimeError: no CUDA"),
        ("raise ImportError('\\n\\n  torch is too old\\n')", 1, "importing it raises ImportError: torch is too old"),
        ("import torch\ntorch.zeros(1).cuda()", 2, "importing it raises "),
        ("raise BrokenPipeError", 1, "importing it raises BrokenPipeError"),
        ("import typer\nraise typer.Exit(0)", 2, "importing it raises Exit: 0"),
        ("import sys\nsys.exit(0)", 2, "importing it raises SystemExit: 0"),
        ("raise KeyboardInterrupt", 1, "importing it raises KeyboardInterrupt"),
        ("n = input()", 1, "EOFError: EOF when reading a line (in a check, the standard input is empty)"),
        ("from helper import f", 1, "importing it raises ZeroDivisionError: division by zero"),
        ("from os import no_name", 1, "importing it raises ImportError: cannot import name 'no_name' from 'os'"),
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


@pytest.mark.more
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


@pytest.mark.more
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


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "code", "heading"), [("scaleless", 1, b"\x1b[1;31mwrong"), ("right", 0, b"\x1b[1;32mright")]
)
def test_on_a_terminal_the_verdict_has_its_color(here, name, code, heading):
    ended, shown = on_a_terminal("check", f"{name}.py:attention")
    assert ended == code
    assert heading in shown
    assert (b"\x1b[1mno-scale (in " in shown) == (code == 1)


SEVERAL = """
def right(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

def unscaled(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v

def stops(q, k, v):
    raise SystemExit("100%, or\\nnothing")
"""


def test_a_file_without_a_name_lists_what_it_has_and_runs_nothing(command, here):
    (here / "several.py").write_text(f"raise SystemExit\n{SEVERAL}")
    out = printed(command, "check", "several.py")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [["right", "3"], ["unscaled", "6"], ["stops", "10"]]
    assert out.splitlines()[3].endswith("regard check several.py:unscaled")
    listed = json.loads(command("check", "several.py", "--format", "json")[1])
    assert listed == json.loads(command("check", "several.py", "--json", "-")[1])
    assert (listed[0]["name"], listed[0]["line"], listed[0]["kind"]) == ("right", 3, "attention")


def test_a_list_of_no_attention_says_so_and_names_the_modules(command, here):
    (here / "mlp.py").write_text("from torch import nn\nclass MLP(nn.Module):\n    def forward(self, x): return x\n")
    said = "mlp.py: no attention was seen in it\n\nmodules in which no attention was seen: MLP\n"
    assert command("check", "mlp.py") == (0, said, "")


def test_all_of_a_file_end_with_the_worst_exit_code_and_annotations_escape_what_ends_them(command, here):
    (here / "several.py").write_text(SEVERAL)
    code, out, err = command("check", "several.py", "--all", "--format", "github", "--json", "reports.json")
    assert (code, err) == (1, "")
    lines = [line for line in out.splitlines() if line]
    assert [line.partition(":")[0] for line in lines] == ["right", "unscaled", "", "stops", "", "3 checked"]
    assert lines[2].startswith("::error file=several.py,line=6,title=unscaled%3A no-scale (in scaled)::")
    warning = "::warning file=several.py,line=9,title=stops%3A undetermined::raised SystemExit: 100%25, "
    assert lines[4].startswith(warning)
    assert lines[-1] == "3 checked: 1 right, 1 wrong (unscaled), 1 undetermined (stops)"
    reports = json.loads((here / "reports.json").read_text())
    assert [report["verdict"] for report in reports] == ["right", "wrong", "undetermined"]


ATTEND = "def attend(q, k, v):\n    raise SystemExit(3)"


def test_every_attention_of_a_notebook_by_cell(command, here):
    cells = [{"cell_type": "code", "source": text} for text in ("!ls", ATTEND, "x = (")]
    (here / "lesson.ipynb").write_text(json.dumps({"cells": cells}))
    out = printed(command, "check", "lesson.ipynb")
    assert "cell 2, line 1" in out
    assert out.endswith("lesson.ipynb cell 3, line 1 is not Python: '(' was never closed\n")
    code, out, _ = command("check", "lesson.ipynb", "--all")
    assert code == 3
    assert "it was at lesson.ipynb cell 2, line 2: raise SystemExit(3)" in out
    code, out, _ = command("check", "lesson.ipynb:attend", "--format", "json")
    assert (code, json.loads(out)["name"]) == (3, "attend")


def test_an_error_of_our_own_is_undetermined_and_never_the_exit_code_of_what_is_wrong(capsys):
    assert guarded("mine.py:attention", lambda: to_layout(None, None)) == 3
    out = capsys.readouterr().out
    assert out.startswith("mine.py:attention: undetermined\n\n- a fault of regard's, not of your code: AttributeError")
    with pytest.raises(InputError):
        guarded("mine.py", lambda: subject_of(3, {}))


GUESSED = """
def attention(q, k, v, table):
    return ((q @ k.mT + table) / q.shape[-1]).softmax(-1) @ v
"""


def test_what_only_a_guess_makes_wrong_is_undetermined_and_asked_for(command, here):
    (here / "guessed.py").write_text(GUESSED)
    code, shown, _ = command("check", "guessed.py:attention")
    assert (code, "nothing tells what table is" in shown, "--args" in shown) == (3, True, True)
    code, shown, _ = command("check", "guessed.py:attention", "--args", "table=zeros(T, S)")
    assert (code, "not by 1/sqrt" in shown) == (1, True)
