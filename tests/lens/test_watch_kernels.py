"""Modules that call PyTorch's fused kernel themselves: in every way, with masks of every shape."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

import regard
from grids import grid
from lens.watching import MODES, FunctionModel, assert_map, assert_maps, definition, random_qkv, record, sharpen

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def lower_triangle(queries, keys):
    return torch.ones(queries, keys).tril().bool()


ALLOWED = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) > 0.4
ALLOWED[..., 0] = True


@sdpa_kernel(SDPBackend.MATH)
def kernel_for_short_sequences(*qkv):
    return sdpa(*qkv, is_causal=True)


CAUSAL_CALL = {"allowed": lower_triangle(5, 7)}
CALLS = {
    "nothing": (sdpa, {}, {}),
    "positional": (lambda *qkv: sdpa(*qkv, ALLOWED, 0.0), {}, {"allowed": ALLOWED}),
    "by keyword": (lambda q, k, v: sdpa(value=v, key=k, query=q, attn_mask=ALLOWED), {}, {"allowed": ALLOWED}),
    "strided": (lambda *qkv: sdpa(*(t.mT.contiguous().mT for t in qkv)), {}, {}),
    "the kernel for short sequences": (kernel_for_short_sequences, {}, CAUSAL_CALL),
    "causal": (partial(sdpa, is_causal=True), {}, CAUSAL_CALL),
    "causal, more queries": (partial(sdpa, is_causal=True), {"queries": 9}, {"allowed": lower_triangle(9, 7)}),
    "scale": (partial(sdpa, scale=0.1), {}, {"scale": 0.1}),
    "negative scale": (partial(sdpa, scale=-0.7), {}, {"scale": -0.7}),
    "scale 0": (partial(sdpa, scale=0.0), {}, {"scale": 0.0}),
    "grouped": (partial(sdpa, enable_gqa=True), {"kv_heads": 2}, {}),
    "one head of keys, causal": (partial(sdpa, enable_gqa=True, is_causal=True), {"kv_heads": 1}, CAUSAL_CALL),
    "wider values": (sdpa, {"v_width": 20}, {}),
    "narrower values": (sdpa, {"v_width": 3}, {}),
    "one query": (sdpa, {"queries": 1}, {}),
    "one key": (sdpa, {"keys": 1}, {}),
    "odd width": (sdpa, {"width": 5}, {}),
}
MAX_ERRORS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}


@grid(call=CALLS, dtype=MAX_ERRORS, mode=MODES)
def test_every_way_to_call_the_kernel(call, dtype, mode):
    function, sizes, expected = CALLS[call]
    q, k, v = random_qkv(**sizes, dtype=dtype)
    with mode():
        recording, _ = record(FunctionModel(function), q, k, v)
    assert_map(recording["attn"], definition(q, k, **expected), max_error=MAX_ERRORS[dtype])
    assert recording["attn"].shape == (2, 4, q.shape[2], k.shape[2])


SHAPES = [(5, 7), (2, 1, 1, 7), (2, 4, 5, 7), (4, 1, 7), (1, 7), (5, 1)]


@grid(kind=["bool", "minus infinity", "lowest", "bias"], shape=SHAPES, mode=MODES)
def test_every_shape_of_mask(kind, shape, mode):
    q, k, v = random_qkv()
    allowed = torch.rand(shape) > 0.4
    if shape[-1] > 1:
        allowed[..., 0] = True  # a row of nothing is another test
    low = {"minus infinity": -math.inf, "lowest": torch.finfo(torch.float32).min}.get(kind)
    bias = torch.randn(shape) if low is None else torch.zeros(shape).masked_fill(~allowed, low)
    with mode():
        recording, out = record(FunctionModel(), q, k, v, allowed if kind == "bool" else bias)
    # What PyTorch makes of a row that may attend to nothing is its own affair: 0, NaN, or a mean.
    rows = torch.ones(2, 4, 5).bool() if kind == "bias" else allowed.expand(2, 4, 5, 7).any(-1)
    expected = definition(q, k, **({"allowed": allowed} if kind == "bool" else {"bias": bias}))
    m = recording["attn"]
    torch.testing.assert_close(m.dense().double()[rows], expected[rows], atol=1e-5, rtol=0)
    if rows.all() or kind == "bool":
        assert not out.isnan().any()
        assert m.error < 1e-4
        assert m.verified
    if kind == "bool":
        assert not m.dense()[~rows].any()


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_lowest_numbers_is_the_mean_as_the_kernel_has_it(mode):
    """-3.4e38 on every key blocks none of them: scores are lost in it, and all weights are equal."""
    q, k, v = random_qkv()
    mask = torch.zeros(5, 7)
    mask[2] = torch.finfo(torch.float32).min
    with mode():
        recording, out = record(FunctionModel(), q, k, v, mask)
    torch.testing.assert_close(out[:, :, 2], v.mean(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(recording["attn"].dense()[:, :, 2], torch.full((2, 4, 7), 1 / 7), atol=1e-5, rtol=0)
    assert recording["attn"].verified


@grid(shape=[(4,), (2, 3, 4)], mode=MODES)
def test_other_numbers_of_axes(shape, mode):
    q, k, v = (torch.randn(*shape, tokens, 8) for tokens in (5, 7, 7))
    with mode():
        recording, _ = record(FunctionModel(), q, k, v)
    assert_map(recording["attn"], definition(q, k))


@pytest.mark.parametrize(
    "known", [{}, {"allowed": lower_triangle(5, 7)}, {"bias": torch.linspace(-1, 1, 5)[:, None]}], ids=",".join
)
def test_dropout_of_the_call(known):
    q, k, v = random_qkv()
    model = FunctionModel(lambda *qkv: sdpa(*qkv, next(iter(known.values()), None), dropout_p=0.4))
    recording, _ = record(model, q.requires_grad_(), k, v)
    assert recording["attn"].dropout == 0.4
    assert_map(recording["attn"], definition(q, k, **known))


def test_a_mask_that_learns():
    """A bias with a gradient, as Swin has it."""
    q, k, v = random_qkv(queries=7)
    bias = torch.randn(4, 7, 7, requires_grad=True)
    with regard.watch(model := FunctionModel()) as recording:
        watched = torch.autograd.grad(model(q, k, v, bias).sum(), bias)
    assert torch.equal(*watched, *torch.autograd.grad(model(q, k, v, bias).sum(), bias))
    assert_map(recording["attn"], definition(q, k, bias=bias.detach()))


@pytest.mark.parametrize("mode", MODES)
def test_autocast(mode):
    q, k, v = random_qkv()
    with mode(), torch.autocast("cpu", torch.bfloat16):
        recording, _ = record(FunctionModel(), q, k, v)
    assert_map(recording["attn"], definition(q.bfloat16(), k.bfloat16()), max_error=2e-2)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_call_that_is_recomputed_in_the_backward_pass_has_one_map(use_reentrant):
    q, k, v = random_qkv()
    model = FunctionModel(lambda *qkv: checkpoint(sdpa, *qkv, use_reentrant=use_reentrant))
    with regard.watch(model) as recording:
        model(q.requires_grad_(), k, v).sum().backward()
    assert_maps(recording, {"attn": definition(q, k)})


def test_several_calls_in_one_module_have_a_map_each():
    """As in an attention of two streams: neither is taken for the rest of the other."""
    one, other = random_qkv(), random_qkv(seed=1)
    recording, _ = record(FunctionModel(lambda *qkv: sdpa(*qkv) + sdpa(*other)), *one)
    assert_maps(recording, {"attn": definition(*one[:2]), "attn#1": definition(*other[:2])})


def test_a_call_outside_the_model_is_not_the_models():
    q, k, v = random_qkv()
    with regard.watch(model := FunctionModel()) as recording:
        model(q, k, v)
        sdpa(k, k, k)
        FunctionModel()(k, k, k)
    assert_maps(recording, {"attn": definition(q, k)})


OURS = [None, regard.mask.causal(), regard.mask.window(3), regard.mask.causal() & regard.mask.padding([9, 4])]


@grid(mask=OURS, mode=MODES)
def test_regards_own_modules_on_their_own_kernels(mask, mode):
    model = sharpen(regard.MultiHeadAttention(32, 4, num_kv_heads=2))
    x = torch.randn(2, 9, 32)
    with mode():
        recording, _ = record(model, x, mask=mask)
    assert_maps(recording, {"": copy.deepcopy(model).double().steps(x.double(), mask=mask).weights.detach()})


BROADCAST = {
    "one query for all texts": (lambda q, k, v: (q[:1], k, v)),
    "one head of queries": (lambda q, k, v: (q[:, :1], k, v)),
    "one head of keys": (lambda q, k, v: (q, k[:, :1], v[:, :1])),
    "keys of one text": (lambda q, k, v: (q, k[:1], v)),
    "values of one text": (lambda q, k, v: (q, k, v[:1])),
    "five axes": (lambda q, k, v: (q[:1, None], k[:, None], v[:, None])),
}


@grid(name=BROADCAST, mode=MODES)
def test_a_call_that_pytorch_broadcasts(name, mode):
    q, k, v = BROADCAST[name](*random_qkv())
    expected = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).expand(2, *([1] * (q.ndim == 5)), 4, 5, 7)
    with mode():
        recording, _ = record(FunctionModel(), q, k, v)
    assert not recording.notes
    assert_map(recording["attn"], expected.flatten(0, -4))
    assert "2 x 5 x 7" in str(recording)


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_of_five_axes(mode):
    q, k, v = torch.randn(3, 2, 3, 4, 5, 8)
    allowed = (torch.rand(2, 3, 1, 5, 5) < 0.6) | torch.eye(5).bool()
    with mode():
        recording, _ = record(FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=allowed)), q, k, v)
    assert_map(recording["attn"], definition(q, k, allowed=allowed).flatten(0, 1))


@grid(variant=["upper left", "lower right"], mode=MODES)
def test_a_causal_bias_is_read_by_its_meaning(variant, mode):
    """Its memory holds no numbers."""
    make = causal_upper_left if variant == "upper left" else causal_lower_right
    q, k, v = random_qkv()
    with mode():
        recording, _ = record(FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=make(5, 7))), q, k, v)
    allowed = torch.ones(5, 7).tril(0 if variant == "upper left" else 2).bool()
    assert_map(recording["attn"], definition(q, k, allowed=allowed))
    assert "causal" in recording.entry("attn").mask


@pytest.mark.parametrize("hidden", [-1e9, -1e5, torch.finfo(torch.float32).min])
def test_rows_of_padding_do_not_count_for_or_against_a_map(hidden):
    """Left padding and a causal mask in one sum: the first rows have the same great number on every key."""
    q, k, v = random_qkv(queries=7)
    allowed = torch.ones(7, 7).tril().bool() & (torch.arange(7) >= 3)
    bias = torch.zeros(7, 7).masked_fill(~allowed, hidden)
    recording, _ = record(FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=bias)), q, k, v)
    m = recording["attn"]
    assert_map(m, definition(q, k, allowed=allowed), (torch.arange(7) >= 3).expand(2, 7))
    m.scale, m.answer_cache = m.scale * 1.1, {}
    assert not m.verified


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_nested_tensors_run_watched_and_are_noted(mode):
    """Texts of several lengths side by side, jagged. In inference mode PyTorch itself fails."""

    def attend(x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (x, x * 2, x))
        return sdpa(q, k, v).transpose(1, 2).flatten(-2).values()

    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    with mode():
        recording, _ = record(FunctionModel(attend), x)
    (note,) = recording.notes
    assert note.startswith("attn: ")
    assert "nested" in note


def test_what_pytorch_refuses_it_says_itself():
    model = FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=7))
    with pytest.raises(TypeError, match="attn_mask"), regard.watch(model):
        model(*random_qkv())
