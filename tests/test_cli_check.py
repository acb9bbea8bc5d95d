"""`regard check`: what the command reads, refuses and prints. Whether its verdicts are right is for tests/check/."""

import json
import textwrap

import pytest

from regard.check.causes import MISTAKES
from regard.check.report import Report
from regard.cli import check
from regard.errors import InputError
from terminals import on_a_terminal

RIGHT = """
    import math, torch

    COUNT = 3

    def attention(q, k, v):
        return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v

    class Attention(torch.nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.qkv = torch.nn.Linear(d_model, 3 * d_model)
            self.out = torch.nn.Linear(d_model, d_model)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            return self.out(attention(q, k, v).transpose(1, 2).reshape(B, T, C))
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
        (tmp_path / name).write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_help_teaches(command):
    assert "check" in command("--help")[1]
    code, out, _ = command("check", "--help")
    assert code == 0
    for option in ("--arg", "--timeout", "--memory", "--json", "--out", "--list"):
        assert option in out
    assert "regard check attention.py:" in out
    assert "undetermined" in out


class TestTheList:
    def test_has_every_cause_in_a_row(self, command, monkeypatch):
        monkeypatch.delenv("COLUMNS")
        code, out, err = command("check", "--list")
        assert (code, err) == (0, "")
        rows = out.splitlines()[2:]
        assert [row.split()[0] for row in rows] == list(MISTAKES)
        assert all(cause.example in row for cause, row in zip(MISTAKES.values(), rows, strict=True))

    def test_fits_a_terminal(self, command, monkeypatch):
        code, shown = on_a_terminal("check", "--list")
        assert code == 0
        assert b"\x1b[1m" in shown
        assert b"mask-inverted" in shown

    def test_as_json(self, command):
        _, out, _ = command("check", "--list", "--json")
        assert [cause["id"] for cause in json.loads(out)] == list(MISTAKES)
        assert set(json.loads(out)[0]) == {"id", "step", "example", "message"}

    def test_checks_nothing(self, command):
        for more in (["a.py:f"], ["--arg", "x=1"], ["--out", "x.json"]):
            code, out, err = command("check", "--list", *more)
            assert (code, out) == (2, "")
            assert err.startswith("regard: --list checks nothing")


class TestArguments:
    def test_are_read_as_python_writes_them_and_else_as_texts(self):
        pairs = ["n=4", "p=0.1", "bias=False", "d=None", "shape=(2, 3)", "name=rope", "text='4'", "path=a=b", "none="]
        assert check._arguments(pairs) == {
            "n": 4,
            "p": 0.1,
            "bias": False,
            "d": None,
            "shape": (2, 3),
            "name": "rope",
            "text": "4",
            "path": "a=b",
            "none": "",
        }

    @pytest.mark.parametrize(
        ("pairs", "said"),
        [
            (["heads"], "--arg 'heads': it is NAME=VALUE, such as num_heads=4"),
            (["=4"], "--arg '=4': it is NAME=VALUE"),
            (["num-heads=4"], "--arg 'num-heads=4': it is NAME=VALUE"),
            (["n=4", "n=5"], "--arg n is given twice"),
            (["bias=false"], "--arg 'bias=false': Python writes it bias=False"),
        ],
    )
    def test_that_are_none(self, pairs, said):
        with pytest.raises(InputError) as error:
            check._arguments(pairs)
        assert str(error.value).startswith(said)

    def test_of_any_depth_are_no_crash(self):
        deep = "(" * 100_000
        assert check._arguments([f"x={deep}"]) == {"x": deep}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give FILE.py:NAME or module.path:NAME, or --list"),
        (["right.py:attention", "--timeout", "0"], "--timeout 0: give a number of seconds above 0"),
        (["right.py:attention", "--timeout", "nan"], "--timeout nan"),
        (["right.py:attention", "--timeout", "inf"], "--timeout inf"),
        (["right.py:attention", "--timeout", "soon"], "Invalid value for '--timeout'"),
        (["right.py:attention", "--memory", "-1"], "--memory -1: give a number of GiB above 0"),
        (["right.py:attention", "--memory", "nan"], "--memory nan"),
        (["right.py:attention", "--out", "-"], "--out -: give a file; --json prints the report"),
        (["right.py:attention", "--out", "no/such/folder/x.json"], "cannot write 'no/such/folder/x.json'"),
        (["right.py:attention", "--arg", "heads"], "--arg 'heads': it is NAME=VALUE"),
        (["right.py:attention", "right.py:Attention"], "unexpected extra argument"),
        (["missing.py:attention"], "missing.py: no such file"),
        (["right.py"], "give FILE.py:NAME"),
        (["right.py:Atention"], "right.py has no Atention; it has attention, Attention"),
        (["right.py:COUNT"], "right.py:COUNT is a int"),
        (["broken.py:attention"], "broken.py:3: not Python: '(' was never closed"),
        (["needy.py:attention"], "no_such_library"),
        (["no_such_module.of_mine:attention"], "no_such_module"),
        (["right.py:Attention", "--arg", "n_heads=4"], "Attention takes no n_heads; it takes d_model, num_heads"),
    ],
)
def test_what_cannot_be_checked_is_one_line(command, here, arguments, said):
    before = sorted(here.iterdir())
    code, out, err = command("check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("regard: ")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert [path for path in sorted(here.iterdir()) if path.name != "__pycache__"] == before


class TestAReport:
    def test_of_what_is_right(self, command, here):
        code, out, err = command("check", "right.py:attention")
        assert (code, err) == (0, "")
        assert out.splitlines()[0].endswith(": right")

    def test_of_what_is_wrong(self, command, here):
        code, out, err = command("check", "scaleless.py:attention")
        assert (code, err) == (1, "")
        assert out.splitlines()[0].endswith(": wrong")
        assert "no-scale" in out

    def test_as_json_and_in_a_file(self, command, here):
        code, out, err = command("check", "scaleless.py:attention", "--json", "--out", "report.json")
        assert (code, err) == (1, "")
        report = Report.from_json(out)
        assert report.verdict == "wrong"
        assert json.loads((here / "report.json").read_text()) == json.loads(out)

    def test_of_a_class_with_arguments(self, command, here):
        code, out, _ = command("check", "right.py:Attention", "--arg", "num_heads=4", "--arg", "d_model=32")
        assert code == 0, out

    def test_of_a_module_that_is_installed(self, command, here):
        code, out, _ = command("check", "torch.nn.functional:scaled_dot_product_attention")
        assert code == 0, out

    def test_on_a_terminal_the_verdict_has_its_colour(self, here):
        code, shown = on_a_terminal("check", "scaleless.py:attention")
        assert code == 1
        assert b"\x1b[1;31mwrong" in shown
        code, shown = on_a_terminal("check", "right.py:attention")
        assert code == 0
        assert b"\x1b[1;32mright" in shown
