"""What a page carries: rows that its own modules compute, held against the recording's."""

import pytest
import torch
from carried import holds, opened, recorded
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from masks import build, cases
from rows import minilm

import regard
from regard import mask
from regard.lens.map import AttentionMap
from regard.lens.look import run
from regard.attention.positions import ALiBi, T5Relative

BIASES = [None, "full", "one head", "keys", "-inf", "ALiBi", "T5"]

RECIPES = st.fixed_dictionaries(
    {
        "case": cases(least=1, most=6, depth=2),
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
        bias = T5Relative(heads, buckets=8, max_distance=16)
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
        build(case.fact) if recipe["masked"] and (group == 1 or case.heads == 1) else None,
        bias=bias,
        scale=recipe["scale"],
        softcap=recipe["softcap"],
        sinks=torch.randn(heads, generator=draws).to(dtype) if recipe["sinks"] else None,
    )


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(recipes=st.lists(RECIPES, min_size=30, max_size=30))
def test_every_row_of_any_attention_is_the_maps(node, recipes):
    """Many in one page, and as many pages as there are texts in a batch: starting node takes longer than all of them."""
    recording = recorded(*map(made, recipes))
    texts = [recording.to_html(batch=batch) for batch in range(max(m.shape[0] for m in recording.values()))]
    rows = sum(holds(page, recording, batch) for batch, page in enumerate(opened(node, *texts)))
    assert rows == sum(m.shape[:3].numel() for m in recording.values())
