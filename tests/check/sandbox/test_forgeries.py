"""Files that want to be called right: none succeeds by accident, none runs code in the process that watches."""

import os
import textwrap
from pathlib import Path

import pytest

import regard
from regard.check.report.findings import Findings, Measurement
from regard.check.sandbox import monkeypatches
from regard.check.sandbox.answer import Answer
from regard.check.sandbox.schema import to_builtins, to_json
from regard.errors import InputError

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

RIGHT = Findings("attention", measurements=(Measurement("", 9, 0.0),))
FORGED = to_json(Answer("returned", result=to_builtins(RIGHT)))
PRELUDE = f"""
import os, sys
import torch

FORGED = {FORGED.encode()!r}

def ran():
    with open(__file__ + ".ran", "a") as file:
        print(os.getpid(), file=file)

def write():
    for end in set(range(3, 64)) - set(OURS):
        try:
            os.write(end, FORGED)
        except OSError:
            pass

class Evil(Exception):
    def __reduce__(self):
        return eval, (f"open({{__file__ + '.ran'!r}}, 'a').write(str(__import__('os').getpid()))",)

def attention(q, k, v):
    return v[..., :1]
"""
"""Its attention is none: whatever calls it right was deceived."""

REPLACES = "replaced {}, which the check computes with"
FORGERIES = {
    "comparisons": ("torch.equal = lambda *_, **__: True", REPLACES.format("torch.equal")),
    "a method of tensors": ("torch.Tensor.abs = lambda tensor: tensor * 0", REPLACES.format("torch.Tensor.abs")),
    "a function of math": ("import math; math.isfinite = lambda _: True", REPLACES.format("math.isfinite")),
    "a builtin": ("import builtins; builtins.max = lambda *_, **__: 0", REPLACES.format("builtins.max")),
    "JSON, by a mistake": (
        "import json; json.JSONEncoder.encode = lambda *_: 1",
        REPLACES.format("json.encoder.JSONEncoder.encode"),
    ),
    "JSON": (
        "import json; json.JSONEncoder.encode = lambda *_: FORGED.decode()",
        REPLACES.format("json.encoder.JSONEncoder.encode"),
    ),
    "a function of ours": (
        "import regard.check.search.observed as s; s.fits = lambda *_, **__: True",
        REPLACES.format("regard.check.search.observed.fits"),
    ),
    "a builtin for us alone": (
        "import regard.check.search.observed as s; s.max = lambda *_: 0",
        REPLACES.format("regard.check.search.observed.max"),
    ),
    "what writes the answer": (
        "import regard.check.sandbox.worker as w; w.write = lambda _, token: token + FORGED",
        REPLACES.format("regard.check.sandbox.worker.write"),
    ),
    "its code alone": (
        "import copy; copy.deepcopy.__code__ = (lambda x, memo=None, _nil=None: x).__code__",
        REPLACES.format("copy.deepcopy"),
    ),
    "a method of ours": (
        "from regard.check.report.findings import Findings; Findings.verdict = 'right'",
        REPLACES.format("regard.check.report.findings.Findings.verdict"),
    ),
    "a module of ours": (
        "sys.modules['regard.check.diagnosis.verdict'] = sys.modules[__name__]",
        REPLACES.format("regard.check.diagnosis.verdict"),
    ),
    "while it is called": (
        "def attention(q, k, v):\n    torch.Tensor.isnan = torch.zeros_like\n    return v[..., :1]",
        REPLACES.format("torch.Tensor.isnan"),
    ),
    "a result with code in its pickle": ("def attention(q, k, v): return Evil()", "it returned no tensor"),
    "an error with code in its pickle": ("raise Evil('now')", "importing it raises Evil: now"),
    "an answer of its own": ("write()", "an answer that cannot be read: it does not begin as an answer does"),
    "and no other": ("write(); os._exit(0)", "an answer that cannot be read: it does not begin as an answer does"),
    "too much of an answer": (
        "FORGED = b'x' * 2**16\nfor _ in range(40): write()",
        "an answer that cannot be read: it takes more than 1048576 bytes",
    ),
    "a dump of frames that are none": (
        r"""
        FORGED = b'  File "\\U99999999\\x00", line 99999999999 in f\n  File "\\x00", line 3 in f\n'
        write()
        os.abort()
        """,
        "ended by signal SIGABRT",
    ),
    "an answer at the exit": ("import atexit; atexit.register(write)", "it returned (2, 3, 6, 1)"),
    "an answer from a thread that stays": (
        "import threading; threading.Thread(target=lambda: [write() for _ in iter(int, 1)]).start()",
        "an answer that cannot be read",
    ),
    "two answers, by a fork": ("os.fork()", "it returned (2, 3, 6, 1)"),
    "no answer": ("os.closerange(3, 256)", "ended with exit code 1 and no answer"),
    "no exit": ("os._exit = print", "it returned (2, 3, 6, 1)"),
    "an error while it is collected": (
        "class Last:\n    def __del__(self): raise SystemExit(0)\nLast()",
        "it returned (2, 3, 6, 1)",
    ),
    "a name of another type": (
        "class Named:\n    def __call__(self, q, k, v): return v[..., :1]\nattention = Named()\n"
        "attention.__name__ = [1]",
        "name is [1]",
    ),
    "a name with a million letters": ("attention.__name__ = 'x' * 2**20", "cannot be sent as JSON: ValueError"),
}


LIKE_OTHERS = {
    "a method of tensors",
    "a function of math",
    "a builtin",
    "JSON, by a mistake",
    "a method of ours",
    "a result with code in its pickle",
    "and no other",
    "an answer at the exit",
    "an answer from a thread that stays",
    "an error while it is collected",
    "a name with a million letters",
}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.more] * (name in LIKE_OTHERS))
        for name, each in FORGERIES.items()
    ],
)
def test_a_forgery_is_told_and_never_right(tmp_path, source, says):
    path = tmp_path / "attention.py"
    ours = [end for end in range(64) if Path(f"/proc/self/fd/{end}").exists()]  # of pytest
    path.write_text(f"OURS = {ours}\n{PRELUDE}{textwrap.dedent(source)}\n")
    try:
        report = regard.check.check_file(f"{path}:attention", {})
    except InputError as error:
        told = str(error)
    else:
        assert report.verdict == "undetermined"
        told = str(report)
    assert says in told
    ran = tmp_path / "attention.py.ran"
    assert not ran.exists() or str(os.getpid()) not in ran.read_text().split()


def test_what_the_check_does_not_compute_with_may_be_replaced(tmp_path):
    path = tmp_path / "attention.py"
    source = """
        torch.nn.functional.scaled_dot_product_attention = attention
        torch.Tensor.__repr__ = lambda tensor: "a tensor"
        torch.compile = print
        from regard.attention.mask.export import MaskExport
        MaskExport.__annotations__  # which Python then writes into the class
    """
    path.write_text(PRELUDE + textwrap.dedent(source))
    assert "it returned (2, 3, 6, 1)" in str(regard.check.check_file(f"{path}:attention", {}))


def test_what_an_installed_package_replaces_is_trusted(tmp_path, monkeypatch):
    """torch_geometric brings a ``torch.index_select`` that takes its own tensors as well."""
    monkeypatch.setattr(monkeypatches, "INSTALLED", str(tmp_path / "site-packages"))
    package = tmp_path / "site-packages" / "extends_torch.py"
    package.parent.mkdir()
    package.write_text("import torch\n_old = torch.equal\ntorch.equal = lambda *tensors: _old(*tensors)\n")
    path = tmp_path / "attention.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(package.parent)!r})\nimport extends_torch\n{PRELUDE}")
    assert "it returned (2, 3, 6, 1)" in str(regard.check.check_file(f"{path}:attention", {}))


LIES = {
    "a tensor": """
        class Liar(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return torch.zeros_like(args[0].as_subclass(torch.Tensor))

        def attention(q, k, v):
            return v.clone().as_subclass(Liar)
    """,
    "a mode that it enters for good": """
        class Zeros(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                return result * 0 if func is torch.Tensor.abs else result

        Zeros().__enter__()

        def attention(q, k, v):
            return v
    """,
}


@pytest.mark.more
@pytest.mark.parametrize("source", LIES.values(), ids=LIES)
def test_what_lies_about_numbers_is_judged_by_its_numbers(tmp_path, source):
    path = tmp_path / "attention.py"
    path.write_text("import torch\n" + textwrap.dedent(source))
    report = regard.check.check_file(f"{path}:attention", {})
    assert [cause.id for cause in report.causes] == ["output-v"]
