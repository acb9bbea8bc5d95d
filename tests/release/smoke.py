"""What somebody does first, in an environment that has only the wheel and what it asks for.

It runs by itself, outside the checkout: ``python -P smoke.py``, or with ``--without-torch`` where there is no torch.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import regard

REGARD = Path(sys.executable).with_name("regard")
SENTENCE = "Write a poem about a man fishing on a river bank."
RIGHT = """import torch


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5, dim=-1) @ v
"""
UNSCALED = RIGHT.replace(" / k.shape[-1] ** 0.5", "")


def output_of(*arguments: str, exit_code: int = 0) -> str:
    """What the command `regard` prints, after its exit code was looked at."""
    ended = subprocess.run([REGARD, *arguments], capture_output=True, text=True)
    shown = ended.stdout + ended.stderr
    require(ended.returncode == exit_code, f"regard {arguments} ended with {ended.returncode}: {shown}")
    return shown


def require(holds: bool, message: str) -> None:
    """End with a message where something does not hold; an `assert` could be turned off."""
    if not holds:
        raise SystemExit(message)


def try_the_commands() -> None:
    """The version and the help, which need no torch."""
    require(regard.__version__ in output_of("--version"), "regard --version names another version")
    require("explain" in output_of("--help"), "regard --help does not name regard explain")


def try_without_torch() -> None:
    """What there is without torch, and that the rest says what is missing."""
    require(find_spec("torch") is None, "torch is there")
    require(isinstance(regard.Beam(num_beams=2), regard.Beam), "regard.Beam cannot be used")
    try:
        regard.attend  # noqa: B018  it is imported when it is first used
    except ModuleNotFoundError as error:
        require(error.name == "torch", f"regard.attend needs {error.name}")
    else:
        raise SystemExit("regard.attend was imported without torch")


def try_with_torch() -> None:
    """Every public name, attention against its definition, a check of right and of wrong code, a trained model."""
    import torch

    for name in regard.__all__:
        getattr(regard, name)
    q, k, v = torch.randn(3, 2, 4, 50, 16)
    mask = regard.mask.causal()
    torch.testing.assert_close(regard.attend(q, k, v, mask), regard.steps(q, k, v, mask).output)

    Path("right.py").write_text(RIGHT)
    Path("unscaled.py").write_text(UNSCALED)
    output_of("check", "right.py:attention")
    require("scale" in output_of("check", "unscaled.py:attention", exit_code=1), "the missing scale is not named")
    require("layer 0, head 4" in output_of("explain", SENTENCE, "--token", "bank"), "another head is explained")
    answer = regard.generate(regard.load("smollm2"), "What is", max_new_tokens=2)
    require(isinstance(answer, str), f"the small decoder gave {answer!r}")


if __name__ == "__main__":
    try_the_commands()
    if "--without-torch" in sys.argv:
        try_without_torch()
    else:
        try_with_torch()
