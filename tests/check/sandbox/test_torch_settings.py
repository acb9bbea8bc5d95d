"""PyTorch's settings that the user's code changes: its calls have them, the check does not, and the report says so."""

import textwrap

import pytest
import torch

import regard
from regard.check.sandbox.torch_settings import SETTINGS, UserSettings
from regard.errors import InputError

ATTENTION = """
def attention(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
"""
CHANGES = {
    "default device": "torch.set_default_device('meta')",
    "default dtype": "torch.set_default_dtype(torch.float16)",
    "grad mode": "torch.set_grad_enabled(False)",
    "deterministic mode": "torch.set_deterministic_debug_mode(1)",
    "autocast": "torch.set_autocast_enabled('cpu', True)",
    "number of threads": "torch.set_num_threads(3)",
    "stack of modes": "torch.overrides.BaseTorchFunctionMode().__enter__()",
}


def now():
    return [each.get() for each in SETTINGS]


@pytest.mark.parametrize(("name", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_noticed_and_undone(name, change):
    before, settings = now(), UserSettings()
    with settings.on():
        exec(change, {"torch": torch})
    assert now() == before
    assert settings.note() == f"it changes PyTorch's {name} for the whole process"


def test_its_calls_have_its_own_device_and_dtype_and_the_check_has_pytorchs():
    settings = UserSettings()
    with settings.on():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
    with settings.on():
        theirs = torch.zeros(1)
    ours = torch.zeros(1)
    assert [(each.dtype, each.is_meta) for each in (theirs, ours)] == [(torch.float64, True), (torch.float32, False)]


def test_what_was_set_before_a_check_is_set_after_it():
    torch.set_default_dtype(torch.float64)
    try:
        with UserSettings().adopted():
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.more
@pytest.mark.parametrize("change", [CHANGES["default device"], pytest.param("pass", id="a call of it")])
def test_code_that_changes_them_is_judged_all_the_same(tmp_path, change):
    path = tmp_path / "attention.py"
    called = ATTENTION.replace(":\n", ":\n    torch.set_default_device('meta')\n") if change == "pass" else ATTENTION
    path.write_text(f"import torch\n{change}\n{called}")
    report = regard.check.check_file(f"{path}:attention", {})
    assert (report.verdict, report.notes[0]) == ("right", "it changes PyTorch's default device for the whole process")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("Attention", "has its q.weight on meta: give check a module on the CPU"),
        ("attention", "it returned a tensor on meta; its inputs are on cpu"),
    ],
)
def test_numbers_that_are_not_there_are_told(tmp_path, target, says):
    path = tmp_path / "attention.py"
    source = """
        import torch

        class Attention(torch.nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.q = torch.nn.Linear(d_model, d_model, device="meta")

            def forward(self, x):
                return x

        def attention(q, k, v):
            return v.to("meta")
    """
    path.write_text(textwrap.dedent(source))
    try:
        told = str(regard.check.check_file(f"{path}:{target}", {}))
    except InputError as error:
        told = str(error)
    assert says in told
