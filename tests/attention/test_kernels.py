"""Each kernel by itself: gradients, batch rows, numbers at the edge of what can be represented, memory."""

from dataclasses import replace

import pytest
import torch

import regard
from cases import HALF, LONG, SHORT, Attention, OperatorTrace, Sizes, assert_is_the_definition
from regard import mask
from regard.attention.kernels import flash
from regard.attention.positions import ALiBi, T5Relative

TOKENS = 40

# One mask for each way to the kernels, of all of three batch rows or of some.


def masks(tokens=TOKENS, rows=slice(None), heads=4):
    """By name: the kernel at these sizes, the sizes, and the mask."""
    coins = torch.Generator().manual_seed(0)
    lengths = torch.tensor([tokens, tokens // 2, 0])[rows]
    real = (torch.arange(tokens) >= torch.tensor([0, tokens // 3, tokens - 1])[:, None])[rows, None, None, :]
    every_id = (torch.rand(3, tokens, generator=coins) < 0.2).cumsum(-1)
    ids = every_id[rows]
    steps = torch.tensor([2, 3, 4])[rows, None, None, None]
    by_head = (torch.rand(3, heads, tokens, tokens, generator=coins) < 0.4)[rows]

    def every_few(i, j):
        return (i - j) % 3 == 0

    only = {
        "full": ("fused", None),
        "causal": ("fused", mask.causal()),
        "padding": ("fused", mask.padding(lengths)),
        "padding on the left, causal": ("fused", mask.allowed(real) & mask.causal()),
        "window": ("bands", mask.window(5)),
        "window on both sides": ("bands", mask.window(4, 2)),
        "causal, queries early": ("bands", mask.causal(offset=-tokens // 2)),
        "documents": ("packed", mask.documents(every_id[0])),
        "documents by row, causal": ("packed", mask.documents(ids) & mask.causal()),
        "documents by row, window": ("packed", mask.documents(ids) & mask.window(3, 1)),
        "documents of one length": ("packed", mask.documents(torch.arange(tokens) // 5) & mask.causal()),
        "pairs": ("packed", mask.documents(torch.arange(tokens) // 4, torch.arange(tokens) // 4)),
        "pairs by row": ("packed", mask.documents(ids, ids.flip(-1))),
    }
    either = {
        "predicate": mask.where(every_few),
        "predicate by row": mask.where(lambda i, j: (i - j) % steps == 0) & mask.causal(),
        "prefix by row": mask.prefix(lengths // 2),
        "or": mask.window(3) | mask.padding(lengths // 4),
        "not": ~mask.window(4),
        "tensor by row and head": mask.allowed(by_head),
        "nobody": mask.blocked(torch.ones(tokens, 1, dtype=torch.bool)),
    }
    return {
        **{name: (kernel, SHORT, who) for name, (kernel, who) in only.items()},
        **{f"{name}: tiles": ("tiles", SHORT, who) for name, who in either.items()},
        **{f"{name}: dense": ("dense", LONG, who) for name, who in either.items()},
    }


every_mask = pytest.mark.parametrize("name", masks())
one_of_each_kernel = pytest.mark.parametrize(
    "name",
    ["full", "causal", "padding", "window", "documents by row, causal", "or: tiles", "or: dense", "not: tiles"],
)

OPTIONS = {
    "plain": lambda heads, tokens: {},
    "sinks": lambda heads, tokens: {"sinks": torch.linspace(-1, 1, heads)},
    "bias": lambda heads, tokens: {"bias": torch.linspace(-1, 1, tokens * tokens).sin().view(tokens, tokens)},
    "softcap": lambda heads, tokens: {"softcap": 2.0},
}
every_option = pytest.mark.parametrize("option", OPTIONS)


def attention(name, option="plain", *, tokens=TOKENS, dtype=torch.float32, rows=slice(None), width=8):
    """Three batch rows, or some of them; four heads that share two of keys; the sizes at which its kernel runs."""
    coins = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, heads, tokens, width, generator=coins).to(dtype)[rows].requires_grad_() for heads in (4, 2, 2)
    )
    kernel, sizes, who = masks(tokens, rows)[name]
    options = {n: t.to(dtype) if isinstance(t, torch.Tensor) else t for n, t in OPTIONS[option](4, tokens).items()}
    if option == "softcap":
        kernel = "chunked"
    elif option == "bias" and name.startswith("padding"):
        kernel = "tiles"  # together they are one number for every pair
    return kernel, sizes, Attention(q, k, v, who, options)


@every_option
@every_mask
def test_it_runs_and_is_the_definition(name, option):
    kernel, sizes, given = attention(name, option)
    with sizes.apply():
        assert assert_is_the_definition(given).kernel == kernel


# Gradients.

# What takes part in the gradient, beside q, k and v.
LEARNED = {
    "nothing": (None, {}),
    "sinks": (None, {"sinks": torch.tensor([0.3, -0.2])}),
    "fixed bias": (None, {"bias": -ALiBi(2).dense(9, 9)}),
    "softcap": ("chunked", {"softcap": 1.5}),
    "negative scale": ("chunked", {"scale": -0.4}),
    "bias": ("chunked", {"bias": torch.linspace(-1, 1, 81).view(9, 9).requires_grad_()}),
    "bias of one axis": ("chunked", {"bias": torch.linspace(-1, 1, 9).requires_grad_()}),
    "all": ("chunked", {"bias": torch.ones(2, 1, 9).requires_grad_(), "sinks": torch.zeros(2), "softcap": 0.9}),
}


@pytest.mark.parametrize("learned", LEARNED)
@one_of_each_kernel
def test_gradients_in_float64(name, learned):
    kernel, sizes, who = masks(9, slice(0, 2), heads=2)[name]
    sizes = replace(sizes, tile_rows=4, tile_columns=2, scores=2) if sizes is SHORT else sizes
    other, options = LEARNED[learned]
    if (name, learned) == ("padding", "fixed bias"):
        other = "tiles"  # together they are one number for every pair
    numbers = {n: option for n, option in options.items() if not isinstance(option, torch.Tensor)}
    tensors = {n: option.detach().double() for n, option in options.items() if isinstance(option, torch.Tensor)}
    wanted = {n: t.requires_grad_(learned != "fixed bias") for n, t in tensors.items()}
    given = [torch.randn(2, heads, 9, 2, dtype=torch.float64, requires_grad=True) for heads in (2, 1, 1)]

    def attend(q, k, v, *more):
        return regard.attend(q, k, v, who, **numbers, **dict(zip(wanted, more, strict=True)))

    with sizes.apply():
        assert regard.plan(*given, who, **numbers, **wanted).kernel == (other or kernel)
        assert torch.autograd.gradcheck(attend, (*given, *wanted.values()), fast_mode=True)


@pytest.mark.parametrize("name", ["full", "causal", "window", "or: tiles"])
def test_gradients_of_relative_positions_in_float64(name):
    _, sizes, who = masks(9, slice(0, 2), heads=2)[name]
    sizes = replace(sizes, tile_rows=4, tile_columns=2, scores=2)
    bias = T5Relative(2, num_buckets=4, max_distance=5).double()
    given = [torch.randn(2, 2, 9, 2, dtype=torch.float64, requires_grad=True) for _ in "qkv"]

    def attend(weight, *qkv):
        return torch.func.functional_call(Attends(bias, who), {"bias.weight": weight}, qkv)

    with sizes.apply():
        assert regard.plan(*given, who, bias=bias).kernel == "chunked"
        assert torch.autograd.gradcheck(attend, (bias.weight, *given), fast_mode=True)


class Attends(torch.nn.Module):
    def __init__(self, bias, who):
        super().__init__()
        self.bias, self.who = bias, who

    def forward(self, *qkv):
        return regard.attend(*qkv, self.who, bias=self.bias)


@every_option
@one_of_each_kernel
def test_only_what_is_asked_for_has_a_gradient(name, option):
    _, sizes, given = attention(name, option)
    with sizes.apply():
        expected = given.gradients(given.attend().sum(), torch.ones(()))
        for alone in "qkv":
            leaves = {n: getattr(given, n).detach().requires_grad_(n == alone) for n in "qkv"}
            output = replace(given, **leaves).attend()
            (gradient,) = torch.autograd.grad(output.sum(), leaves[alone])
            assert torch.equal(gradient, expected[alone])


@pytest.mark.parametrize("option", ["plain", "sinks", "softcap"])
@pytest.mark.parametrize("name", ["window", "documents by row, causal", "prefix by row: tiles"])
def test_gradients_in_half_precision_do_not_gather_rounding(name, option):
    """A key has a part of its gradient in each block of rows: summed up in half precision, 16 of them lost two bits."""
    _, _, given = attention(name, option, tokens=256, dtype=torch.bfloat16)
    with SHORT.apply():
        assert_is_the_definition(given)


# One batch row does not know of another.


@every_option
@every_mask
def test_batch_rows_are_independent_bit_for_bit(name, option):
    _, sizes, together = attention(name, option, tokens=33)
    with sizes.apply():
        output = together.attend()
        gradients = together.gradients(output, torch.ones_like(output))
        for rows in (slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 2), slice(1, 3)):
            _, _, alone = attention(name, option, tokens=33, rows=rows)
            part = alone.attend()
            assert torch.equal(part, output[rows])
            for n, gradient in alone.gradients(part, torch.ones_like(part)).items():
                assert torch.equal(gradient, gradients[n][rows])


@pytest.mark.parametrize("dtype", [torch.float64, *HALF])
@every_mask
def test_outputs_of_batch_rows_are_independent_in_every_dtype(name, dtype):
    for option in OPTIONS:
        _, sizes, together = attention(name, option, dtype=dtype, tokens=33, width=7)
        with sizes.apply():
            output = together.attend()
            for row in range(3):
                rows = slice(row, row + 1)
                assert torch.equal(
                    attention(name, option, dtype=dtype, tokens=33, width=7, rows=rows)[2].attend(), output[rows]
                )


# Numbers at the edge.


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("option", ["plain", "sinks", "softcap"])
@every_mask
def test_no_finite_number_becomes_nan(name, option, dtype):
    _, sizes, given = attention(name, option, dtype=dtype)
    with torch.no_grad():
        given.q.mul_(1e4)
        given.k.mul_(1e4)
    with sizes.apply():
        output = given.attend()
        assert output.isfinite().all()
        for gradient in given.gradients(output, torch.full_like(output, 1e-3)).values():
            assert not gradient.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learned", [True, False])
@every_mask
def test_minus_infinity_in_the_bias_blocks(name, learned, dtype):
    """Some keys in the first head, all keys of some rows in the second, everything in the third."""
    _, sizes, given = attention(name, dtype=dtype)
    may = torch.ones(4, TOKENS, TOKENS, dtype=torch.bool)
    may[0, :, 3:9], may[1, :20], may[2] = False, False, False
    bias = torch.zeros(4, TOKENS, TOKENS, dtype=dtype).masked_fill(~may, -torch.inf).requires_grad_(learned)
    blocked = replace(given, options={"bias": bias})
    with sizes.apply():
        output = blocked.attend()
        gradients = blocked.gradients(output, torch.ones_like(output))
    who = mask.allowed(may) if given.mask is None else given.mask & mask.allowed(may)
    expected = replace(given, mask=who).in_float64().steps()
    within = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps * given.v.abs().max().item()}
    torch.testing.assert_close(output.double(), expected.output, **within)
    assert (output[~expected.weights.any(-1)] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("tokens", [3, TOKENS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("option", ["plain", "sinks"])
@every_mask
def test_what_is_not_finite_stays_in_its_rows(name, option, dtype, tokens, bad):
    """In a query it spoils that row; in a key it spoils the rows that may attend to it.

    On few keys, PyTorch 2.13's CPU kernel gives zeros for a row of NaN; in half precision and from 16 keys on, for a
    row with an infinite score.
    """
    at = tokens // 2
    for n in "qk":
        _, sizes, given = attention(name, option, tokens=tokens, dtype=dtype)
        with torch.no_grad():
            getattr(given, n)[0, 0, at] = bad
        definition = given.in_float64().steps().output.isnan().any(-1)
        if bad != bad:
            may = torch.ones(3, 4, tokens, tokens, dtype=torch.bool)
            may = may if given.mask is None else may & given.mask.dense(tokens, tokens)
            spoiled = torch.zeros(3, 4, tokens, dtype=torch.bool)
            if n == "q":
                spoiled[0, 0, at] = may[0, 0, at].any()
            else:
                spoiled[0, :2] = may[0, :2, :, at]  # two query heads share it
            assert torch.equal(definition, spoiled)
        with sizes.apply():
            assert torch.equal(given.attend().isnan().any(-1), definition), n
            with torch.no_grad():
                assert torch.equal(given.attend().isnan().any(-1), definition), n


def as_another_cpu(output_value, lse_value):
    """PyTorch's kernel, but for rows whose weights are NaN by the definition: what comes out there differs by CPU."""
    kernel = flash.forward

    def forward(q, k, v, dropout, causal, *, attn_mask=None, scale=None):
        output, lse = kernel(q, k, v, dropout, causal, attn_mask=attn_mask, scale=scale)
        who = mask.causal(offset=0) if causal else None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            who = mask.allowed(attn_mask) if who is None else who & mask.allowed(attn_mask)
        wide = torch.promote_types(q.dtype, torch.float32)
        damaged = regard.steps(q.to(wide), k.to(wide), v.to(wide), who, scale=scale).weights.isnan().any(-1)
        return output.masked_fill(damaged[..., None], output_value), lse.masked_fill(damaged, lse_value)

    return forward


@pytest.mark.parametrize("damage", ["overflow", "nan", "inf"])
@pytest.mark.parametrize(
    "answer",
    [(float("nan"), float("nan")), (0.0, 0.0), (0.0, float("inf")), (float("nan"), float("inf"))],
    ids=["NaN", "zeros", "zeros with an infinite lse", "NaN with an infinite lse"],
)
@pytest.mark.parametrize("tokens", [3, 20, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("who", [None, mask.causal(), mask.padding([3, 2]), mask.window(2)], ids=repr)
def test_rows_that_are_not_finite_are_the_definitions_on_every_cpu(who, dtype, tokens, answer, damage, monkeypatch):
    """A kernel may give zeros where scores overflow (AVX-512, few keys): finite, and wrong."""
    q, k, v = (torch.randn(2, 2, tokens, 8).to(dtype) for _ in "qkv")
    if damage == "overflow":
        size = 1e200 if dtype == torch.float64 else 1e30
        # Every product of one sign, so that no order of adding them makes inf - inf; key 0 and odd ones give -inf.
        q[0, 0] = q[0, 0].abs() * size
        k[0, 0] = k[0, 0].abs() * size
        k[0, 0, [0, *range(1, tokens, 2)]] *= -1
    else:
        q[0, 1, tokens // 2] = float(damage)
    wide = torch.promote_types(dtype, torch.float32)
    damaged = regard.steps(q.to(wide), k.to(wide), v.to(wide), who).output.isnan()
    assert damaged.any()
    sound = regard.attend(q, k, v, who)
    monkeypatch.setattr(flash, "forward", as_another_cpu(*answer))
    output = regard.attend(q, k, v, who)
    assert torch.equal(output.isnan(), damaged)
    assert torch.equal(output[~damaged], sound[~damaged])


# Memory.


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"sinks": torch.zeros(32)}], ids=list)
@pytest.mark.parametrize(
    ("sizes", "who"),
    [
        (LONG, None),
        (LONG, mask.causal()),
        (LONG, mask.padding([4096])),
        (LONG, mask.where(lambda i, j: j % 2 == 0)),
        (Sizes(dense=0), mask.window(2048)),
        (Sizes(dense=0), mask.prefix(100)),
        (Sizes(dense=0), mask.where(lambda i, j: j < 4000)),
    ],
    ids=str,
)
def test_heads_that_share_keys_do_not_copy_them(who, sizes, options):
    """32 query heads on one key head: keys and values written out for each would be 32 times as large."""
    q = torch.randn(1, 32, 4, 64, requires_grad=True)
    k, v = (torch.randn(1, 1, 4096, 64, requires_grad=True) for _ in "kv")
    with sizes.apply(), OperatorTrace() as seen:
        output = regard.attend(q, k, v, who, **options)
        torch.autograd.grad(output.sum(), (q, k, v))
    assert "aten::repeat_interleave" not in {name.split(".")[0] for name in seen.operators}
    assert seen.largest <= 4 * k.numel() * k.element_size()
