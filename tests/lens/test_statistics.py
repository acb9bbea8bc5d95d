"""Every statistic of a map, against the same computed from the dense map in float64."""

import pytest
import torch
from bench.timing import peak_mb
from hypothesis import given
from hypothesis import strategies as st

import masks
from cases import KernelLimits, OperatorTrace
from grids import grid, some_examples
from lens.map_cases import BIASES, LargeMap
from lens.statistics_by_definition import LIMIT, Dense, assert_every_statistic, assert_near, assert_together, assert_top
from regard import mask
from regard.lens import AttentionMap
from regard.lens.maps.moments import attended_position
from regard.lens.maps.prepared import prepare
from regard.lens.maps.received import TransposedMask
from regard.lens.maps.streaming import score_chunks

PRECISIONS = {
    "float64": (AttentionMap, KernelLimits()),
    "float32": (LargeMap, KernelLimits()),
    "float32, small blocks": (LargeMap, KernelLimits(max_dense_pairs=0, tile_rows=8, tile_columns=4)),
}


def assert_is_the_definition(precision, q, k, allowed=None, **options):
    """Every statistic of a map that computes as maps of a size do."""
    kind, limits = PRECISIONS[precision]
    dense = Dense.of(q, k, allowed, **options)
    with limits.apply():
        assert_every_statistic(kind(q, k, None, allowed, **options), dense)


# The shape checks are half of its time, and on in the tests below.
@pytest.mark.usefixtures("as_a_user_runs_it")
@some_examples(3)
@given(
    case=masks.cases(max_tokens=30, min_tokens=1, depth=2),
    group=st.integers(1, 2),
    width=st.sampled_from([1, 3, 8]),
    size=st.sampled_from([0.3, 1.0, 6.0]),
    sinks=st.booleans(),
    softcap=st.sampled_from([None, None, 1.5]),
    scale=st.sampled_from([None, None, 1.0, 0.2, -0.7, 0.0]),
    bias=st.sampled_from(["none", *BIASES]),
    precision=st.sampled_from([*PRECISIONS]),
)
def test_any_mask_with_any_options(case, group, width, size, sinks, softcap, scale, bias, precision):
    coins, heads = torch.Generator().manual_seed(0), case.heads
    q = torch.randn(case.batch, heads, case.queries, width, generator=coins) * size
    k = torch.randn(case.batch, max(1, heads // group), case.keys, width, generator=coins)
    options = {"scale": scale, "softcap": softcap, "bias": BIASES[bias](heads, case.queries, case.keys)}
    options["sinks"] = torch.linspace(-1, 2, heads) if sinks else None
    assert_is_the_definition(precision, q, k, masks.build(case.spec), **options)


@grid(dtype=[torch.float16, torch.bfloat16, torch.float64], precision=PRECISIONS)
def test_dtypes_are_computed_in_float32_or_wider(dtype, precision):
    q, k = torch.randn(1, 4, 40, 16).to(dtype), torch.randn(1, 2, 40, 16).to(dtype)
    assert_is_the_definition(precision, q, k, mask.causal())
    assert AttentionMap(q, k).entropy().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_map_of_millions_of_weights_is_computed_in_float32_some_rows_at_once():
    q, k = torch.randn(1, 12, 760, 2), torch.randn(1, 1, 760, 2) + 3
    m, exact = (AttentionMap(*t, None, mask.causal(), softcap=3.0) for t in ((q, k), (q.double(), k.double())))
    assert m.shape.numel() > max(m.max_float64_weights, m.scores_at_once)
    assert 0 < (m.entropy() - exact.entropy()).abs().max() < LIMIT
    assert_near(m.pooled(3, 4), exact.pooled(3, 4))


def test_a_part_that_all_keys_share_costs_no_digits():
    q, k, sinks = torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16) + 300, torch.full((2,), 300.0)
    assert_is_the_definition("float32", q, k)
    assert_near(LargeMap(q, k, sinks=sinks).entropy(), Dense.of(q, k, sinks=sinks).entropy())
    assert_near(LargeMap(q, k, sinks=sinks).received(), Dense.of(q, k, sinks=sinks).received())
    k = (k * 2**10).round().double() / 2**10
    far, near = (AttentionMap(q.double(), keys, mask=mask.causal()) for keys in (k + 2**40, k))
    for statistic in (lambda m: m.entropy(), lambda m: m.received(), lambda m: m.top(3).weights):
        torch.testing.assert_close(statistic(far), statistic(near), rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steep_scores(precision):
    q, k = torch.randn(1, 2, 60, 16) * 60, torch.randn(1, 2, 60, 16) * 60
    assert_is_the_definition(precision, q, k, mask.causal())


@pytest.mark.parametrize("tokens", [300, 5000])
def test_the_spread_of_a_head_that_attends_to_one_key(tokens):
    k = torch.nn.functional.normalize(torch.randn(1, 1, tokens, 64), dim=-1)
    q = (k.roll(1, 2) * 20)[:, :, -200:] if tokens > 300 else k.roll(1, 2) * 20  # to the key before it
    found, (mean, spread) = LargeMap(q, k, scale=1.0).distance(), Dense.of(q, k, scale=1.0).distance()
    assert_near(found.mean, mean, 1e-4 * tokens / 30)
    assert_near(found.spread, spread, 1e-4 * tokens / 10)


def test_keys_too_far_for_every_query_receive_nothing():
    """They are in no block of rows of the transposed attention."""
    m = LargeMap(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 2000, 4), None, mask.window(4))
    with KernelLimits(max_dense_pairs=0).apply():
        assert_near(m.received(), m.dense().sum(-2).double())


@pytest.mark.parametrize("k", [1, 2, 8, 40, 1003])
def test_top_finds_keys_wherever_they_stand(k):
    q, keys = torch.randn(1, 1, 50, 8), torch.randn(1, 1, 1003, 8)
    assert_top(AttentionMap(q, keys).top(k), Dense.of(q, keys), k)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_to_ask_about(shape):
    batch, heads, queries, keys = shape
    m = AttentionMap(torch.randn(batch, heads, queries, 8), torch.randn(batch, heads, keys, 8))
    assert m.dense().shape == shape
    assert m.mass([0] * keys).shape == (*shape[:3], 1 if keys else 0)
    nothing = [torch.zeros(shape[:3]), torch.zeros(batch, heads, keys), *[torch.zeros(shape[:3])] * 2]
    torch.testing.assert_close([m.entropy(), m.received(), *m.distance()], nothing, check_dtype=False)


@grid(m=masks.EVERY_KIND, flip=[False, True])
def test_a_mask_with_queries_and_keys_exchanged(m, flip):
    """What a key receives is the attention of the keys to the queries."""
    exchanged, expected = TransposedMask(m, flip), m.dense(masks.QUERIES, masks.KEYS).mT
    expected = (expected.flip(-1, -2) if flip else expected).expand(masks.BATCH, masks.HEADS, -1, -1)
    sizes = masks.KEYS, masks.QUERIES
    assert torch.equal(exchanged.dense(*sizes).expand(expected.shape), expected)
    index = torch.meshgrid(*map(torch.arange, expected.shape), indexing="ij")
    assert torch.equal(exchanged.predicate(*sizes)(*index).expand(expected.shape), expected)


# What is refused.


FINITE = r"\(1, 4\) finite numbers \(batch, queries\), none below 0"


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        *(
            (lambda m, groups=groups: m.mass(groups), "groups that do not fit 5 keys")
            for groups in ([0, 1, 0], [0, 1, -1, 0, 0], [[0, 1, 0, 1, 0]] * 3, torch.ones(2, 4) > 0, [])
        ),
        (lambda m: m.mass([0.5] * 5), "whole numbers"),
        (lambda m: m.top(0), r"top\(0\)"),
        (lambda m: m.top(6), r"1 to the number of keys, 5"),
        (lambda m: m.pooled(5, 5), r"rows are from 1 to 4"),
        (lambda m: m.pooled(4, 0), r"columns are from 1 to 5"),
        (lambda m: m.received(torch.ones(1, 5)), FINITE),
        (lambda m: m.received(-torch.ones(1, 4)), FINITE),
        (lambda m: m.received(torch.full((1, 4), torch.nan)), FINITE),
    ],
)
def test_arguments_out_of_range_are_refused(statistic, message, as_a_user_runs_it):
    with pytest.raises((ValueError, TypeError), match=message):
        statistic(AttentionMap(torch.randn(1, 1, 4, 8), torch.randn(1, 1, 5, 8)))


def assert_refused(m, message):
    for statistic in (m.entropy, m.received, m.distance, lambda: m.top(1), lambda: m.pooled(1, 1), lambda: m.lse):
        with pytest.raises(ValueError, match=message):
            statistic()


@grid(value=[torch.nan, torch.inf, -torch.inf], name=["q", "k"])
def test_nan_and_infinity_are_refused_by_statistics_and_shown_by_rows(name, value):
    tensors = {"q": torch.randn(1, 1, 4, 8), "k": torch.randn(1, 1, 4, 8)}
    tensors[name][0, 0, 1, 2] = value
    m = AttentionMap(**tensors, mask=mask.causal())
    assert_refused(m, f"{name} holds NaN or infinity")
    assert torch.allclose(m.dense().double(), Dense.of(**tensors, mask=mask.causal()).w, equal_nan=True)


def test_a_bias_of_nan_is_refused():
    q = torch.randn(1, 1, 4, 8)
    assert_refused(AttentionMap(q, q, bias=torch.full((4, 4), torch.nan)), "bias of shape")


def large_scores(tokens, q_size, k_size, last):
    q, k = (torch.rand(1, 1, tokens, 8) * size for size in (q_size, k_size))
    q[0, 0, 0], k[0, 0, 0] = q_size, last
    return q, k


@grid(tokens=[3, 100], sizes=[(3e19, 1e19, 4e19), (1e38, 10.0, 10.0)])
def test_scores_that_can_overflow_are_refused_by_statistics_and_shown_by_rows(tokens, sizes):
    """What a kernel makes of them differs by machine; the rows are the definition's in float64."""
    q, k = large_scores(tokens, *sizes)
    m = AttentionMap(q, k)
    assert_refused(m, r"can leave the range of torch\.float32.*differs by machine")
    assert torch.allclose(m.dense().double(), Dense.of(q, k).w, equal_nan=True)


@pytest.mark.parametrize("tokens", [3, 20, 100])
def test_scores_that_are_huge_have_an_entropy(tokens):
    q, k = large_scores(tokens, 1e30, 1.0, 4.0)
    assert_near(AttentionMap(q, k).entropy(), Dense.of(q, k).entropy())


@grid(softcap=[None, 5.0], precision=["float64", "float32"])
def test_rows_to_which_a_model_adds_the_lowest_number(softcap, precision):
    """Nothing is left of their scores: equal weights, as the definition has them, and not a weight of 1 everywhere."""
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    bias = torch.randn(2, 1, 5, 7)
    bias[1, :, 2] = torch.finfo(torch.float32).min
    assert_is_the_definition(precision, q, k, bias=bias, softcap=softcap)


# Memory.


@grid(statistic=[lambda m: m.top(2), lambda m: m.distance(), lambda m: m.pooled(3, 3)], allowed=[None, mask.causal()])
def test_what_needs_every_weight_is_computed_some_rows_at_once(statistic, allowed):
    m = LargeMap(torch.randn(1, 2, 400, 4), torch.randn(1, 2, 400, 4), None, allowed)
    with OperatorTrace() as trace:
        statistic(m)
    assert trace.max_bytes < 2 * 400**2 * 4 / 4  # the dense map has four times as many


LONG_MAP = """
from regard import mask
from regard.lens import AttentionMap, detect_heads
torch.set_num_threads(1)
q, k, v, grad = torch.randn(4, 1, 2, 16384, 64)
short = [t[:, :, :128] for t in (q, k, v)]
m, m2 = AttentionMap(q, k, v, {mask}), AttentionMap(*short, {mask})
m2.entropy(); m2.received(); m2.attribution(grad[:, :, :128]); m2.edge_attribution(grad[:, :, :128], [0])
m2.without_key([0], [0]); m2.value_weighted(torch.ones(64, 128))
"""
CALLS = """
m.entropy(); m.received(); m.mass([0] * 16384); m.distance(); m.top(8); m.pooled(512, 512); m.output()
m.label([f't{n % 997}' for n in range(16384)]) or detect_heads(m)
m.attribution(grad); m.edge_attribution(grad, [-1, 9]); m.without_key([-1] * 64, range(64))
m.value_weighted(torch.ones(64, 128)); m.group_outputs([n // 4096 for n in range(16384)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["None", "mask.causal()"])
@pytest.mark.parametrize("call", [call.strip() for call in CALLS.strip().replace("\n", ";").split(";")])
def test_memory_grows_with_the_tokens(call, allowed):
    assert peak_mb(LONG_MAP.replace("{mask}", allowed) + call) < 150  # the dense map: 2,048 MiB


@pytest.mark.slow
def test_memory_with_the_lse_of_pytorchs_kernel():
    """It comes with the heads side by side in memory; as a bias that would be copied for every pair."""
    kernel = "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default"
    code = LONG_MAP.replace("{mask}", "None") + f"m = AttentionMap(q, k, lse={kernel}(q, k, k)[1])\n"
    assert peak_mb(code + "m.received()") < 150


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("questions", "arguments", "message"),
    [
        (("entropies",), {}, r"ask\('entropies'\): the questions are 'entropy', 'received', 'distance'"),
        (("mass",), {}, "by keyword mass=groups"),
        ((), {}, r"ask\(\) was asked nothing"),
        ((), {"top": 0}, r"top\(0\): k is from 1"),
        ((), {"pooled": (9, 1)}, "rows are from 1 to 6"),
        ((), {"mass": [0, 1]}, "groups that do not fit 6 keys"),
    ],
)
def test_a_question_that_is_not_known_or_does_not_fit_is_refused(questions, arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionMap(*torch.randn(2, 1, 2, 6, 8)).ask(*questions, **arguments)


def test_questions_of_an_empty_map_have_the_shapes_of_the_methods():
    m = AttentionMap(torch.randn(0, 2, 6, 8), torch.randn(0, 2, 6, 8))
    asked = m.ask("entropy", "distance", top=2)
    assert (asked["entropy"].shape, asked["distance"].mean.shape) == ((0, 2, 6), (0, 2, 6))
    assert asked["top"].keys.shape == (0, 2, 6, 2)


def test_several_questions_take_one_pass_over_the_weights():
    q, k = torch.randn(2, 1, 2, 300, 16)
    with OperatorTrace() as together:
        LargeMap(q, k).ask("entropy", "received", "distance", top=4)
    assert not together.fused  # the kernel would be a pass of its own


@pytest.mark.parametrize("size", [1, 25, 256])
@pytest.mark.parametrize("keys", [(0, 700), (5, 517), (300, 310), torch.tensor([2, 3, 90, 4000, 2**20])])
def test_the_attended_position_of_a_chunk_is_exact_in_cells_and_between_them(keys, size):
    places = keys if isinstance(keys, torch.Tensor) else torch.arange(*keys)
    weights = torch.rand(1, 2, 4, len(places)).softmax(-1)
    weights[0, 0, 0] = torch.eye(len(places))[-1]  # a spread of zero
    weights[0, 0, 1] = 0.0  # an empty row
    shares, position = weights.double() / weights.double().sum(-1, keepdim=True).clamp(min=1e-30), places.double()
    mean = (shares * position).sum(-1)
    spread = (shares * (position - mean[..., None]) ** 2).sum(-1).sqrt()
    spread[0, 0, 1] = 0.0

    found_mean, found_spread = attended_position(keys, weights, size)
    assert (found_mean - mean).abs().max() < 1e-5 * float(position[-1])
    assert (found_spread - spread).abs().max() < 1e-5 * float(position[-1])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_rows_are_computed_a_key_head_at_a_time(heads, kv_heads):
    q, k = torch.randn(1, heads, 300, 16), torch.randn(1, kv_heads, 300, 16)
    allowed = torch.rand(1, heads, 300, 300) < 0.5
    allowed[:, 1, 7] = False
    m = LargeMap(q, k, mask=mask.allowed(allowed))
    chunks = [(block.heads, tuple(scores.shape[1:3])) for block, scores in score_chunks(prepare(m))]
    assert {(parts, shape[0]) for (_, parts), shape in chunks} == {(kv_heads, heads // kv_heads)}
    assert max(shape[1] for _, shape in chunks) == 16
    assert_together(m, Dense.of(q, k, mask.allowed(allowed)), torch.rand(3, 300) < 0.5)
