"""The measure of `check` on collected code: which cases it reads, keeps and counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collected.cases import cases_in, classes_of
from collected.faults import faults_of

TESTS = Path(__file__).parents[1]
ATTENTION = """
import torch

def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1){scale}, dim=-1) @ v
"""
CASES = {
    "scaled": (" / q.shape[-1] ** 0.5", "right"),
    "unscaled": ("", "wrong"),
    "unscaled-mended": (" / q.shape[-1] ** 0.5", "wrong"),  # a label that is false, which the table has to show
}


def _write(folder: Path) -> None:
    for name, (scale, label) in CASES.items():
        (folder / name).mkdir()
        (folder / name / "subject.py").write_text(ATTENTION.format(scale=scale))
        (folder / name / "case.json").write_text(json.dumps({"target": "attention", "label": label}))


@pytest.mark.more
def test_a_folder_of_cases_is_checked_and_counted(tmp_path):
    _write(tmp_path)
    command = [sys.executable, "-m", "collected", str(tmp_path), "--processes", "1"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    failed, *table = done.stdout.splitlines()
    assert failed.startswith("unscaled-mended: wrong, told right in ")
    assert table[2].replace(" ", "") == "|right|1|1|0|0|0|0|0|100%|"
    assert table[3].replace(" ", "") == "|wrong|2|1|0|0|1|0|0|50%|"
    assert table[4].startswith("seconds: median ")


def test_a_third_is_kept_and_a_mended_twin_goes_with_its_case(tmp_path):
    _write(tmp_path)
    kept = {case.name: case.kept for case in cases_in(tmp_path)}
    assert kept["unscaled"] == kept["unscaled-mended"]


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ValueError, match="holds no case"):
        [*cases_in(tmp_path)]
    _write(tmp_path)
    (tmp_path / "scaled" / "case.json").write_text('{"target": "attention", "label": "fine"}')
    with pytest.raises(ValueError, match=r'needs a "target" and a "label" of right, design, wrong'):
        [*cases_in(tmp_path)]
    with pytest.raises(ValueError, match="no_such_package is no installed package"):
        classes_of("no_such_package", count=1, seed=0)


def test_attentions_of_an_installed_package_are_drawn():
    (case,) = classes_of("torch.nn.modules", count=1, seed=0)
    assert case.target == "torch.nn.modules.activation:MultiheadAttention"


@pytest.mark.more
def test_a_fault_that_changes_what_is_computed_becomes_a_case(tmp_path):
    _write(tmp_path)
    command = [sys.executable, "-m", "collected.mutants", str(tmp_path), str(tmp_path / "faults"), "--count", "2"]
    subprocess.run([*command, "--seed", "1"], cwd=TESTS, check=True)
    cases = list(cases_in(tmp_path / "faults"))
    assert len(cases) == 2
    for each in cases:
        text = Path(each.target.rpartition(":")[0]).read_text()
        assert each.label == "wrong"
        assert text != ATTENTION.format(scale=CASES["scaled"][0])


def test_faults_are_of_axes_names_and_lines():
    kinds = {each.kind for each in faults_of(ATTENTION.format(scale=CASES["scaled"][0]), "subject.py")}
    assert {"name", "operator", "operand gone", "axis", "argument gone", "arguments swapped", "method gone"} <= kinds
