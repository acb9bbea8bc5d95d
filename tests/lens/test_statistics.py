"""Every statistic of a map, against the same computed from the dense map in float64."""

from contextlib import ExitStack

import pytest
import torch
from bench.timing import peak_mb
from hypothesis import given
from hypothesis import strategies as st

import masks
from cases import Sizes
from grids import grid, some_examples
from lens.statistics_by_definition import LIMIT, Dense, assert_every_statistic, assert_near, assert_top
from regard import mask
from regard.attention.positions import ALiBi, T5Relative
from regard.lens import AttentionMap


class LargeMap(AttentionMap):
    """Computes as maps of millions of weights do: in float32, few scores at once."""

    max_float64_weights = 0
    scores_at_once = 1


PRECISIONS = {
    "float64": (AttentionMap, Sizes()),
    "float32": (LargeMap, Sizes()),
    "float32, small blocks": (LargeMap, Sizes(dense=0, tile_rows=8, tile_columns=4)),
}


@pytest.fixture
def make_map(request):
    """Makes maps that compute as maps of a size do; the precision is the test's parameter."""
    kind, sizes = PRECISIONS[request.getfixturevalue("precision")]
    with sizes.apply():
        yield kind


SCALES = (None, None, 1.0, 0.2, -0.7, 0.0)
BIASES = ("", "", "of pairs", "of keys", "blocks", "alibi", "t5")


def options_of(heads, queries, keys, *, sinks, softcap, scale, bias):
    """Nothing, or any of what changes scores and weights."""
    options: dict[str, Any] = {"scale": scale}
    if sinks:
        options["sinks"] = torch.linspace(-1, 2, heads)
    if softcap:
        options["softcap"] = 1.5
    match bias:
        case "of pairs":
            options["bias"] = torch.linspace(-1, 1, queries * keys).sin().view(queries, keys) * 3
        case "of keys":
            options["bias"] = torch.linspace(-2, 2, heads * keys).view(heads, 1, keys)
        case "blocks":
            options["bias"] = torch.zeros(keys).masked_fill(torch.arange(keys) % 3 == 1, -torch.inf)
        case "alibi":
            options["bias"] = ALiBi(heads)
        case "t5":
            options["bias"] = T5Relative(heads, num_buckets=8, max_distance=16).requires_grad_(False)
    return options


@settings(max_examples=40, deadline=None)
@given(
    case=masks.cases(max_tokens=17, min_tokens=1, depth=2),
    group=st.integers(1, 2),
    width=st.sampled_from([1, 3, 8]),
    size=st.sampled_from([0.3, 1.0, 6.0]),
    sinks=st.booleans(),
    softcap=st.sampled_from([False, False, True]),
    scale=st.sampled_from(SCALES),
    bias=st.sampled_from(BIASES),
)
def test_any_mask_with_any_options(case, group, width, size, sinks, softcap, scale, bias):
    coins = torch.Generator().manual_seed(0)
    heads = case.heads
    q = torch.randn(case.batch, heads, case.queries, width, generator=coins) * size
    k = torch.randn(case.batch, max(1, heads // group), case.keys, width, generator=coins)
    options = options_of(heads, case.queries, case.keys, sinks=sinks, softcap=softcap, scale=scale, bias=bias)
    who = masks.build(case.spec)
    dense = weights(q, k, who, **options)
    for small in (prepared.FLOAT64_MAX_WEIGHTS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepared, "FLOAT64_MAX_WEIGHTS", small)
            assert_every_statistic(AttentionMap(q, k, None, who, **options), dense)


TOKENS = 40
STEPS = torch.tensor([2, 3])[:, None, None, None]
MASKS = {
    "full": None,
    "causal": mask.causal(),
    "causal, early": mask.causal(offset=-4),
    "padding": mask.padding([TOKENS, 13]),
    "padding, one row of nothing": mask.padding([TOKENS, 0]) & mask.causal(),
    "padding on the left": mask.allowed((torch.arange(TOKENS) >= 9)[None, None, None]) & mask.causal(),
    "window": mask.window(5),
    "window on both sides": mask.window(4, 2) & mask.padding([30, 40]),
    "window and causal": mask.window(4, 2) & mask.causal(),
    "documents": mask.documents([0] * 9 + [1] * 20 + [2] * 11) & mask.causal(),
    "documents with windows": mask.documents([0] * 9 + [1] * 20 + [2] * 11) & mask.window(3, 1),
    "pairs": mask.documents([0] * 9 + [1] * 20 + [2] * 11, [2] * 13 + [0] * 7 + [1] * 20),
    "prefix": mask.prefix([3, 9]),
    "predicate": mask.where(lambda i, j: (i - j) % STEPS == 0) & mask.causal(),
    "nobody": mask.blocked(torch.ones(TOKENS, 1, dtype=torch.bool)),
    "some queries": mask.allowed((torch.arange(TOKENS) % 3 > 0)[:, None]),
}
OPTIONS = {
    "plain": {},
    "sinks": {"sinks": torch.linspace(-1, 3, 4)},
    "bias": {"bias": torch.linspace(-1, 1, TOKENS * TOKENS).sin().view(TOKENS, TOKENS)},
    "ALiBi and sinks": {"bias": ALiBi(4), "sinks": torch.linspace(-1, 3, 4)},
    "softcap": {"softcap": 2.0, "sinks": torch.linspace(-1, 3, 4)},
}


@pytest.mark.parametrize(
    ("name", "option", "precision"),
    [
        # Each mask meets each option; every other time in small blocks, and the rest is slow.
        pytest.param(
            name, option, kind, marks=() if (m + o) % 2 == n else pytest.mark.slow, id=f"{name}-{option}-{kind}"
        )
        for m, name in enumerate(MASKS)
        for o, option in enumerate(OPTIONS)
        for n, kind in enumerate(PRECISIONS[1:])
    ],
    indirect=["precision"],
)
# The shape checks are half of its time, and on in the test above.
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_every_way_to_the_kernels(name, option, precision):
    q, k = torch.randn(2, 4, TOKENS, 16), torch.randn(2, 2, TOKENS, 16) + 4
    dense = weights(q, k, MASKS[name], **OPTIONS[option])
    assert_every_statistic(AttentionMap(q, k, None, MASKS[name], **OPTIONS[option]), dense)


@pytest.mark.parametrize("name", ["full", "causal", "window"])
@pytest.mark.parametrize("queries", [1, 2, 17])
def test_fewer_queries_than_keys(name, queries, precision):
    q, k = torch.randn(2, 4, queries, 16), torch.randn(2, 2, TOKENS, 16)
    assert_every_statistic(AttentionMap(q, k, None, MASKS[name]), weights(q, k, MASKS[name]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_computed_in_float32_or_wider(dtype, precision):
    q, k = torch.randn(1, 4, TOKENS, 16).to(dtype), torch.randn(1, 2, TOKENS, 16).to(dtype)
    m = AttentionMap(q, k, None, mask.causal())
    assert_every_statistic(m, weights(q, k, mask.causal()))
    assert m.entropy().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_part_that_all_keys_share_costs_no_digits(monkeypatch):
    monkeypatch.setattr(prepared, "FLOAT64_MAX_WEIGHTS", 0)
    q, k = torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16) + 300
    assert_every_statistic(AttentionMap(q, k), weights(q, k))
    sinks = torch.full((2,), 300.0)
    m, dense = AttentionMap(q, k, sinks=sinks), weights(q, k, sinks=sinks)
    assert_close(m.entropy(), dense.entropy())
    assert_close(m.received(), dense.received())


def test_steep_scores(precision):
    q, k = torch.randn(1, 2, 200, 16) * 60, torch.randn(1, 2, 200, 16) * 60
    assert_every_statistic(AttentionMap(q, k, None, mask.causal()), weights(q, k, mask.causal()))


@pytest.mark.parametrize("tokens", [300, 5000])
def test_the_spread_of_a_head_that_looks_at_one_key(tokens, monkeypatch):
    monkeypatch.setattr(prepared, "FLOAT64_MAX_WEIGHTS", 0)
    k = torch.nn.functional.normalize(torch.randn(1, 1, tokens, 64), dim=-1)
    q = k.roll(1, 2) * 20  # each query looks at the key before it
    q, k = q[:, :, -200:] if tokens > 300 else q, k
    found, (mean, spread) = AttentionMap(q, k, scale=1.0).distance(), weights(q, k, scale=1.0).distance()
    assert_close(found.mean, mean, 1e-4 * tokens / 30)
    assert_close(found.spread, spread, 1e-4 * tokens / 10)


def test_top_finds_keys_wherever_they_stand():
    scores = torch.stack([torch.randperm(1003) for _ in range(50)]).float()[None, None] / 100
    for k in (1, 2, 8, 40, 1003):
        values, places = streaming._largest(scores, k)
        assert torch.equal(values, scores.topk(k).values)
        assert torch.equal(places, scores.topk(k).indices)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_to_ask_about(shape):
    batch, heads, queries, keys = shape
    m = AttentionMap(torch.randn(batch, heads, queries, 8), torch.randn(batch, heads, keys, 8))
    assert m.dense().shape == shape
    assert m.entropy().shape == m.distance().mean.shape == shape[:3]
    assert m.received().shape == (batch, heads, keys)
    assert m.mass([0] * keys).shape == (*shape[:3], 1 if keys else 0)
    for t in (m.entropy(), m.received(), *m.distance()):
        assert (t == 0).all()


# What cannot be asked.


@pytest.mark.parametrize(
    "groups", [[0, 1, 0], [0, 1, -1, 0], [[0, 1, 0, 1]] * 3, torch.tensor([[True, True, False, True]]), []]
)
def test_groups_that_do_not_cover_the_keys(groups):
    m = AttentionMap(torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8))
    with pytest.raises(ValueError, match=r"groups that do not cover the keys"):
        m.mass(groups)


def test_groups_of_fractions(as_a_user_runs_it):
    with pytest.raises(TypeError, match="whole numbers"):
        AttentionMap(torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8)).mass([0.5] * 4)


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (lambda m: m.top(0), r"top\(0\)"),
        (lambda m: m.top(6), r"1 to the number of keys, 5"),
        (lambda m: m.pooled(5, 5), r"rows are from 1 to 4"),
        (lambda m: m.pooled(4, 0), r"columns are from 1 to 5"),
        (lambda m: m.received(torch.ones(1, 5)), r"\(1, 4\) finite numbers"),
        (lambda m: m.received(-torch.ones(1, 4)), r"none below 0"),
        (lambda m: m.received(torch.full((1, 4), torch.nan)), r"none below 0"),
    ],
)
def test_numbers_out_of_range(statistic, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message):
        statistic(AttentionMap(torch.randn(1, 1, 4, 8), torch.randn(1, 1, 5, 8)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["q", "k"])
def test_nan_and_infinity_are_refused_by_statistics_and_shown_by_rows(name, value):
    tensors = {"q": torch.randn(1, 1, 4, 8), "k": torch.randn(1, 1, 4, 8)}
    tensors[name][0, 0, 1, 2] = value
    m = AttentionMap(**tensors, mask=mask.causal())
    for statistic in (m.entropy, m.received, m.distance, lambda: m.top(1), lambda: m.pooled(1, 1), lambda: m.lse):
        with pytest.raises(ValueError, match=f"{name} holds NaN or infinity"):
            statistic()
    dense = weights(**tensors, who=mask.causal()).w
    assert torch.allclose(m.dense().double(), dense, equal_nan=True)


@pytest.mark.parametrize("sizes", [(3e19, 1e19), (1e30, 1.0), (1e38, 10.0)])
@pytest.mark.parametrize("tokens", [3, 20, 100])
def test_scores_that_can_overflow_are_refused_by_questions_and_shown_by_rows(tokens, sizes):
    """What a kernel makes of them differs by machine; the rows are the definition's in float64."""
    q, k = (torch.rand(1, 1, tokens, 8) * size for size in sizes)
    q[0, 0, 0], k[0, 0, 0] = sizes[0], 4 * sizes[1] if max(sizes) < 1e38 else sizes[1]
    m = AttentionMap(q, k)
    if sizes == (1e30, 1.0):
        torch.testing.assert_close(m.entropy().double(), Dense(weights(q, k).w).entropy(), rtol=0, atol=LIMIT)
        return
    for question in (m.entropy, m.received, m.distance, lambda: m.top(1), lambda: m.pooled(1, 1), lambda: m.lse):
        with pytest.raises(ValueError, match=r"can leave the range of torch\.float32.*differs by machine"):
            question()
    assert torch.allclose(m.dense().double(), weights(q, k).w, equal_nan=True)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_rows_to_which_a_model_adds_the_lowest_number(softcap):
    """Nothing is left of their scores: equal weights, as the definition has them, and not a weight of 1 everywhere."""
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    bias = torch.randn(2, 1, 5, 7)
    bias[1, :, 2] = torch.finfo(torch.float32).min
    m = AttentionMap(q, k, bias=bias, softcap=softcap)
    steps = regard.steps(q.double(), k.double(), k.double(), bias=bias.double(), softcap=softcap)
    dense = Dense(steps.weights)
    torch.testing.assert_close(m[:].double(), dense.w, rtol=0, atol=1e-6)
    torch.testing.assert_close(m.entropy().double(), dense.entropy(), rtol=0, atol=LIMIT)
    torch.testing.assert_close(m.received().double(), dense.received(), rtol=0, atol=LIMIT)
    torch.testing.assert_close(m.top(7).weights.double(), dense.w.sort(descending=True).values, rtol=0, atol=LIMIT)
    torch.testing.assert_close(m.pooled(5, 7).double(), dense.w, rtol=0, atol=LIMIT)


def test_a_bias_of_nan_is_refused():
    m = AttentionMap(torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8), bias=torch.full((4, 4), torch.nan))
    with pytest.raises(ValueError, match="bias of shape"):
        m.entropy()


# Memory.

BEFORE = """
from regard import mask
from regard.lens.maps.map import AttentionMap
torch.set_num_threads(1)
q, k = torch.randn(1, {heads}, {tokens}, 64), torch.randn(1, {heads}, {tokens}, 64)
m = AttentionMap(q, k, None, {mask})
m2 = AttentionMap(q[:, :, :128], k[:, :, :128], None, {mask}); m2.entropy(); m2.received()
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["None", "mask.causal()"])
@pytest.mark.parametrize(
    "call",
    ["m.entropy()", "m.received()", "m.mass([0] * 16384)", "m.distance()", "m.top(8)", "m.pooled(512, 512)"],
)
def test_memory_grows_with_the_tokens(call, who):
    code = BEFORE.format(heads=2, tokens=16384, mask=who)
    assert peak_mb(code + call) < 150  # the dense map: 2,048 MiB


@pytest.mark.slow
def test_memory_with_the_lse_of_pytorchs_kernel():
    """It comes with the heads side by side in memory; as a bias that would be copied for every pair."""
    kernel = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default"
    code = BEFORE.format(heads=2, tokens=16384, mask="None") + f"m = AttentionMap(q, k, lse={kernel}(q, k, k)[1])\n"
    assert peak_mb(code + "m.received()") < 150
