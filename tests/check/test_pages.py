"""The pages of docs/mistakes: one for each mistake, as committed, with numbers that show it."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from regard import course
from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.course_numbers import X, example_settings
from regard.check.mistakes.recipe_examples import worked_example
from regard.check.mistakes.worked_example import FIRST_THAT_SHOWS_IT
from regard.check.pages import PROPERTIES_PAGE, STEPS, pages, write
from regard.check.properties.catalog import PROPERTIES
from regard.check.recipes.recipe import definition

FOLDER = Path(__file__).parents[2] / "docs" / "mistakes"


@pytest.fixture(scope="module")
def made():
    return pages()


def test_every_cause_has_a_page(made):
    assert set(made) == {"README.md", PROPERTIES_PAGE, *(f"{name}.md" for name in MISTAKES)}
    assert {known.step for known in MISTAKES.values()} <= set(STEPS)
    assert all(known.recipe or known.worked_example is not FIRST_THAT_SHOWS_IT for known in MISTAKES.values())
    assert all(f"]({name})" in made["README.md"] for name in made if name != "README.md")


def test_every_property_is_on_the_page_with_what_to_write(made):
    for known in PROPERTIES.values():
        _, _, said = made[PROPERTIES_PAGE].partition(f"### {known.id}\n")
        section = said.partition("\n#")[0]
        assert known.definition[1:] in section, known.id
        assert known.impact in section
        assert known.fix in section


def test_committed_as_written(made, tmp_path):
    """``python -m regard.check.pages docs/mistakes`` mends it."""
    write(tmp_path)
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert committed == {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == made


@pytest.mark.parametrize("arguments", [[], ["one", "other"]])
def test_the_command_wants_one_folder(arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pages.py", *arguments])
    with pytest.raises(SystemExit, match=r"^usage: python -m regard.check.pages FOLDER$"):
        runpy.run_path(sys.modules[pages.__module__].__file__, run_name="__main__")
    assert not any(tmp_path.iterdir())


def test_the_course_s_numbers(made):
    """The definition beside each mistake is what the documents print: 1.0100, 1.0641, ..."""
    torch.manual_seed(42)
    printed = course.SelfAttention(2)(X.float())
    torch.testing.assert_close(definition(example_settings()["one"].case).last[0].float(), printed)
    assert "| 1.0100 | 1.0641 |" in made["no-scale.md"]


def test_each_page_shows_the_mistake_in_numbers(made):
    for known in MISTAKES.values():
        page, example = made[f"{known.id}.md"], worked_example(known)
        assert "{" not in page, known.id
        assert "| nan " not in page, known.id
        assert known.example.replace("; ", "\n") in page
        assert all(f"https://github.com/{each.replace('#', '/issues/')}" in page for each in known.references)
        first = example.pairs[0]
        assert first.yours.shape != first.definition.shape or not first.yours.allclose(first.definition, atol=1e-3)
        assert all(line == line.rstrip() for line in page.splitlines())


def test_everything_counts_from_0(made):
    for name in set(made) - {"README.md", PROPERTIES_PAGE}:
        tables = re.findall(r"^\| \w+ \| yours.*\n\| ---.*\n(?:\|.*\n)+", made[name], re.MULTILINE)
        assert tables, name
        rows = [[int(row) for row in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] for table in tables]
        columns = [
            [int(column) for column in re.findall(rf"{side}: \w+ (\d+)", table)]
            for table in tables
            for side in ("yours", "definition")
        ]
        assert all(numbers == list(range(len(numbers))) for numbers in rows + columns), name
        named = re.findall(r"(?:[Tt]oken|[Qq]uery|[Kk]ey|position) (\d+)", made[name])
        assert all(int(number) in rows[0] for number in named), name
        assert not re.search("sample 2|head 4", made[name])
