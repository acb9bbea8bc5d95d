"""What a page carries: rows that its own modules compute, held against the recording's."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import regard
from masks import build, cases
from regard import mask
from regard.attention.positions import ALiBi, T5Relative
from regard.lens.maps.map import AttentionMap
from regard.lens.text.run import run
from views.html.decoded import holds, opened, recorded
from views.html.rows import minilm

BIASES = [None, "full", "one head", "keys", "-inf", "ALiBi", "T5"]

RECIPES = st.fixed_dictionaries(
    {
        "case": cases(min_tokens=1, max_tokens=6, depth=2),
        "masked": st.booleans(),
        "group": st.integers(1, 3),
        "widths": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
        "seed": st.integers(0, 99),
        "size": st.sampled_from([0.1, 1.0, 4.0, 12.0]),
        "values": st.booleans(),
        "bias": st.sampled_from(BIASES),
        "scale": st.sampled_from([None, 0.3, -0.7, 0, 2.0]),
        "softcap": st.sampled_from([None, 0.5, 3, 30.0]),
        "sinks": st.booleans(),
    }
)
"""Whatever attention can have, as plain facts."""


def made(recipe):
    """The map of a recipe."""
    case, dtype, seed = recipe["case"], recipe["dtype"], recipe["seed"]
    draws = torch.Generator().manual_seed(seed)
    group = recipe["group"] if case.heads == 1 or not recipe["masked"] else 1
    batch, kv, queries, keys = case.batch, case.heads, case.queries, case.keys
    heads = kv * group
    d_key, d_value = recipe["widths"]
    shapes = ((heads, queries, d_key), (kv, keys, d_key), (kv, keys, d_value))
    q, k, v = ((recipe["size"] * torch.randn(batch, *shape, generator=draws)).to(dtype) for shape in shapes)
    bias = recipe["bias"]
    if bias == "ALiBi":
        bias = ALiBi(heads)
    elif bias == "T5":
        bias = T5Relative(heads, num_buckets=8, max_distance=16)
    elif bias is not None:
        shapes = {"full": (batch, heads, queries, keys), "one head": (queries, keys), "keys": (1, 1, 1, keys)}
        table = torch.randn(shapes.get(bias, (heads, queries, keys)), generator=draws)
        if bias == "-inf":
            table[torch.rand(table.shape, generator=draws) < 0.4] = -torch.inf
        bias = table.to(dtype)
    return AttentionMap(
        q,
        k,
        v if recipe["values"] else None,
        build(case.spec) if recipe["masked"] and (group == 1 or case.heads == 1) else None,
        bias=bias,
        scale=recipe["scale"],
        softcap=recipe["softcap"],
        sinks=torch.randn(heads, generator=draws).to(dtype) if recipe["sinks"] else None,
    )


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(recipes=st.lists(RECIPES, min_size=20, max_size=20))
def test_every_row_of_any_attention_is_the_maps(node, recipes):
    """Many in one page, and as many pages as there are texts: starting node takes longer than all of them."""
    recording = recorded(*map(made, recipes))
    texts = [recording.to_html(batch=batch) for batch in range(max(m.shape[0] for m in recording.values()))]
    rows = sum(holds(page, recording, batch) for batch, page in enumerate(opened(node, *texts)))
    assert rows == sum(m.shape[:3].numel() for m in recording.values())


def test_rows_of_a_real_model(node):
    """Of a sentence every row of every head, of a long text some of each."""
    short, long = (
        minilm(),
        run(" ".join(["Write a poem about a man who fishes, slowly, on a river bank."] * 31), load()),
    )
    assert long.num_tokens == 498
    pages = opened(node, short.to_html()), opened(node, long.recording.to_html(), every=64)
    for (page,), recording in zip(pages, (short, long.recording), strict=True):
        assert [about["path"] for about in page.facts["attentions"]] == list(recording)
        assert (
            len(page.whole)
            == (72 if page.facts["omitted"] == [] else 72 - int(page.facts["omitted"][0].split()[0]))
            > 60
        )
        holds(page, recording)


def load():
    return regard.load("sentence-transformers/all-MiniLM-L6-v2")


def test_outputs_and_facts_are_the_maps(node):
    recording = minilm()
    (page,) = opened(node, recording.to_html())
    kinds = recording.head_types()
    for path, heads in page.attentions.items():
        m, about = recording[path], page.about(path)
        exact = m.dense()[0]
        output = (exact @ m.v[0]).double()
        pooled, far = m.pooled(14, 14)[0], m.distance().mean[0].mean(-1)
        assert about["max_error"] == pytest.approx(m.error)
        assert about["verified"] is True
        assert about["scale"] == pytest.approx(32**-0.5)
        for place, head in enumerate(heads):
            assert float((head.outputs - output[place]).abs().max()) < 0.02 * float(output[place].std())
            assert head.facts["head_type"] == kinds[path].names[place]
            assert head.facts["entropy"] == pytest.approx(float(m.entropy()[0, place].mean()), abs=1e-5)
            assert head.facts["distance"] == pytest.approx(float(far[place]), abs=1e-4)
            assert head.facts["first_token_share"] == pytest.approx(
                float(kinds[path].scores["attention sink"][place]), abs=1e-6
            )
            # In steps of a 255th of the root of the largest.
            roots = (head.picture / head.picture.max()).sqrt(), (pooled[place] / pooled[place].max()).sqrt()
            assert float((roots[0] - roots[1]).abs().max()) <= 0.51 / 255
            words = exact[place, :, 1:12].clone()  # neither [CLS] nor the full stop nor [SEP]
            words[torch.arange(1, 12), torch.arange(11)] = -1.0
            best = words.flatten().topk(12)
            assert [pair["weight"] for pair in head.facts["pairs"]] == pytest.approx(best.values.tolist(), abs=1e-6)
            for pair in head.facts["pairs"]:
                assert float(exact[place, pair["query"], pair["key"]]) == pytest.approx(pair["weight"], abs=1e-6)


def test_answers_of_a_map_that_is_not_written_out_are_the_same(monkeypatch):
    """Large maps answer by themselves, small ones by their weights."""
    from regard.views.html import facts

    q, k = torch.randn(1, 2, 40, 8) * 2, torch.randn(1, 2, 50, 8)
    m = AttentionMap(q, k, None, mask.causal(), sinks=torch.tensor([0.5, 2.0]))
    dense = facts.MapStatistics(m, 0)
    monkeypatch.setattr(facts, "MAX_DENSE_WEIGHTS", 0)
    asked = facts.MapStatistics(m, 0)
    assert dense.weights is not None
    assert asked.weights is None
    for one, other in zip(
        *((a.entropy(), a.distance(10), *a.top(3), a.pooled(64), a.pooled(20), a.pooled(10)) for a in (dense, asked)),
        strict=True,
    ):
        torch.testing.assert_close(one, other.to(one.dtype), atol=1e-5, rtol=1e-4)


def test_queries_without_names_are_the_last_positions():
    m = AttentionMap(torch.randn(1, 1, 2, 4), torch.randn(1, 1, 5, 4), None, mask.causal())
    texts, facts = told(m)
    assert texts.facts() == [{"tokens": ("0", "1", "2", "3", "4")}]
    assert (facts["query_offset"], facts["query_text"], facts["key_text"]) == (3, 0, 0)
    texts, facts = told(AttentionMap(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 2, 4)), kind="cross")
    assert texts.facts() == [{"tokens": ("0", "1")}, {"tokens": ("0", "1", "2")}]
    assert (facts["query_offset"], facts["query_text"], facts["key_text"]) == (0, 1, 0)


def told(m, kind="self"):
    from regard.views.html.facts import PageTexts, attention_facts

    texts = PageTexts()
    return texts, attention_facts(recorded(m, kind=kind), "layers.0", "self", 0, texts).facts


def test_same_recording_same_page():
    recording = minilm()
    assert recording.to_html() == recording.to_html() == minilm().to_html()
