"""What a page carries: rows that its own modules compute, held against the recording's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from grids import some_examples
from masks import build, cases
from regard import mask
from regard.attention.positions import ALiBi, T5Relative
from regard.lens.maps.map import AttentionMap
from regard.views.html.facts import MapStatistics
from views.html.decoded import assert_rows_are_the_maps, decode
from views.recordings import random_map, recorded, river

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
        "bias": st.sampled_from([None, "full", "one head", "keys", "-inf", "ALiBi", "T5"]),
        "scale": st.sampled_from([None, 0.3, -0.7, 0, 2.0]),
        "softcap": st.sampled_from([None, 0.5, 3, 30.0]),
        "sinks": st.booleans(),
    }
)
"""Whatever attention can have, as plain facts."""


def made(recipe):
    """The map of a recipe."""
    case, dtype, draws = recipe["case"], recipe["dtype"], torch.Generator().manual_seed(recipe["seed"])
    group = recipe["group"] if case.heads == 1 or not recipe["masked"] else 1
    batch, kv, queries, keys = case.batch, case.heads, case.queries, case.keys
    heads, (d_key, d_value) = kv * group, recipe["widths"]

    def randn(*shape, size=1.0):
        return (size * torch.randn(shape, generator=draws)).to(dtype)

    tables = {"full": (batch, heads, queries, keys), "one head": (queries, keys), "keys": (1, 1, 1, keys)}
    bias = randn(*tables.get(recipe["bias"], (heads, queries, keys)))
    if recipe["bias"] == "-inf":
        bias[torch.rand(bias.shape, generator=draws) < 0.4] = -torch.inf
    modules = {None: None, "ALiBi": ALiBi(heads), "T5": T5Relative(heads, num_buckets=8, max_distance=16)}
    shapes = ((heads, queries, d_key), (kv, keys, d_key), (kv, keys, d_value))
    q, k, v = (randn(batch, *shape, size=recipe["size"]) for shape in shapes)
    return AttentionMap(
        q,
        k,
        v if recipe["values"] else None,
        build(case.spec) if recipe["masked"] else None,
        bias=modules.get(recipe["bias"], bias),
        sinks=randn(heads) if recipe["sinks"] else None,
        **{name: recipe[name] for name in ("scale", "softcap")},
    )


@some_examples(0.3)
@given(recipes=st.lists(RECIPES, min_size=2, max_size=4))
def test_every_row_of_any_attention_is_the_maps(node, recipes):
    recording = recorded(*map(made, recipes))
    batches = range(max(m.shape[0] for m in recording.values()))
    pages = [decode(node, recording.to_html(batch=batch)) for batch in batches]
    rows = sum(assert_rows_are_the_maps(page, recording, batch) for batch, page in enumerate(pages))
    assert rows == sum(m.shape[:3].numel() for m in recording.values())


def test_a_recording_without_tokens_has_the_name_of_its_model(node, tmp_path):
    model = regard.MultiHeadAttention(8, 2)
    with regard.watch(model) as seen:
        model(torch.randn(1, 3, 8))
    seen.save(tmp_path / "seen.safetensors")
    facts = decode(node, regard.Recording.load(tmp_path / "seen.safetensors").to_html()).facts
    assert (facts["title"], facts["model"]) == ("MultiHeadAttention", "MultiHeadAttention")


def test_rows_outputs_and_facts_are_the_maps(node, river_page):
    page, types = decode(node, river_page[1].read_text()), river().head_types()
    assert (len(page.whole), page.facts["omitted"]) == (72, [])
    assert assert_rows_are_the_maps(page, river()) == 72 * 14
    for path, heads in page.attentions.items():
        m, about = river()[path], page.about(path)
        exact = m.dense()[0]
        output, pooled = (exact @ m.v[0]).double(), m.pooled(14, 14)[0]
        numbers = m.entropy()[0].mean(-1), m.distance().mean[0].mean(-1), types[path].scores["attention sink"]
        found = [about[name] for name in ("max_error", "scale", "verified")]
        assert found == pytest.approx([m.error, 32**-0.5, True])
        assert [head.facts["head_type"] for head in heads] == list(types[path].names)
        for i, head in enumerate(heads):
            facts = head.facts
            assert float((head.outputs - output[i]).abs().max()) < 0.02 * float(output[i].std())
            found = [facts[name] for name in ("entropy", "distance", "first_token_share")]
            assert found == pytest.approx([float(t[i]) for t in numbers], abs=1e-5)
            # In steps of a 255th of the root of the largest.
            roots = (head.picture / head.picture.max()).sqrt(), (pooled[i] / pooled[i].max()).sqrt()
            assert float((roots[0] - roots[1]).abs().max()) <= 0.51 / 255
            words = exact[i, :, 1:12].clone()  # neither [CLS] nor the full stop nor [SEP]
            words[torch.arange(1, 12), torch.arange(11)] = -1.0
            best = [pytest.approx((weight, weight), abs=1e-6) for weight in words.flatten().topk(12).values.tolist()]
            pairs = facts["pairs"]
            assert [(pair["weight"], float(exact[i, pair["query"], pair["key"]])) for pair in pairs] == best


def test_statistics_are_the_same_with_all_weights_at_once_and_without():
    q, k = torch.randn(1, 2, 40, 8) * 2, torch.randn(1, 2, 50, 8)
    m = AttentionMap(q, k, None, mask.causal(), sinks=torch.tensor([0.5, 2.0]))
    dense, streamed = MapStatistics(m, 0), MapStatistics(m, 0)
    streamed.release_weights()
    assert dense.weights is not None
    one, other = ((s.entropy(), s.distance(10), *s.top(3), *map(s.pooled, (64, 20, 10))) for s in (dense, streamed))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, check_dtype=False)


def test_of_keys_that_are_neighbours_the_first_and_the_end_are_carried(node):
    allowed = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    seen = recorded(random_map(4, 4, mask=mask.allowed(allowed)))
    page = decode(node, seen.to_html())
    assert page.about("layers.0")["first_key"] is not None
    assert assert_rows_are_the_maps(page, seen) == 8


@pytest.mark.parametrize(
    ("shape", "kind", "counts", "place"),
    [((2, 5), "self", [5], (3, 0, 0)), ((3, 2), "cross", [2, 3], (0, 1, 0)), ((2, 5), "cross", [5, 2], (0, 1, 0))],
)
def test_queries_without_names_are_the_last_positions_or_a_text_of_their_own(node, shape, kind, counts, place):
    page = decode(node, recorded(random_map(*shape, mask=mask.padding([shape[1]])), kind=kind).to_html())
    assert page.facts["texts"] == [{"tokens": [str(i) for i in range(count)]} for count in counts]
    assert tuple(page.about("layers.0")[name] for name in ("query_offset", "query_text", "key_text")) == place
