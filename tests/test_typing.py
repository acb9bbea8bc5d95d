"""What a type checker makes of code that uses regard."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent.parent
USERS_CODE = """
from pathlib import Path
from typing import assert_type

import regard
import torch
from regard import check, mask
from regard.check import Report, check_file
from regard.lens import AttentionSummary
from regard.transformer import Config


def my_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return regard.attend(q, k, v, regard.mask.causal() & mask.window(4))


report = regard.check(my_attention, timeout=30)
assert_type(report, Report)
assert_type(check(my_attention).ok, bool)
assert_type(check_file("attention.py:attention", {}), Report)
print(report.verdict, [cause.id for cause in report.causes])

x = torch.randn(1, 4, 8, 16)
assert_type(regard.steps(x, x, x).weights, torch.Tensor)
assert_type(regard.plan(x, x, x, bias=regard.positions.ALiBi(4)).kernel, str)
attention = regard.MultiHeadAttention(64, 4, positions=regard.positions.Rotary(16))
assert_type(attention.steps(x).output, torch.Tensor)
decoder = regard.transformer.Decoder(Config(vocab_size=9, d_model=8, num_layers=1, num_heads=2, d_ff=8))
assert_type(decoder, regard.transformer.Decoder)

with regard.watch(decoder) as recording:
    decoder(torch.tensor([[1, 2, 3]]))
assert_type(recording, regard.Recording)
assert_type(recording["blocks.0"], regard.AttentionMap | AttentionSummary)
assert_type(recording["blocks.0"].entropy(), torch.Tensor)

loaded = regard.load("sentence-transformers/all-MiniLM-L6-v2")
assert_type(loaded.embed(["a river bank"]), torch.Tensor)
assert_type(regard.explain("a river bank", "bank", model=loaded), regard.Explanation)
print(regard.generate(decoder, [1, 2], max_new_tokens=3, strategy=regard.Sample(temperature=0.8, seed=1)))
assert_type(regard.embed("texts.txt", "vectors.npy").path, Path)
print(regard.see(recording, "page.html", layer=0).path)
assert_type(regard.train("lm", out="lm", max_steps=5).metrics["eval_loss"], float)
print(*regard.translate(loaded, ["one", "two"]), *regard.stream(decoder, [1, 2], max_new_tokens=3))

regard.atend  # type: ignore[attr-defined]  # a misspelt name is told: an ignore of nothing would be an error
"""


@pytest.mark.more
def test_mypy_takes_a_users_file_as_strictly_as_it_can(tmp_path):
    """With the types that are told: nothing of it is Any in silence."""
    (tmp_path / "user.py").write_text(USERS_CODE)
    config = ["--config-file", SOURCE.parent / "pyproject.toml"]  # strict; it knows which packages have no types
    command = [sys.executable, "-m", "mypy", *config, "--cache-dir", tmp_path / "cache", "user.py"]
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.stdout == "Success: no issues found in 1 source file\n", ended.stdout + ended.stderr


def test_the_shapes_of_every_package_are_enforced():
    """`make test-more` enforces the shapes of the packages that a file lists: a new one may not be left out."""
    enforced = (Path(__file__).parent / "enforced_shapes.txt").read_text()
    package = SOURCE / "regard"
    of_shapes = [each for each in package.rglob("*.py") if "regard._shapes import" in each.read_text()]
    names = {each.relative_to(package).parts[0].removesuffix(".py") for each in of_shapes} - {"_shapes"}
    assert len(names) > 5
    assert [name for name in sorted(names) if f"regard.{name}," not in enforced] == []
