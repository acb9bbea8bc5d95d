"""Whatever kernel runs, the output and the gradients are the definition's; and what must never happen."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

import regard
from cases import HALF, KERNELS, LONG, SHORT, Attention, Case, OperatorTrace, assert_is_the_definition, cases
from regard import mask
from regard.attention.bias import PositionBias

# Any attention that fits together.


def prove(examples: int, *, anew: bool) -> None:
    """So many attentions against the definition in float64; every kernel has its share of them."""
    ran = Counter()

    @settings(max_examples=examples, derandomize=not anew, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(cases())
    def every(case: Case) -> None:
        with case.sizes.apply():
            ran[assert_is_the_definition(case.make()).kernel] += 1

    every()
    assert sum(ran.values()) >= examples
    assert min(ran[kernel] for kernel in KERNELS) >= examples // 50, ran


def test_attend_is_the_definition():
    prove(500, anew=False)


@pytest.mark.slow
def test_attend_is_the_definition_at_length():
    prove(20_000, anew=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 7), (7, 1), (3, 7), (7, 3), (5, 5), (1, 70), (70, 1), (2, 70), (70, 66)]
)
def test_every_argument_of_every_mask_alone_and_in_pairs(queries, keys, dtype):
    """With no other option a call takes the early exit of attend, which once took offset=0 for no offset."""
    q, k, v = (torch.randn(2, 2, n, 8, dtype=dtype) for n in (queries, keys, keys))
    offsets = [None, 0, 1, -1, keys - queries, keys, -queries]
    alone = [
        *(mask.causal(offset) for offset in offsets),
        *(mask.window(*reach, offset=offset) for reach in [(1, 0), (2, 0), (1, 2), (keys, 0)] for offset in offsets),
        *(mask.where(lambda i, j: (i + j) % 2 == 0, offset=offset) for offset in offsets),
        *(mask.padding([n, keys]) for n in {0, 1, keys}),
        *(mask.prefix(n) for n in (0, 1, keys, [0, keys])),
        mask.documents([j // 2 for j in range(keys)]),
        mask.documents([0] * queries, [j % 2 for j in range(keys)]),
        mask.allowed(torch.arange(keys) % 2 == torch.arange(queries)[:, None] % 2),
        mask.blocked((torch.arange(keys) == 0)[None, :]),
    ]
    pairs = [a & b for a in alone[:3] for b in alone[7::2]]
    eps = torch.finfo(dtype).eps
    for who in [None, *alone, *(~a for a in alone), *pairs]:
        expected = regard.steps(q.double(), k.double(), v.double(), who).output
        error = (regard.attend(q, k, v, who).double() - expected).abs().max()
        assert error <= 8 * eps * v.double().abs().max(), f"{who!r}: off by {error:.3g}"


def qkv(*shape, dtype=torch.float32):
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in "qkv"]


@pytest.mark.parametrize(
    "who",
    [
        None,
        mask.causal(),
        mask.causal(offset=0),
        mask.causal(offset=-50),
        mask.padding([700, 0]),
        mask.blocked((torch.arange(700) < 600)[None, :]),
        mask.allowed(torch.arange(900)[:, None] % 3 == 0) & mask.causal(),
        mask.window(300, 20),
        mask.prefix([650, 0]),
    ],
    ids=repr,
)
def test_more_tokens_than_the_kernel_takes_at_once(who):
    """The CPU kernel goes through the keys in blocks of up to 512; whole blocks may be out of bounds."""
    q, k, v = (torch.randn(2, *shape, requires_grad=True) for shape in ((2, 900, 16), (1, 700, 16), (1, 700, 8)))
    assert_is_the_definition(Attention(q, k, v, who, {}))


@pytest.mark.parametrize(
    "who", [None, mask.causal(), mask.padding([3, 0]), mask.causal() & mask.padding([3, 3])], ids=repr
)
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0, 5.8e-242, 1e-40, 1e-37])
def test_scale_of_any_sign_and_size(scale, who):
    """With its flag for causal, PyTorch 2.13's CPU kernel multiplies its own -inf by the scale, in float32.

    NaN where that is 0 or below.
    """
    assert_is_the_definition(Attention(*qkv(2, 2, 3, 4), who, {"scale": scale}))


@pytest.mark.parametrize("who", [None, mask.causal(), mask.window(9), mask.prefix(5)], ids=repr)
def test_whole_numbers_are_numbers(who):
    given = qkv(2, 2, 12, 4)
    whole = regard.attend(*given, who, scale=1, softcap=2, dropout=0)
    assert torch.equal(whole, regard.attend(*given, who, scale=1.0, softcap=2.0, dropout=0.0))


class Nearness(PositionBias):
    """A bias of one's own: each head has learned how far it looks, and keys after the query count less."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.slope = torch.nn.Parameter(torch.randn(num_heads))
        self.after = torch.nn.Parameter(torch.randn(()))

    def forward(self, query, key):
        distance = key - query[:, None]
        return self.slope[:, None, None] * distance.abs().sqrt() + self.after * (distance > 0)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("who", [None, mask.causal(), mask.window(9, 4), mask.prefix([20, 3])], ids=repr)
def test_a_bias_of_ones_own(who, learned):
    bias = Nearness(4).requires_grad_(learned)
    if not learned:  # its numbers as they are: calculated in float64 they would be others
        bias.forward = lambda query, key: Nearness.forward(bias, query, key).float()
    with SHORT.apply():
        assert_is_the_definition(Attention(*qkv(2, 4, 40, 8), who, {"bias": bias}))


def test_a_position_bias_knows_that_the_queries_are_the_last_positions():
    bias = Nearness(2)
    q, k, v = qkv(1, 2, 40, 4)
    last = regard.attend(q[:, :, 30:], k, v, mask.causal(), bias=bias)
    torch.testing.assert_close(last, regard.attend(q, k, v, mask.causal(), bias=bias)[:, :, 30:])


def test_learned_numbers_in_float32_beside_half_precision():
    """A module keeps its weights in float32 while autocast hands over half precision."""
    bias = regard.positions.T5Relative(2)
    given = qkv(1, 2, 9, 4, dtype=torch.bfloat16)
    output = regard.attend(*given, bias=bias)
    (gradient,) = torch.autograd.grad(output.float().sum(), bias.weight)
    assert (output.dtype, gradient.dtype) == (torch.bfloat16, torch.float32)
    table = bias.dense(9, 9).bfloat16().detach()
    assert torch.equal(output, regard.attend(*given, bias=table.requires_grad_()))


# The kernel that runs.


def kernels(compute):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        compute()
    return {event.key for event in seen.key_averages()}


FITS_THE_KERNEL = {
    "plain": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), None),
    "d_value narrower": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 5), None),
    "d_value wider": ((2, 4, 9, 5), (2, 4, 9, 5), (2, 4, 9, 8), None),
    "three axes": ((4, 9, 8), (4, 9, 8), (4, 9, 8), None),
    "two axes": ((9, 8), (9, 8), (9, 8), None),
    "five axes": ((3, 2, 4, 9, 8), (3, 2, 4, 9, 8), (3, 2, 4, 9, 8), None),
    "grouped heads": ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8), None),
    "causal": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.causal()),
    "causal, fewer queries": ((2, 4, 3, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.causal()),
    "padding": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.padding([9, 4])),
    "padding and causal": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.padding([9, 0]) & mask.causal()),
    "window": ((2, 4, 40, 8), (2, 4, 40, 8), (2, 4, 40, 8), mask.window(5)),
    "documents": (
        (2, 4, 9, 8),
        (2, 4, 9, 8),
        (2, 4, 9, 8),
        mask.documents([0, 0, 0, 1, 1, 2, 2, 2, 2]) & mask.causal(),
    ),
    "predicate": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.where(lambda i, j: (i - j) % 3 == 0)),
    "all at once": ((3, 2, 4, 5, 8), (3, 2, 2, 9, 8), (3, 2, 2, 9, 5), mask.padding([9, 4]) & mask.causal()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("q", "k", "v", "who"), FITS_THE_KERNEL.values(), ids=FITS_THE_KERNEL)
def test_the_fused_kernel_runs(q, k, v, who, training):
    q, k, v = (torch.randn(shape, requires_grad=training) for shape in (q, k, v))
    ran = kernels(lambda: regard.attend(q, k, v, who))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in ran
    assert "aten::_scaled_dot_product_attention_math" not in ran


@pytest.mark.parametrize("options", [{}, {"sinks": torch.zeros(1)}, {"scale": 0.3}], ids=list)
def test_a_causal_mask_is_a_flag_and_no_tensor(options):
    q = torch.randn(1, 1, 9, 4)
    with OperatorTrace() as seen:
        regard.attend(q, q, q, mask.causal(), **options)
    (call,) = seen.fused
    assert call["is_causal"]
    assert call.get("attn_mask") is None
    assert not {"aten::arange", "aten::tril", "aten::where"} & seen.operators
    with OperatorTrace() as seen:
        regard.attend(q, q, q, mask.causal(offset=1), **options)
    assert all(call["attn_mask"] is not None for call in seen.fused)


# Dropout.


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan"), float("inf")])
def test_dropout_is_a_share(dropout):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"dropout=.*between 0 and 1"):
        regard.attend(q, q, q, dropout=dropout)


def test_dropped_weights_are_zero_and_the_others_make_good():
    """With one key of value 1 the output is the weight itself."""
    q, k, v = torch.randn(1, 1, 10_000, 4), torch.randn(1, 1, 1, 4), torch.ones(1, 1, 1, 1)
    weights = regard.attend(q, k, v, dropout=0.2).flatten()
    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 0.8))
    # Five standard deviations of 10,000 coin tosses.
    assert abs(kept.float().mean().item() - 0.8) < 5 * (0.8 * 0.2 / 10_000) ** 0.5


def test_the_mean_under_dropout_is_the_output_without():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 6)
    many = [t.expand(20_000, *t.shape[1:]) for t in (q, k, v)]
    dropped = regard.attend(*many, dropout=0.3).double()
    error = dropped.mean(dim=0) - regard.attend(q, k, v)[0]
    assert (error.abs() < 5 * dropped.std(dim=0) / 20_000**0.5).all()


@pytest.mark.parametrize(
    "who",
    [
        None,
        mask.causal(),
        mask.padding([40, 17]),
        mask.window(9, 4),
        mask.documents([0] * 15 + [1] * 25) & mask.causal(),
        mask.where(lambda i, j: (i - j) % 3 == 0),
        mask.prefix([20, 3]) & ~mask.window(2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"sinks": torch.tensor([0.5, -1.0])}], ids=list)
def test_the_backward_pass_drops_the_weights_that_the_forward_pass_dropped(who, options):
    """With v = 1 (the identity) the output is the dropped weights themselves, from which every gradient follows."""
    q, k, _ = qkv(2, 2, 40, 8, dtype=torch.float64)
    v = torch.eye(40, dtype=torch.float64).expand(2, 2, 40, 40).clone().requires_grad_()
    options = {name: value if name == "softcap" else value.double() for name, value in options.items()}
    with SHORT.apply():
        dropped = regard.attend(q, k, v, who, dropout=0.4, **options)
        cotangent = torch.randn_like(dropped)
        gradients = torch.autograd.grad(dropped, (q, k, v), cotangent)

    weights = regard.steps(q, k, v, who, **options).weights
    kept = (dropped != 0).double()
    share = kept.sum() / (weights != 0).sum()
    assert 0.55 < share < 0.65
    assert not torch.equal(kept[0, 0], kept[0, 1])
    expected = weights * kept / 0.6
    torch.testing.assert_close(dropped, expected)
    torch.testing.assert_close(gradients[:2], torch.autograd.grad(expected, (q, k), cotangent))
    torch.testing.assert_close(gradients[2], dropped.transpose(-2, -1) @ cotangent)


def test_strips_of_rows_and_batch_rows_are_dropped_apart():
    """A generator that began anew with every strip would drop the same columns in each."""
    q = torch.zeros(3, 2, 64, 4)
    v = torch.eye(64).expand(3, 2, 64, 64)
    with SHORT.apply():
        kept = regard.attend(q, q, v, dropout=0.5) != 0
    rows = {tuple(row) for row in kept.flatten(0, 2).tolist()}
    assert len(rows) == 3 * 2 * 64


def test_a_seed_drops_the_same_weights_again():
    q, k, v = qkv(2, 2, 40, 8)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(regard.attend(q, k, v, mask.causal(), dropout=0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_without_dropout_no_random_number_is_drawn():
    given = qkv(1, 1, 3, 4)
    before = torch.get_rng_state()
    for options in ({}, {"softcap": 2.0}, {"dropout": 0.0}):
        regard.attend(*given, mask.causal(), **options)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("who", [None, mask.causal(), mask.window(2), mask.padding([3])], ids=repr)
def test_dropout_of_everything(who):
    given = qkv(1, 2, 3, 4)
    output = regard.attend(*given, who, dropout=1.0)
    assert (output == 0).all()
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(output.sum(), given))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nothing_to_attend_to_under_dropout__pytorch_152028(dropout):
    q, k, v = (torch.randn(2, 2, 3, 4, requires_grad=True) for _ in "qkv")
    output = regard.attend(q, k, v, mask.padding([3, 0]), dropout=dropout)
    assert (output[1] == 0).all()
    for t in (output, *torch.autograd.grad(output.sum(), (q, k, v))):
        assert t.isfinite().all()


# Bugs that other libraries shipped.


def test_rectangular_causal_aligns_last_positions__pytorch_108108():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    whole = torch.cat([torch.randn(1, 2, 4, 4), q], dim=-2)
    torch.testing.assert_close(
        regard.attend(q, k, v, mask.causal()), regard.attend(whole, k, v, mask.causal())[:, :, 4:]
    )


def test_rectangular_causal_from_the_first_position_is_pytorchs__mlx_2835():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(regard.attend(q, k, v, mask.causal(offset=0)), theirs)


def test_one_cached_query_attends_to_every_key__pytorch_103082():
    q, k, v = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    torch.testing.assert_close(regard.attend(q, k, v, mask.causal()), regard.attend(q, k, v))


def test_queries_before_the_first_key_get_zeros__x_transformers_187():
    q, k, v = torch.randn(1, 2, 7, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    output = regard.attend(q, k, v, mask.causal())
    assert (output[:, :, :4] == 0).all()
    torch.testing.assert_close(output[:, :, 4:], regard.attend(q[:, :, 4:], k, v, mask.causal()))


def test_allowed_reads_true_as_pytorchs_fused_function_does__pytorch_170400():
    t = torch.rand(3, 5) < 0.6
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=t)
    torch.testing.assert_close(regard.attend(q, k, v, mask.allowed(t)), theirs)
    torch.testing.assert_close(regard.attend(q, k, v, mask.blocked(~t)), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_padded_row_gets_zeros_and_keeps_nan_out_of_the_gradient__pytorch_41508_103749(dtype):
    q, k, v = (torch.randn(2, 4, 3, 8, dtype=dtype, requires_grad=True) for _ in "qkv")
    output = regard.attend(q, k, v, mask.padding([3, 0]))
    assert (output[1] == 0).all()
    for gradient in torch.autograd.grad(output.sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


def test_a_row_of_minus_infinity_in_the_bias_gets_zeros__pytorch_103963():
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in "qkv")
    bias = torch.zeros(3, 3)
    bias[1] = -torch.inf
    output = regard.attend(q, k, v, bias=bias)
    assert (output[:, :, 1] == 0).all()
    torch.testing.assert_close(output[:, :, ::2], regard.attend(q[:, :, ::2], k, v))


def test_a_bias_does_not_drop_the_mask__pytorch_131254():
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in "qkv")
    for who in (mask.causal(), mask.padding([2, 3])):
        torch.testing.assert_close(
            regard.attend(q, k, v, who, bias=torch.zeros(3, 3)), regard.attend(q, k, v, who), rtol=0, atol=1e-6
        )


def test_padding_on_the_left_is_what_allowed_says():
    real = torch.tensor([[False, False, True, True, True]])
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in "qkv")
    padded = regard.attend(q, k, v, mask.causal() & mask.allowed(real[:, None, None, :]))
    torch.testing.assert_close(padded[:, :, 2:], regard.attend(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:], mask.causal()))
    assert (padded[:, :, :2] == 0).all()


@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "who",
    [
        mask.causal(),
        mask.padding([40, 17]),
        mask.window(9, 4),
        mask.documents([0] * 15 + [1] * 25),
        mask.prefix([20, 3]),
        mask.where(lambda i, j: (i - j) % 3 == 0),
        ~mask.window(3),
    ],
    ids=repr,
)
def test_no_option_drops_the_mask__transformers_39389__keras_23038(who, sizes):
    """What a blocked key and its value hold changes nothing, whatever else was asked for."""
    options = {
        "scale": 0.7,
        "bias": torch.randn(4, 40, 40),
        "softcap": 3.0,
        "sinks": torch.randn(4),
    }
    q, k, v = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8), torch.randn(2, 2, 40, 8)
    may = who.dense(40, 40).expand(2, 1, 40, 40)
    for chosen in (*([name] for name in options), list(options), ["softcap", "sinks"], ["bias", "sinks"]):
        asked = {name: options[name] for name in chosen}
        with sizes.apply():
            before = regard.attend(q, k, v, who, **asked)
            for j in (20, 30, 39):
                changed_k, changed_v = k.clone(), v.clone()
                changed_k[:, :, j], changed_v[:, :, j] = 50.0, -50.0
                after = regard.attend(q, changed_k, changed_v, who, **asked)
                blocked = ~may[..., j].expand(2, 4, 40)
                assert blocked.any()
                assert torch.equal(after[blocked], before[blocked])
                assert not torch.equal(after, before)


def test_a_predicate_trains_on_the_cpu__pytorch_148752():
    """FlexAttention has no backward pass on the CPU."""
    nearby = mask.where(lambda i, j: (i - j).abs() % 4 < 2) & mask.causal()
    given = qkv(2, 2, 40, 8)
    for sizes in (SHORT, LONG):
        with sizes.apply():
            assert_is_the_definition(Attention(*given, nearby, {}))


@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"sinks": torch.zeros(2)}], ids=list)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
def test_an_empty_row_leaks_no_nan__pytorch_160064__pytorch_101967(dtype, options, sizes):
    options = {name: value if name == "softcap" else value.to(dtype) for name, value in options.items()}
    some_rows = torch.arange(40)[:, None] % 3 != 0
    for who in (
        mask.allowed(some_rows),
        mask.allowed(some_rows) & mask.causal(),
        mask.causal(offset=-7),
        mask.window(3, offset=-20),
        mask.documents([0] * 15 + [1] * 25) & mask.window(2, offset=3),
        mask.blocked(torch.ones(1, 1, dtype=torch.bool)),
    ):
        given = qkv(1, 2, 40, 4, dtype=dtype)
        with sizes.apply():
            output = regard.attend(*given, who, **options)
            gradients = torch.autograd.grad(output.sum(), given)
        empty = ~who.dense(40, 40).any(-1)
        assert empty.any()
        assert (output[:, :, empty] == 0).all()
        assert (gradients[0][:, :, empty] == 0).all()
        assert all(t.isfinite().all() for t in (output, *gradients))


@pytest.mark.parametrize("tokens", [3, 40])
def test_weights_honour_causal_as_the_output_does__pytorch_99282__pytorch_100347(tokens):
    q, k, v = qkv(1, 2, tokens, 4)
    kept = regard.steps(q, k, v, mask.causal())
    assert (kept.weights.triu(1) == 0).all()
    torch.testing.assert_close(kept.weights @ v, regard.attend(q, k, v, mask.causal()))


@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "who",
    [
        None,
        mask.causal(),
        mask.padding([40, 17]) & mask.causal(),
        mask.window(9),
        mask.documents([0] * 15 + [1] * 25) & mask.causal(),
        mask.prefix(5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("options", [{}, {"sinks": torch.zeros(2)}, {"softcap": 2.0}], ids=list)
def test_the_same_bits_with_and_without_gradients__pytorch_86120__pytorch_97111(options, who, sizes):
    q, k, v = qkv(2, 2, 40, 8)
    with sizes.apply():
        training = regard.attend(q, k, v, who, **options)
        with torch.no_grad():
            assert torch.equal(regard.attend(q, k, v, who, **options), training)
        with torch.inference_mode():
            assert torch.equal(regard.attend(q, k, v, who, **options), training)
        detached = regard.attend(q.detach(), k.detach(), v.detach(), who, **options)
        assert torch.equal(detached, training)
        assert not detached.requires_grad


@pytest.mark.parametrize("options", [{}, {"softcap": 30.0}, {"sinks": torch.full((1,), -30.0)}], ids=list)
@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
def test_one_window_convention_in_every_kernel__transformers_39408__xformers_923__vllm_3385(options, sizes):
    """window(n, m) sees itself, the n - 1 before it and the m after it, whatever computes it."""
    q, v = torch.zeros(1, 1, 40, 8), torch.eye(40)[None, None]
    for before, after in ((1, 0), (4, 0), (4, 3), (1, 5), (30, 0)):
        window, same = mask.window(before, after), mask.documents([7] * 40)
        for who in (window, window & same, window & mask.padding([40]), window & mask.where(lambda i, j: j >= 0)):
            with sizes.apply():
                seen = regard.attend(q, q, v, who, **options)[0, 0] > 0
            for i, row in enumerate(seen.tolist()):
                assert [j for j, sees in enumerate(row) if sees] == list(
                    range(max(0, i - before + 1), min(40, i + after + 1))
                )


@pytest.mark.parametrize("sizes", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("queries", [1, 3, 17])
@pytest.mark.parametrize(
    "who",
    [
        mask.causal(),
        mask.window(9),
        mask.window(9, 2) | mask.window(1),
        mask.prefix(11),
        mask.documents([0] * 15 + [1] * 25) & mask.causal(),
        mask.documents([0, 1] * 20) & mask.causal(),
        mask.where(lambda i, j: (i - j) % 3 == 0) & mask.causal(),
    ],
    ids=repr,
)
def test_the_last_queries_alone_are_the_last_rows_of_all__litgpt_2182(who, queries, sizes):
    """What a cache needs: fewer queries than keys are the last positions, for every mask and kernel."""
    q, k, v = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8), torch.randn(2, 2, 40, 8)
    with sizes.apply():
        whole = regard.attend(q, k, v, who)
        last = regard.attend(q[:, :, -queries:], k, v, who)
    torch.testing.assert_close(last, whole[:, :, -queries:])


def test_every_batch_axis_has_its_documents():
    """Of two batch axes, only the first rows of the flattened batch were computed; the others came out as zeros."""
    given = qkv(3, 2, 2, 12, 4)
    ids = [[0] * 5 + [1] * 7, [0] * 8 + [1] * 4]
    with SHORT.apply():
        plan = assert_is_the_definition(Attention(*given, mask.documents(ids) & mask.causal(), {}))
    assert plan.kernel == "packed"


def test_what_stands_in_the_padding_changes_nothing():
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in "qkv")
    before = regard.attend(q, k, v, mask.padding([9, 4]))
    k[1, :, 4:], v[1, :, 4:] = 1e4, -1e4
    assert torch.equal(regard.attend(q, k, v, mask.padding([9, 4])), before)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("tokens", [20, 80])
@pytest.mark.parametrize("who", [None, mask.causal()], ids=repr)
def test_a_plain_call_under_vmap(who, tokens):
    q = torch.randn(3, 2, 2, tokens, 8)
    output = torch.func.vmap(lambda x: regard.attend(x, x, x, who))(q)
    torch.testing.assert_close(output, torch.stack([regard.attend(x, x, x, who) for x in q]))
