"""The page's modules in node: their own unit tests, and their numbers against the definition's."""

import json
import re
from pathlib import Path

import pytest
import torch

import regard
from regard import mask

HERE = Path(__file__).parent
MODULES = Path(regard.__file__).parent / "views/html/static"


@pytest.mark.parametrize("path", sorted(HERE.glob("*.test.js")), ids=lambda path: path.name)
def test_unit_tests_of_the_modules(node, path):
    shown = node("--test", "--test-reporter=spec", path)
    assert re.search(r"pass [1-9]", shown), shown


def test_modules_import_their_neighbours_by_whole_names():
    """As browsers do it, and as the page's linker reads it."""
    for path in MODULES.rglob("*.js"):
        for line in re.findall(r"^import\b[^;]*;", path.read_text(encoding="utf-8"), re.MULTILINE):
            named = re.fullmatch(r'import \{[^}]*\} from "(\.\.?/[\w/]+\.js)";', line)
            assert named, f"{path.name}: {line}"
            assert (path.parent / named[1]).is_file(), f"{path.name} imports {named[1]}, which is not there"


def _cases():
    """Heads of 5 queries and 7 keys, with what attention can have alone and together."""
    alone = {
        "plain": {},
        "scale": {"scale": 0.7},
        "softcap": {"softcap": 1.5},
        "bias": {"bias": torch.linspace(-3, 3, 35, dtype=torch.float64).view(1, 5, 7)},
        "sink": {"sinks": torch.tensor([0.25], dtype=torch.float64)},
        "causal": {"mask": mask.causal()},
        "window": {"mask": mask.window(2)},
        "nothing to attend to": {"mask": mask.allowed(torch.arange(35).view(5, 7) % 7 < torch.arange(5)[:, None])},
    }
    together = {name: value for each in list(alone.values())[:6] for name, value in each.items()}
    return alone | {"together": together}


@pytest.mark.parametrize("options", _cases().values(), ids=_cases())
def test_steps_and_maps_are_the_definitions(node, options):
    q, k, v = (torch.randn(1, tokens, 4).double() for tokens in (5, 7, 7))  # float32 in value, as the page holds them
    expected = regard.steps(q, k, v, **options)
    head = {
        "q": q.flatten().tolist(),
        "k": k.flatten().tolist(),
        "v": v.flatten().tolist(),
        "dKey": 4,
        "dValue": 4,
        "queries": 5,
        "keys": 7,
        "scale": options.get("scale", 0.5),
        "softcap": options.get("softcap"),
        "sink": options["sinks"].item() if "sinks" in options else None,
        "bias": options["bias"].flatten().tolist() if "bias" in options else None,
        "allowed": (~torch.isneginf(expected.masked)).flatten().tolist() if "mask" in options else None,
    }
    found = json.loads(node("steps.js", said=json.dumps(head)))
    for name in ("scores", "scaled", "capped", "biased", "masked", "weights", "output"):
        rows = [[-torch.inf if number is None else number for number in row[name]] for row in found["rows"]]
        wanted = getattr(expected, name)[0]
        torch.testing.assert_close(torch.tensor(rows, dtype=torch.float64), wanted, rtol=1e-10, atol=1e-12)
    tile = torch.tensor(found["tile"]).view(5, 7)
    torch.testing.assert_close(tile, expected.weights[0].float(), rtol=1e-6, atol=1e-7)
