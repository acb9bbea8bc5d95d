"""The README's Python runs as it stands, each block by itself, and its numbers are the ones that come out."""

import html
import re
import shlex
from pathlib import Path

import pytest
import torch

import regard

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 150
LARGEST_PICTURE = 300_000  # bytes
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


def test_it_is_read_in_one_sitting():
    assert len(README.splitlines()) <= MAX_LINES


@pytest.mark.parametrize("target", re.findall(r"\]\(([^):]+)\)", README))
def test_each_link_leads_to_a_file(target):
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("name", re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README))
def test_a_picture_is_small(name):
    assert (ROOT / name).stat().st_size < LARGEST_PICTURE


@pytest.mark.more
def test_the_picture_of_a_report_is_what_the_command_prints(command, monkeypatch):
    monkeypatch.chdir(ROOT / "docs" / "pictures")
    code, out, _ = command("check", "attention.py:CausalSelfAttention")
    drawn = re.sub(r"<[^>]*>", "", (ROOT / "docs/pictures/check.svg").read_text(encoding="utf-8"))
    words = {word for line in out.splitlines() for word in line.split()}
    assert code == 1
    assert {word for word in words if html.escape(word) not in drawn.replace("&#160;", " ")} == set()


@pytest.mark.more
def test_the_effects_are_those_that_the_readme_shows(command, monkeypatch):
    call, shown = re.search(r"\$ regard (effect .*)\n((?:.*\n)*?)```", README).groups()
    monkeypatch.setenv("COLUMNS", "110")
    code, out, err = command(*shlex.split(call))
    assert (code, err) == (0, "")
    lines = {line.rstrip() for line in out.splitlines()}
    assert [line for line in shown.splitlines() if line not in lines | {"..."}] == []


@pytest.mark.more
def test_the_default_decoder_answers_what_the_readme_shows(command):
    call, answer = re.search(r"\$ regard (generate --chat .*)\n(.*)\n", README).groups()
    code, out, _ = command(*shlex.split(call))
    assert (code, out) == (0, answer + "\n")
