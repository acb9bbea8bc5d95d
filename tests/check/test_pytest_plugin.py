"""The fixture `regard_check`, in test runs of their own.

Each run is a process: pytest forgets what a run within this one imported, and the check watches its own modules.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import regard

pytest_plugins = "pytester", "regard.check.pytest_plugin"
pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

OPTIONS = ("-p", "no:cacheprovider")
TESTS = """
from torch import nn

def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

def unknown(q, k, v):
    return None

class Needy(nn.Module):
    def __init__(self, d_model, flavour):
        super().__init__()

def test_wrong(regard_check):
    regard_check(unscaled)

def test_unknown(regard_check):
    regard_check(unknown)

def test_unknown_is_skipped(regard_check):
    regard_check(unknown, undetermined="skip")

def test_what_cannot_be_made(regard_check):
    regard_check(Needy)
"""


@pytest.mark.more
def test_a_test_fails_with_the_report_and_without_a_traceback(pytester):
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_subprocess(*OPTIONS, "-rs")
    ran.assert_outcomes(failed=3, skipped=1)
    ran.stdout.fnmatch_lines_random(
        [
            "unscaled: wrong",
            "first step that deviates: scaled",
            "no-scale (in scaled): *",
            "unknown: undetermined",
            "regard check: Needy does not run with guessed inputs*",
            "SKIPPED*unknown: undetermined*",
        ]
    )
    shown = ran.stdout.str()
    assert "pytest_plugin.py" not in shown.partition("short test summary")[0]
    assert "Traceback" not in shown
    assert "another exception" not in shown


RIGHT = """
from torch import nn

def test_with_arguments(regard_check):
    report = regard_check(nn.MultiheadAttention, embed_dim=32, num_heads=4, batch_first=True)
    assert report.ok
    assert not report.assumptions

def test_by_its_name(regard_check):
    assert regard_check("torch.nn.functional:scaled_dot_product_attention").ok
"""


@pytest.mark.more
def test_a_test_of_what_is_right_passes_and_has_the_report(pytester):
    pytester.makepyfile(RIGHT)
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=2)


@pytest.mark.more
def test_another_action_is_refused(pytester):
    pytester.makepyfile("def test(regard_check):\n    regard_check(len, undetermined='pass')")
    ran = pytester.runpytest_subprocess(*OPTIONS)
    ran.stdout.fnmatch_lines(["*InputError: undetermined='pass': it is 'fail' or 'skip'"])


def unknown(q, k, v):
    return None


@pytest.mark.parametrize("what", [unknown, f"{__file__}:unknown"], ids=["object", "text"])
def test_an_object_is_taken_or_the_text_that_names_it(regard_check, what):
    with pytest.raises(pytest.skip.Exception, match=r"^unknown: undetermined"):
        regard_check(what, undetermined="skip")


def test_it_costs_no_import_of_pytorch_where_it_is_not_used():
    code = "import sys, regard.check.pytest_plugin; print('torch' in sys.modules, 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(regard.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("False False\n", "")


def test_it_is_installed_with_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"regard": "regard.check.pytest_plugin"}
