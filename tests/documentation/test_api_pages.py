"""The reference of the API: every public name is documented, beside an example that runs when the site is built."""

import re

import pytest

import regard
from documentation.conftest import DOCS

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "api").glob("*.md")}
DOCUMENTED = {name for text in PAGES.values() for name in re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)}


def public_names():
    """Every name of regard, and those of its modules that are reached by a name of their own."""
    modules = {
        "cache": regard.cache,
        "check": regard.check,
        "course": regard.course,
        "mask": regard.mask,
        "positions": regard.positions,
        "transformer": regard.transformer,
    }
    names = {f"regard.{name}" for name in regard.__all__ if name not in {*modules, "metrics"}}
    names |= {f"regard.{module}.{name}" for module, value in modules.items() for name in value.__all__}
    return names | {f"regard.metrics.{name}" for name in ("cosine", "kl", "log_prob", "logit_difference", "loss")}


@pytest.mark.parametrize("name", sorted(public_names()))
def test_a_public_name_is_documented(name):
    assert name in DOCUMENTED


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"index"}))
def test_each_section_of_a_page_has_an_example(page):
    sections = re.split(r"^## ", PAGES[page], flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if "```{code-cell}" not in section] == []
