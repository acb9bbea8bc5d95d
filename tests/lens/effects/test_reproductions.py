"""Three results of the literature on SmolLM2, by the code that writes them to BENCHMARKS.md, on fewer prompts."""

import statistics

import pytest
from bench import reproductions as bench

import regard

MODEL = "smollm2"


@pytest.mark.more
def test_the_answer_needs_the_country_in_the_late_layers_only():
    before, after = bench.knocked_out(regard.load(MODEL), "France", "Paris", [0, 3, 6, 21, 24, 27])
    early, late = ([probability / before - 1 for probability in part] for part in (after[:3], after[3:]))
    assert before == pytest.approx(0.7725, abs=1e-3)
    assert all(-0.1 < change < 0.1 for change in early)
    assert all(-0.95 < change < -0.85 for change in late)


@pytest.mark.slow
def test_without_its_induction_heads_the_model_loses_most_of_its_gain_on_repeated_tokens():
    model, ids = regard.load(MODEL), bench.induction_text()
    found = bench.induction_heads(model, ids)
    paths = [f"blocks.{layer}.attention" for layer in range(30)]
    whole = bench.gain(model, ids, [])
    others = [bench.gain(model, ids, bench.random_heads(paths, 9, found, seed)) for seed in range(10)]
    assert bench.gain(model, ids, found) < 0.5 * whole
    assert statistics.median(others) > 0.9 * whole


@pytest.mark.slow
def test_the_heads_that_matter_for_indirect_objects_are_not_those_that_look_at_the_name():
    rows = list(bench.ioi(10, 10))
    assert rows[0].speed == "above 0 on 10 of 10 prompts"
    assert "head 23.3" in {row.case for row in rows[1:4]}
    attention = float(rows[-1].over_the_floor)
    estimate = float(rows[-1].at_least)
    assert attention < 0.3 < 0.8 < estimate


@pytest.mark.more
def test_prompts_and_their_corrupted_ones_have_the_same_number_of_tokens():
    model = regard.load(MODEL)
    texts = [text for prompt in bench.indirect_objects(20) for text in (prompt[0], prompt[3])]
    assert len({len(model.encode(text).ids) for text in texts}) == 1
    assert all(len(model.encode(f" {name}").ids) == 1 for name in bench.NAMES)
