"""The README's Python runs as it stands, each block by itself, and its numbers are the ones that come out."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import regard
from regard.views.terminal.console import console_for
from regard.views.terminal.explanation import draw
from weights import RIVER, minilm

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


# The default decoder takes seconds to load.
@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=pytest.mark.more if "smollm2" in block else ()) for block in BLOCKS],
    ids=lambda block: re.sub(r"\W+", " ", block)[-30:],
)
def test_each_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_the_course_gives_the_numbers_shown():
    torch.manual_seed(42)
    attention = regard.course.SelfAttention(d_model=2, row_dim=0, col_dim=1)
    output = attention(torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]]))
    shown = "[" + ", ".join(f"[{a:.4f}, {b:.4f}]" for a, b in output.tolist()) + "]"
    assert f"attention(x)  # {shown}" in README


def test_the_plan_is_the_one_shown():
    x = torch.empty(1, 1, 1, 64).expand(1, 12, 16_384, 64)
    assert f"# {regard.plan(x, x, x, regard.mask.window(256))}\n" in README


def test_the_command_shows_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "shown").open("w+", encoding="utf-8") as stream:
        draw(regard.explain(RIVER, "bank", minilm()), console_for(stream))
        stream.seek(0)
        shown = {line.rstrip() for line in stream}
    block = re.search(r"```\n\$ regard explain.*?```", README, re.DOTALL)[0]
    lines = [line for line in block.splitlines()[2:-1] if line != "..." and not line.startswith("The proof holds")]
    assert len(lines) > 12
    assert set(lines) <= shown


@pytest.mark.more
def test_the_effects_are_those_that_the_readme_shows(command, monkeypatch):
    call, shown = re.search(r"\$ regard (effect .*)\n((?:.*\n)*?)```", README).groups()
    monkeypatch.setenv("COLUMNS", "110")
    code, out, err = command(*shlex.split(call))
    assert (code, err) == (0, "")
    lines = {line.rstrip() for line in out.splitlines()}
    assert [line for line in shown.splitlines() if line not in lines] == []


@pytest.mark.more
def test_the_default_decoder_answers_what_the_readme_shows(command):
    call, answer = re.search(r"\$ regard (generate --chat .*)\n(.*)\n", README).groups()
    code, out, err = command(*shlex.split(call))
    assert (code, out) == (0, answer + "\n")
    assert err.split(",")[0] + "," in README
