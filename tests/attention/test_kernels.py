"""Each kernel by itself: gradients, batch rows, numbers at the edge of what can be represented, memory."""

import os
import subprocess
import sys

import pytest
import torch

import regard
from cases import DEFAULT_LIMITS, HALF, SMALL_LIMITS, Attention, KernelLimits, OperatorTrace, assert_is_the_definition
from grids import grid
from regard import mask
from regard.attention.bias import PositionBias
from regard.attention.kernels import fused
from regard.attention.kernels.call import AttentionCall
from regard.attention.plan import choose
from regard.attention.positions import ALiBi, T5Relative

TOKENS = 40


def masks(tokens=TOKENS, rows=slice(None)):
    """One mask for each way to the kernels, of all of three batch rows or of some: kernel, limits and mask by name."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([tokens, tokens // 2, 0])[rows]
    position = torch.arange(tokens)
    real = (position >= torch.tensor([0, tokens // 3, tokens - 1])[:, None])[rows, None, None, :]
    ids_of_row = (torch.rand(3, tokens, generator=generator) < 0.2).cumsum(-1)
    ids = ids_of_row[rows]
    steps = torch.tensor([2, 3, 4])[rows, None, None, None]
    by_head = (torch.rand(3, 4, tokens, tokens, generator=generator) < 0.4)[rows]
    at_any_limits = {
        "full": ("fused", None),
        "causal": ("fused", mask.causal()),
        "padding": ("fused", mask.padding(lengths)),
        "padding on the left, causal": ("fused", mask.allowed(real) & mask.causal()),
        "window": ("bands", mask.window(5)),
        "causal, queries early": ("bands", mask.causal(offset=-tokens // 2)),
        "documents": ("packed", mask.documents(ids_of_row[0])),
        "documents by row, causal": ("packed", mask.documents(ids) & mask.causal()),
        "documents of one length": ("packed", mask.documents(position // 5) & mask.causal()),
        "pairs by row": ("packed", mask.documents(ids, ids.flip(-1))),
    }
    tiles_or_dense = {
        "predicate": mask.where(lambda i, j: (i - j) % 3 == 0),
        "predicate by row": mask.where(lambda i, j: (i - j) % steps == 0) & mask.causal(),
        "prefix by row": mask.prefix(lengths // 2),
        "or": mask.window(3) | mask.padding(lengths // 4),
        "not": ~mask.window(4),
        "tensor by row and head": mask.allowed(by_head),
        "nobody": mask.blocked(torch.ones(tokens, 1, dtype=torch.bool)),
    }
    return {
        **{name: (kernel, SMALL_LIMITS, m) for name, (kernel, m) in at_any_limits.items()},
        **{f"{name}: tiles": ("tiles", SMALL_LIMITS, m) for name, m in tiles_or_dense.items()},
        **{f"{name}: dense": ("dense", DEFAULT_LIMITS, m) for name, m in tiles_or_dense.items()},
    }


NAMES = list(masks())
PACKED = ["documents by row, causal", "documents of one length", "pairs by row"]
ONE_OF_EACH_KERNEL = ["full", "causal", "padding", "window", *PACKED, "or: tiles", "or: dense"]


class Standing(PositionBias):
    """A bias that a user wrote: it depends on where a token stands, not on distances."""

    num_heads = 4

    def __init__(self):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, query, key):
        return self.strength[:, None, None] * (query[:, None] * 3.0 + key * 7.0).sin().abs()


def blocking(tokens):
    """Of the first head some keys, of the second all keys of some rows, of the third everything."""
    bias = torch.linspace(-1, 1, 4 * tokens * tokens).view(4, tokens, tokens)
    bias[0, :, 3:9], bias[1, :20], bias[2] = -torch.inf, -torch.inf, -torch.inf
    return bias


OPTIONS = {
    "plain": lambda tokens: {},
    "sinks": lambda tokens: {"sinks": torch.linspace(-1, 1, 4)},
    "bias": lambda tokens: {"bias": torch.linspace(-1, 1, tokens * tokens).sin().view(tokens, tokens)},
    "bias that blocks": lambda tokens: {"bias": blocking(tokens)},
    "softcap": lambda tokens: {"softcap": 2.0},
}
LEARNED_OPTIONS = {
    "learned sinks": lambda tokens: {"sinks": torch.linspace(-1, 1, 4).requires_grad_()},
    "ALiBi": lambda tokens: {"bias": ALiBi(4)},
    "negative scale": lambda tokens: {"scale": -0.4},
    "learned bias that blocks": lambda tokens: {"bias": blocking(tokens).requires_grad_()},
    "learned bias of one axis": lambda tokens: {"bias": torch.linspace(-1, 1, tokens).requires_grad_()},
    "learned bias and sinks": lambda tokens: {
        "bias": torch.linspace(-1, 1, 4 * tokens * tokens).view(4, tokens, tokens).requires_grad_(),
        "sinks": torch.zeros(4).requires_grad_(),
        "softcap": 0.9,
    },
    "written by a user": lambda tokens: {"bias": Standing()},
    "T5": lambda tokens: {"bias": T5Relative(4, num_buckets=4, max_distance=5)},
}
BY_ROWS = "softcap", "negative scale", "T5", "written by a user"
CHUNKED_OPTIONS = {*BY_ROWS, *(name for name in LEARNED_OPTIONS if name.startswith("learned bias"))}


def attention(name, option="plain", *, tokens=TOKENS, dtype=torch.float32, rows=slice(None), width=8):
    """Three batch rows, or some of them; four heads that share two of keys; the limits at which its kernel runs."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, heads, tokens, width, generator=generator).to(dtype)[rows].requires_grad_()
        for heads in (4, 2, 2)
    )
    kernel, limits, m = masks(tokens, rows)[name]
    options = {**OPTIONS, **LEARNED_OPTIONS}[option](tokens)
    for key, value in options.items():
        if isinstance(value, torch.Tensor):
            options[key] = value.detach().to(dtype).requires_grad_(value.requires_grad)
        elif isinstance(value, torch.nn.Module):
            value.to(dtype)
    if option in CHUNKED_OPTIONS:
        kernel = "chunked"
    elif kernel == "fused" and "bias" in options and (option == "ALiBi" or name.startswith("padding")):
        kernel = "tiles"  # the fused kernel would need a bias of every pair as a tensor
    return kernel, limits, Attention(q, k, v, m, options)


@grid(name=NAMES, option=OPTIONS)
def test_it_runs_and_is_the_definition__pytorch_148752_160064_101967_103963(name, option):
    kernel, limits, case = attention(name, option)
    with limits.apply():
        assert assert_is_the_definition(case).kernel == kernel


@grid(name=ONE_OF_EACH_KERNEL, option=LEARNED_OPTIONS)
def test_gradients_of_learned_options_are_the_definitions_in_float64(name, option):
    kernel, limits, case = attention(name, option, tokens=19, dtype=torch.float64)
    with limits.apply():
        assert assert_is_the_definition(case).kernel == kernel


@grid(name=ONE_OF_EACH_KERNEL, option=["plain", "learned sinks", "learned bias and sinks"])
def test_a_gradient_is_the_same_where_no_other_is_needed(name, option):
    _, limits, case = attention(name, option, tokens=24)
    with limits.apply():
        expected = case.gradients(case.attend().sum(), torch.ones(()))
        leaves = case.leaves
        for alone in leaves:
            for name_of_leaf, t in leaves.items():
                t.requires_grad_(name_of_leaf == alone)
            (gradient,) = torch.autograd.grad(case.attend().sum(), leaves[alone])
            assert torch.equal(gradient, expected[alone])


@grid(name=["window", "documents by row, causal", "prefix by row: tiles"], option=["plain", "sinks", "softcap"])
def test_gradients_in_half_precision_do_not_gather_rounding(name, option):
    """A key has a part of its gradient in each block of rows: summed up in half precision, 16 of them lost two bits."""
    _, _, case = attention(name, option, tokens=256, dtype=torch.bfloat16, rows=slice(0, 1))
    with SMALL_LIMITS.apply():
        assert_is_the_definition(case)


@grid(name=NAMES, option=OPTIONS, dtype=[torch.float32, torch.float64, *HALF])
def test_batch_rows_are_independent_bit_for_bit(name, option, dtype):
    sizes = {"tokens": 33, "dtype": dtype, "width": 8 if dtype == torch.float32 else 7}
    _, limits, together = attention(name, option, **sizes)
    with limits.apply():
        output = together.attend()
        gradients = together.gradients(output, torch.ones_like(output)) if dtype == torch.float32 else {}
        for rows in (slice(0, 1), slice(1, 3)):
            _, _, alone = attention(name, option, rows=rows, **sizes)
            part = alone.attend()
            assert torch.equal(part, output[rows])
            for leaf, gradient in alone.gradients(part, torch.ones_like(part)).items() if gradients else ():
                assert torch.equal(gradient, gradients[leaf][rows])


@grid(name=NAMES, option=["plain", "sinks", "softcap"], dtype=[torch.float32, *HALF])
def test_no_finite_number_becomes_nan(name, option, dtype):
    _, limits, case = attention(name, option, dtype=dtype)
    with torch.no_grad():
        case.q.mul_(1e3)
        case.k.mul_(1e3)
    with limits.apply():
        output = case.attend()
        assert output.isfinite().all()
        for gradient in case.gradients(output, torch.full_like(output, 1e-3)).values():
            assert not gradient.isnan().any()
        # Of scores of 1e8, PyTorch's backward pass makes NaN on a CPU without vector instructions.
        with torch.no_grad():
            case.q.mul_(10)
            case.k.mul_(10)
            assert case.attend().isfinite().all()


@grid(
    name=NAMES,
    option=["plain", "sinks"],
    dtype=[torch.float32, torch.bfloat16],
    tokens=[3, TOKENS],
    bad=[float("nan"), float("inf")],
)
def test_what_is_not_finite_stays_in_its_rows(name, option, dtype, tokens, bad):
    """Of a query or a key: the rows that are NaN by the definition.

    On few keys, PyTorch 2.13's CPU kernel gives zeros for a row of NaN; in half precision and from 16 keys on, for a
    row with an infinite score.
    """
    at = tokens // 2
    for input_name in "qk":
        _, limits, case = attention(name, option, tokens=tokens, dtype=dtype)
        with torch.no_grad():
            getattr(case, input_name)[0, 0, at] = bad
        expected = case.in_float64().steps().output.isnan().any(-1)
        with limits.apply():
            assert torch.equal(case.attend().isnan().any(-1), expected), input_name
            with torch.no_grad():
                assert torch.equal(case.attend().isnan().any(-1), expected), input_name


@grid(
    m=[None, mask.causal(), mask.padding([3, 2]), mask.window(2)],
    dtype=[torch.float32, torch.float64, torch.bfloat16],
    tokens=[3, 20, 70],
)
def test_rows_whose_scores_overflow_are_not_finite(m, dtype, tokens):
    """A kernel may give zeros for them (AVX-512, few keys): finite, and wrong."""
    q, k, v = (torch.randn(2, 2, tokens, 8).to(dtype) for _ in "qkv")
    # Every product of one sign, so that no order of adding them makes inf - inf; key 0 and odd ones give -inf.
    q[0, 0], k[0, 0] = (t[0, 0].abs() * (1e200 if dtype == torch.float64 else 1e30) for t in (q, k))
    k[0, 0, [0, *range(1, tokens, 2)]] *= -1
    wide = torch.promote_types(dtype, torch.float32)
    damaged = regard.steps(q.to(wide), k.to(wide), v.to(wide), m).output.isnan()
    assert damaged.any()
    assert torch.equal(regard.attend(q, k, v, m).isnan(), damaged)


@pytest.mark.more
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_on_cpus_with_fewer_instructions(capability):
    """PyTorch's kernel for each returns other numbers where a row is not finite."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not_finite", __file__]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"sinks": torch.zeros(32)}], ids=list)
@pytest.mark.parametrize(
    ("max_dense_pairs", "m"),
    [
        *((2**20, m) for m in (None, mask.causal(), mask.padding([4096]), mask.where(lambda i, j: j % 2 == 0))),
        *((0, m) for m in (mask.window(2048), mask.prefix(100), mask.where(lambda i, j: j < 4000))),
    ],
    ids=repr,
)
def test_heads_that_share_keys_do_not_copy_them(m, max_dense_pairs, options):
    """32 query heads on one key head: keys and values written out for each would be 32 times as large."""
    q = torch.randn(1, 32, 4, 64, requires_grad=True)
    k, v = (torch.randn(1, 1, 4096, 64, requires_grad=True) for _ in "kv")
    with KernelLimits(max_dense_pairs).apply(), OperatorTrace() as trace:
        output = regard.attend(q, k, v, m, **options)
        torch.autograd.grad(output.sum(), (q, k, v))
    assert "aten::repeat_interleave" not in trace.operators
    assert trace.max_bytes <= 4 * k.numel() * k.element_size()


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, TOKENS)], ids=["mask", "bias"])
def test_the_call_of_a_gpu_joins_the_causal_flag_and_a_mask_of_keys(bias):
    """There PyTorch's public function runs, which takes one of them."""
    q, k, v = (torch.randn(2, heads, TOKENS, 8) for heads in (4, 2, 2))
    m = mask.causal() & mask.padding([TOKENS, 9])
    call = AttentionCall.from_inputs(q, k, v, m, scale=0.3, bias=bias)
    (block,) = choose(call).schedule(call)
    assert block.causal
    torch.testing.assert_close(fused.run(call, block), regard.steps(q, k, v, m, scale=0.3, bias=bias).output)
