"""An attention map: its parts, its check against the model, its tokens, what it refuses."""

import math

import pytest
import torch

import regard
from cases import OperatorTrace
from lens.recordings import answers, refuse
from regard import mask
from regard.lens import AttentionMap, OutputSample

Q, K, V = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 5)
MASK = mask.causal() & mask.padding([11, 6])
INDICES = [
    *((1, 2, 3), (1, 2, 3, 4), (-1, -1, -1, -1), (0,), 0, ..., (slice(None), 1), (..., 3)),
    (0, slice(1, 3), slice(2, 8, 3), slice(-4, None)),
    (0, [0, 3], 2),
    (0, 0, [1, 2, 5], [3, 4, 0]),
    (0, 0, [5, 1, 1]),
    ([0, 1], slice(None), [2, 3], slice(None)),
    (slice(None), [0, 1], slice(None), [7]),
    (0, 0, [[1], [2]], [0, 1]),
    (0, None, 1, slice(2), None),
    (0, slice(3, 1)),
    (0, 0, torch.tensor([1, 4]), slice(None)),
    (0, 0, torch.arange(9) % 2 == 0, 1),
    (0, 0, []),
]


def steps(allowed=MASK, **options):
    return regard.steps(Q.double(), K.double(), V.double(), allowed, **options)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_any_index_answers_as_the_dense_tensor(index):
    expected = steps().weights[index]
    torch.testing.assert_close(AttentionMap(Q, K, V, MASK)[index], expected.float(), atol=1e-6, rtol=0)
    double = AttentionMap(*(t.double() for t in (Q, K, V)), MASK)[index]
    torch.testing.assert_close(double, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("index", [(2,), (0, 4), (0, 0, 0, 11), (0, 0, 0, 0, 0), (0, [9]), "a", 1.5])
def test_an_index_outside_is_refused_as_by_the_dense_tensor(index):
    with pytest.raises((IndexError, TypeError)) as by_torch:
        steps().weights[index]
    with pytest.raises(type(by_torch.value), match=r"a map of shape \(2, 4, 9, 11\)"):
        AttentionMap(Q, K, V, MASK)[index]


def test_a_tile_of_more_scores_than_are_computed_at_once():
    q, k, bias = torch.randn(2, 2, 700, 2), torch.randn(2, 1, 1100, 2), regard.positions.ALiBi(2)
    expected = regard.steps(q.double(), k.double(), k.double(), bias=bias).weights[:, 1, ::2].float()
    torch.testing.assert_close(AttentionMap(q, k, bias=bias)[:, 1, ::2], expected, atol=1e-6, rtol=0)


def test_pairs_far_apart_take_no_square():
    q, at = torch.randn(1, 1, 2500, 2), torch.randperm(2500)
    with OperatorTrace() as trace:
        ours = AttentionMap(q, q)[0, 0, at, at.flip(0)]
    assert trace.max_bytes < 2500**2 * 4  # the dense map
    expected = regard.steps(*[q.double()] * 3).weights[0, 0, at, at.flip(0)]
    assert ours.dtype == torch.float32
    assert torch.allclose(ours.double(), expected)
    few = AttentionMap(q.double(), q.double())[0, 0, at[:9], at.flip(0)[:9]]
    torch.testing.assert_close(few, expected[:9], atol=1e-12, rtol=0)


def test_dense_keeps_a_budget():
    m, long = AttentionMap(Q, K, V, MASK), torch.randn(1, 1, 1, 1).expand(1, 12, 32768, 1)
    assert torch.equal(m.dense(3168), m.dense(None))
    with pytest.raises(ValueError, match=r"takes 3,168 bytes, above the budget of 3,167.*m\.dense\(budget=3168\)"):
        m.dense(3167)
    with pytest.raises(ValueError, match="51,539,607,552 bytes"):
        AttentionMap(long, long).dense()


def test_what_it_was_made_of():
    facts = {"mask": MASK, "scale": 0.3, "softcap": 4.0, "dropout": 0.1, "kernel": "flash"}
    m = AttentionMap(Q, K, V, bias=torch.zeros(9, 11), sinks=torch.zeros(4), **facts)
    assert {name: getattr(m, name) for name in facts} == facts
    assert (m.shape, m.dtype, m.device) == ((2, 4, 9, 11), torch.float32, torch.device("cpu"))
    assert m.q.data_ptr() == Q.data_ptr()
    assert AttentionMap(Q, K).scale == pytest.approx(8**-0.5)


def test_nothing_needs_a_gradient():
    q = Q.clone().requires_grad_()
    bias, sinks = torch.zeros(9, 11, requires_grad=True), torch.zeros(4, requires_grad=True)
    m = AttentionMap(q, K, V, MASK, bias=bias, sinks=sinks)
    assert not any(t.requires_grad for t in answers(m))


@pytest.mark.parametrize("mode", [torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)])
def test_answers_inside_and_outside_of_a_mode_are_the_same(mode):
    with mode:
        m = AttentionMap(Q.clone(), K.clone(), V.clone(), MASK, bias=torch.ones(9, 11))
        inside = answers(m)
    expected = answers(AttentionMap(Q, K, V, MASK, bias=torch.ones(9, 11)))
    torch.testing.assert_close([inside, answers(m)], [expected, expected], atol=0, rtol=0)


def test_a_kernels_own_lse_is_used_only_where_it_is_right():
    right = steps().masked.logsumexp(-1)
    for lse in (right, right + 0.01, right.nan_to_num(neginf=0.0), torch.full_like(right, torch.nan)):
        m = AttentionMap(Q, K, V, MASK, lse=lse.float())
        assert torch.allclose(m.lse.double(), right, atol=1e-5)
        assert torch.allclose(m.received().double(), steps().weights.sum(-2), atol=1e-5)
    empty = AttentionMap(Q, K, V, mask.padding([11, 0]), lse=torch.zeros(2, 4, 9))
    assert (empty.lse[1] == -torch.inf).all()


@pytest.mark.parametrize(
    "answer",
    [
        *(lambda m: m.entropy(), lambda m: m.received(), lambda m: m.distance(), lambda m: m.dense(), lambda m: m.lse),
        *(lambda m: m[0], lambda m: m.mass([0] * 11), lambda m: m.top(1), lambda m: m.pooled(1, 1)),
    ],
)
def test_every_answer_asks_first_whether_the_tensors_are_what_they_were(answer):
    m = AttentionMap(Q, K, V, MASK, ensure_unchanged=refuse)
    with pytest.raises(RuntimeError, match="changed in place"):
        answer(m)


# The check against the model.


BATCH, QUERY = torch.tensor([0, 1, 0]), torch.tensor([2, 8, 0])


def sample(output):
    return OutputSample(BATCH, QUERY, output[BATCH, :, QUERY].float())


def test_the_error_is_the_distance_from_what_the_model_computed():
    m = AttentionMap(Q, K, V, MASK, sample=sample(steps().output), kernel="flash")
    off = AttentionMap(Q, K, V, MASK, sample=sample(steps().output * 1.01))
    assert m.error < 1e-6
    assert off.error == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert (m.verified, off.verified) == (True, False)
    assert ["unverified" in repr(m), "unverified" in repr(off), "flash" in repr(m)] == [False, True, True]


@pytest.mark.parametrize(
    ("q", "allowed", "scale"), [(Q, MASK, 0.3), (Q, None, None), (Q[:, [0, 2, 1, 3]], MASK, None)], ids=["s", "m", "g"]
)
def test_a_wrong_scale_mask_or_grouping_shows(q, allowed, scale):
    wrong = AttentionMap(q, K, V, allowed, scale=scale, sample=sample(steps().output))
    assert wrong.error > 0.01
    assert not wrong.verified


def test_half_precision_is_verified_at_its_own_error():
    output = steps().output * 1.01
    halves = [t.bfloat16() for t in (Q, K, V)]
    assert AttentionMap(*halves, MASK, sample=sample(output)).verified
    assert not AttentionMap(*halves, MASK, sample=sample(output * 1.02)).verified


def test_a_map_without_a_sample_or_values_is_unverified():
    for m in (AttentionMap(Q, K, V, MASK), AttentionMap(Q, K, None, MASK, sample=sample(steps().output))):
        assert math.isnan(m.error)
        assert not m.verified


def test_the_error_includes_dropout_and_a_later_transform():
    factor, projection = (torch.rand(3, 4, 11) < 0.5) * 2.0, torch.randn(20, 6)
    dropped = steps().weights[BATCH, :, QUERY] * factor
    output = torch.einsum("nhk,nhkv->nhv", dropped, V.double().repeat_interleave(2, 1)[BATCH]).float()
    made = OutputSample(BATCH, QUERY, output.flatten(1) @ projection, factor, lambda t: t.flatten(1) @ projection)
    assert AttentionMap(Q, K, V, MASK, dropout=0.5, sample=made).error < 1e-5


def test_rows_that_attend_to_nothing_prove_nothing():
    nothing = mask.padding([11, 0])
    output = steps(nothing).output.clone()
    output[1] = torch.nan  # what the model made of them
    assert AttentionMap(Q, K, V, nothing, sample=sample(output)).error < 1e-6


# Names.


def test_tokens_of_one_text_and_of_a_batch():
    one, batch, keys = AttentionMap(Q[:1], K[:1]), AttentionMap(K, K), list("abcdefghijk")
    assert one.tokens is None
    one.label(keys[:9], keys)
    batch.label([keys] * 2)
    assert (one.tokens, batch.tokens) == ((keys[:9], keys), ([keys] * 2,) * 2)


@pytest.mark.parametrize(
    ("rows", "tokens", "message"),
    [
        (1, [["a"] * 8, ["a"] * 11], "8 tokens of batch row 0; the map has 9 queries"),
        (1, [["a"] * 9], "9 tokens of batch row 0; the map has 11 keys"),
        (2, [["a"] * 9, ["a"] * 11], "1 lists of tokens; the map has 2 batch rows"),
    ],
)
def test_tokens_that_do_not_match_the_length_are_refused(rows, tokens, message):
    with pytest.raises(ValueError, match=message):
        AttentionMap(Q[:rows], K[:rows]).label(*tokens)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ([Q[0], K[0]], {}, ValueError, "a map wants q"),
        ([Q, K], {"lse": torch.zeros(2, 4, 11)}, ValueError, "one number per row"),
        ([Q, K, None, torch.ones(9, 11, dtype=torch.bool)], {}, TypeError, "bare"),
        ([Q, K, V[:, :, 1:]], {}, ValueError, "every key needs one value"),
    ],
)
def test_what_no_map_can_be_made_of_is_refused(as_a_user_runs_it, arguments, options, error, message):
    with pytest.raises(error, match=message):
        AttentionMap(*arguments, **options)
