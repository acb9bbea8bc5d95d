"""The page of supported models has the models that the tests run, no fewer and no more."""

import re

import pytest

pytest.importorskip("transformers")

from documentation.conftest import DOCS
from integrations.tiny_models import CASES, HEADS
from lens.model_cases import MODEL_CASES
from regard.pretrained.families import FAMILIES

PAGE = (DOCS / "reference" / "models.md").read_text(encoding="utf-8")
KINDS = {
    "causal": "decoder",
    "masked": "encoder",
    "texts": "encoder-decoder",
    "sound": "speech to text",
    "image": "images",
}
MASKS = {"": "padding, and causal in a decoder", "image": "none"}


def section(title):
    """What stands below a heading of the page, up to the next heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no section {title!r}"
    return found[1]


def names_in_table(text, column):
    """The names in backticks of one column of the section's table."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| `", "| *"))]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[column])]


def test_the_table_of_families_is_what_load_reads():
    assert names_in_table(section("Checkpoints that regard loads"), 0) == list(FAMILIES)


def test_the_table_of_model_types_is_what_the_tests_run_on_regard():
    rows = {}
    for case in CASES:
        rows.setdefault((KINDS[case.kind], MASKS.get(case.mask, case.mask)), []).append(case.model_type)
    expected = "\n".join(
        f"| *{kind}* | {mask} | {', '.join(f'`{name}`' for name in sorted(names))} |"
        for (kind, mask), names in rows.items()
    )
    assert expected in section('Model types under `attn_implementation="regard"`'), f"the table should be:\n{expected}"
    assert f"{len(CASES)} types" in PAGE
    assert set(KINDS) == set(HEADS)


def test_the_list_of_watched_models_is_what_the_tests_watch():
    (line,) = re.findall(r"^Compared with.*?$", section("What `watch` sees"), re.MULTILINE)
    assert re.findall(r"`([^`]+)`", line) == list(MODEL_CASES)
