"""The page's modules in node: their own unit tests, and their numbers against the definition's."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

import regard
from regard import mask

HERE = Path(__file__).parent


def test_unit_tests_of_the_modules(node_executable):
    """All of them in one process."""
    code = "for (const file of process.argv.slice(1)) await import(file)"
    command = [node_executable, "--test-reporter=spec", "--input-type=module", "--eval", code]
    ended = subprocess.run([*command, *HERE.glob("*.test.js")], capture_output=True, encoding="utf-8", timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"pass [1-9]\d", ended.stdout), ended.stdout


ALONE = {
    "plain": {},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": torch.linspace(-3, 3, 35, dtype=torch.float64).view(1, 5, 7)},
    "sink": {"sinks": torch.tensor([0.25], dtype=torch.float64)},
    "causal": {"mask": mask.causal()},
    "window": {"mask": mask.window(2)},
    "nothing to attend to": {"mask": mask.allowed(torch.arange(35).view(5, 7) % 7 < torch.arange(5)[:, None])},
}
TOGETHER = {name: value for case in list(ALONE.values())[:6] for name, value in case.items()}


@pytest.mark.parametrize("options", [*ALONE.values(), TOGETHER], ids=[*ALONE, "together"])
def test_steps_and_maps_are_the_definitions(node, options):
    q, k, v = (torch.randn(1, tokens, 4).double() for tokens in (5, 7, 7))  # float32 in value, as the page holds them
    expected = regard.steps(q, k, v, **options)
    sink = options["sinks"].item() if "sinks" in options else None
    head = {name: t.flatten().tolist() for name, t in (("q", q), ("k", k), ("v", v))}
    head |= {"dKey": 4, "dValue": 4, "queries": 5, "keys": 7, "sink": sink}
    head |= {"scale": options.get("scale", 0.5), "softcap": options.get("softcap")}
    head["bias"] = options["bias"][0].tolist() if "bias" in options else None
    head["allowed"] = expected.masked.isfinite()[0].tolist() if "mask" in options else None
    lse = expected.masked[0].logsumexp(-1)
    lse = lse if sink is None else torch.logaddexp(lse, torch.tensor(sink))
    by_rows, by_lse = (node("head", {**head, "lse": sums}) for sums in (None, lse.nan_to_num(neginf=-1e30).tolist()))
    for name in ("scores", "scaled", "capped", "biased", "masked", "weights", "output"):
        rows = [[-torch.inf if number is None else number for number in row[name]] for row in by_rows["rows"]]
        found = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(found, getattr(expected, name)[0], rtol=1e-10, atol=1e-12)
    for found in (by_rows, by_lse):
        tile = torch.tensor(found["tile"]).view(5, 7)
        torch.testing.assert_close(tile, expected.weights[0].float(), rtol=1e-5, atol=1e-6)


EDITS = {
    "none": {},
    "scores": {"scores": {"1": -4, "3": 2.5}},
    "scale": {"scale": 2},
    "temperature": {"temperature": 0.25},
    "mask": {"mask": {"0": False, "4": True}},
    "removed": {"removedKeys": [1, 2], "mask": {"1": True}},
}


@pytest.mark.parametrize("edits", [*EDITS.values(), {k: v for e in EDITS.values() for k, v in e.items()}], ids=str)
def test_what_if_edits_change_the_row_as_the_definition_does(node, edits):
    q, k = torch.randn(5, 4).double(), torch.randn(7, 4).double()
    allowed = (torch.arange(7) <= torch.arange(5)[:, None]).tolist()
    head = {"q": q.flatten().tolist(), "k": k.flatten().tolist(), **dict.fromkeys(("v", "lse", "bias"))}
    head |= {"dKey": 4, "dValue": 0, "queries": 5, "keys": 7, "allowed": allowed}
    rows = node("head", {**head, "scale": 0.5, "softcap": 3, "sink": 0.25, "edits": edits})["rows"]
    for query, row in enumerate(rows):
        scores, may = k @ q[query], torch.tensor(allowed[query])
        for key, score in edits.get("scores", {}).items():
            scores[int(key)] = score
        for key, value in edits.get("mask", {}).items():
            may[int(key)] = value
        may[edits.get("removedKeys", [])] = False
        capped = (3 * torch.tanh(scores * edits.get("scale", 0.5) / 3)).masked_fill(~may, -torch.inf)
        exact = (torch.cat([capped, torch.tensor([0.25])]) / edits.get("temperature", 1)).softmax(0)[:-1]
        torch.testing.assert_close(torch.tensor(row["weights"], dtype=torch.float64), exact, rtol=1e-6, atol=1e-7)
