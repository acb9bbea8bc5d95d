"""The pages of docs/mistakes: one for each mistake, as committed, with numbers that show it."""

import re
from pathlib import Path

import pytest
import torch

from regard import course
from regard.check.causes import MISTAKES
from regard.check.pages import FIXES, STEPS, pages, write
from regard.check.recipe import definition
from regard.check.worked import BEHAVIOUR, SETTINGS, X, worked

FOLDER = Path(__file__).parents[2] / "docs" / "mistakes"
MADE = pages()


def test_every_cause_has_a_page():
    assert set(MADE) == {"README.md", *(f"{name}.md" for name in MISTAKES)}
    assert set(FIXES) == set(MISTAKES)
    assert {known.step for known in MISTAKES.values()} <= set(STEPS)
    assert {name for name, known in MISTAKES.items() if not known.choices} - {"scale-constant"} == set(BEHAVIOUR)


def test_committed_as_written(tmp_path):
    """``python -m regard.check.pages docs/mistakes`` mends it."""
    write(tmp_path)
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert committed == {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == MADE


def test_the_course_s_numbers():
    """The definition beside each mistake is what the documents print: 1.0100, 1.0641, ..."""
    torch.manual_seed(42)
    printed = course.SelfAttention(2)(X.float())
    output = definition(SETTINGS["one"].case).last
    torch.testing.assert_close(output[0].float(), printed)
    assert "| 1.0100 | 1.0641 |" in MADE["no-scale.md"]


@pytest.mark.parametrize("known", MISTAKES.values(), ids=lambda known: known.id)
def test_page(known):
    page, example = MADE[f"{known.id}.md"], worked(known)
    assert "{" not in page
    assert "| nan " not in page
    assert known.example.replace("; ", "\n") in page
    assert all(f"https://github.com/{each.replace('#', '/issues/')}" in page for each in known.references)
    first = example.pairs[0]
    assert first.yours.shape != first.definition.shape or not first.yours.allclose(first.definition, atol=1e-3)
    assert all(line == line.rstrip() for line in page.splitlines())


@pytest.mark.parametrize("name", sorted(set(MADE) - {"README.md"}))
def test_everything_counts_from_0(name):
    tables = re.findall(r"^\| \w+ \| yours.*\n\| ---.*\n(?:\|.*\n)+", MADE[name], re.MULTILINE)
    assert tables
    rows = [[int(row) for row in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] for table in tables]
    assert rows == [list(range(len(each))) for each in rows]
    for table in tables:
        for side in ("yours", "definition"):
            columns = [int(column) for column in re.findall(rf"{side}: \w+ (\d+)", table)]
            assert columns == list(range(len(columns)))
    named = re.findall(r"(?:[Tt]oken|[Qq]uery|[Kk]ey|position) (\d+)", MADE[name])
    assert all(int(number) in rows[0] for number in named)
    assert not re.search("sample 2|head 4", MADE[name])


def test_index_links_every_page():
    assert all(f"]({name})" in MADE["README.md"] for name in MADE if name != "README.md")
