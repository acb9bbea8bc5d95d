"""PyTorch's own modules, x-transformers, and modules that call the fused kernels themselves."""

from __future__ import annotations

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

import regard
from grids import grid
from lens.watching import (
    MODES,
    FunctionModel,
    assert_map,
    definition,
    random_qkv,
    record,
    sharpen,
    train_once,
)

ENCODER_LAYER = "aten::_transformer_encoder_layer_fwd"
NATIVE_MULTI_HEAD = "aten::_native_multi_head_attention"

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


def assert_same_operators(model, operator, *args, **kwargs) -> bool:
    """A watched model takes a fast path where it does so unwatched; returns whether it does."""

    def runs_operator():
        with torch.autograd.profiler.profile() as profile:
            model(*args, **kwargs)
        return operator in {event.name for event in profile.function_events}

    fast = runs_operator()
    with regard.watch(model):
        assert runs_operator() == fast
    return fast


def module_weights(model, *args, **kwargs) -> dict[str, Tensor]:
    """What every `nn.MultiheadAttention` in a model says its weights are, by path: its inputs once more, slowly."""
    model = copy.deepcopy(model).eval().requires_grad_()
    found = {}

    def compute(path, module, args, kwargs):
        options = {**kwargs, "need_weights": True, "average_attn_weights": False}
        found[path] = module.forward(*args, **options)[1].detach()

    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            module.register_forward_pre_hook(partial(compute, path), with_kwargs=True)
    with torch.enable_grad():
        model(*args, **kwargs)
    return found


def assert_maps(recording, expected, rows=None) -> None:
    assert list(recording) == list(expected)
    for path, dense in expected.items():
        assert_map(recording[path], dense, rows)


MULTI_HEAD = {
    "plain": {},
    "batch first": {"batch_first": True},
    "other widths": {"kdim": 12, "vdim": 20},
    "zero attention": {"add_zero_attn": True},
    "both": {"add_zero_attn": True, "add_bias_kv": True, "batch_first": True},
    "no bias": {"bias": False},
}


@grid(name=MULTI_HEAD, weights=["none", "mean", "each head"], mode=MODES)
def test_multihead_attention_of_another_sequence(name, weights, mode):
    options = MULTI_HEAD[name]
    model = sharpen(nn.MultiheadAttention(16, 4, **options))
    inputs = [torch.randn(2, n, options.get(width, 16)) for n, width in ((5, ""), (7, "kdim"), (7, "vdim"))]
    if not options.get("batch_first"):
        inputs = [t.transpose(0, 1) for t in inputs]
    options = {"need_weights": weights != "none", "average_attn_weights": weights != "each head"}
    with mode():
        recording, _ = record(model, *inputs, **options)
        expected = model(*inputs, average_attn_weights=False)[1]
    assert_maps(recording, {"": expected})


CAUSAL = torch.ones(6, 6).triu(1).bool()
CAUSAL_FLOAT = nn.Transformer.generate_square_subsequent_mask(6)
PADDED = torch.arange(6) >= torch.tensor([[6], [4]])
NOISE = torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(1))
MASKS = {
    "none": {},
    "causal": {"attn_mask": CAUSAL},
    "causal float": {"attn_mask": CAUSAL_FLOAT},
    "causal, by the flag": {"attn_mask": CAUSAL, "is_causal": True},
    "bias": {"attn_mask": NOISE[0]},
    "one for each head": {"attn_mask": NOISE > 0.9},
    "a bias for each head": {"attn_mask": NOISE},
    "padding": {"key_padding_mask": PADDED},
    "padding float": {"key_padding_mask": torch.zeros(2, 6).masked_fill(PADDED, -math.inf)},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDED},
    "both float": {"attn_mask": CAUSAL_FLOAT, "key_padding_mask": NOISE[0, :2]},
}


@grid(mask=MASKS, need_weights=[False, True], mode=MODES)
def test_multihead_attention_of_itself_with_masks(mask, need_weights, mode):
    """Under `no_grad` and `inference_mode` this is PyTorch's fast path, where it takes the mask."""
    model, x = sharpen(nn.MultiheadAttention(16, 4, batch_first=True)), torch.randn(2, 6, 16)
    with mode():
        recording, _ = record(model, x, x, x, need_weights=need_weights, **MASKS[mask])
        fast = assert_same_operators(model, NATIVE_MULTI_HEAD, x, x, x, need_weights=need_weights, **MASKS[mask])
    assert fast or mode == torch.enable_grad or mask != "none"
    assert_maps(recording, module_weights(model, x, x, x, **MASKS[mask]))


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_function_behind_multihead_attention_called_directly(need_weights):
    module, x = sharpen(nn.MultiheadAttention(16, 4, bias=False)), torch.randn(6, 2, 16)
    arguments = 16, 4, module.in_proj_weight, None, None, None, False, 0.0, module.out_proj.weight, None, False
    call = functional.multi_head_attention_forward
    recording, _ = record(FunctionModel(lambda x: call(x, x, x, *arguments, need_weights=need_weights)[0]), x)
    assert_maps(recording, {"attn": module(x, x, x, average_attn_weights=False)[1]})


ENCODERS = {
    "post": ({}, True),
    "post, gelu": ({"activation": "gelu"}, True),
    "post, not nested": ({}, False),
    "pre": ({"norm_first": True}, False),
    "tokens first": ({"batch_first": False}, False),
}


def make_encoder(name="post", dropout=0.0):
    options, nested = ENCODERS[name]
    layer = nn.TransformerEncoderLayer(16, 4, 20, **{"batch_first": True, "dropout": dropout, **options})
    return sharpen(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


RAGGED = torch.arange(6) >= torch.tensor([[6], [4], [1], [6], [2], [5]])
ENCODER_ARGUMENTS = {
    "even": {},
    "ragged": {"src_key_padding_mask": RAGGED},
    "causal": {"mask": CAUSAL_FLOAT},
    "causal, by the flag": {"mask": CAUSAL_FLOAT, "is_causal": True},
}


@grid(name=ENCODERS, arguments=ENCODER_ARGUMENTS, mode=MODES)
def test_transformer_encoder_keeps_its_fast_path(name, arguments, mode):
    """Nested tensors included, watched or not."""
    model, x, kwargs = make_encoder(name), torch.randn(6, 6, 16), ENCODER_ARGUMENTS[arguments]
    with mode():
        recording, _ = record(model, x, **kwargs)
        fast = assert_same_operators(model, ENCODER_LAYER, x, **kwargs)
    assert fast or mode == torch.enable_grad or name == "tokens first" or "causal" in arguments
    expected = module_weights(model, x, **kwargs)
    assert list(expected) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert_maps(recording, expected, ~RAGGED if arguments == "ragged" else None)
    assert [recording.entry(path).layer for path in recording] == [0, 1]


def test_texts_that_are_all_shorter_than_the_batch():
    """Nested tensors cut the output to the longest text."""
    model, x, blocked = make_encoder(), torch.randn(2, 6, 16), torch.arange(6) >= torch.tensor([[4], [2]])
    with torch.inference_mode():
        recording, _ = record(model, x, src_key_padding_mask=blocked)
    for path, dense in module_weights(model, x, src_key_padding_mask=blocked).items():
        assert recording[path].error < 1e-4
        difference = recording[path].dense()[:, :, :4, :4] - dense[:, :, :4, :4]
        assert (difference * ~blocked[:, None, :4, None]).abs().max() <= 1e-5


multi_head_attention = partial(nn.MultiheadAttention, 16, 4, dropout=0.3, batch_first=True)
TRAINED = {name: (partial(make_encoder, name, dropout=0.3), 1, {}) for name in ENCODERS} | {
    "multi-head": (multi_head_attention, 3, {}),
    "multi-head, no weights": (multi_head_attention, 3, {"need_weights": False}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_as_before_and_shows_the_weights_before_dropout(name):
    """Outputs and gradients of a training step have the same bits, with the same draws of dropout."""
    make, inputs, kwargs = TRAINED[name]
    model, args = sharpen(make()).train(), [torch.randn(3, 6, 16)] * inputs
    expected = train_once(model, *args, **kwargs)
    with regard.watch(model) as recording:
        got = train_once(model, *args, **kwargs)
    assert got.keys() == {"loss", *dict(model.named_parameters())}
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    weights = module_weights(model, *args)
    assert list(recording) == list(weights)
    assert all(m.error < 1e-4 and m.verified and m.dropout == 0.3 for m in recording.values())
    first = next(iter(weights))
    assert_map(recording[first], weights[first])


def make_decoder(norm_first):
    layer = nn.TransformerDecoderLayer(16, 4, 20, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerDecoder(layer, 2)


make_layer = partial(nn.TransformerEncoderLayer, 16, 4, 20, batch_first=True)
MEMORY_PADDING = torch.arange(8) >= torch.tensor([[8], [5], [2], [8], [1], [4]])
MEMORY_MASK = {"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": MEMORY_PADDING}
MODULES = {
    "multi-head without a batch": (partial(nn.MultiheadAttention, 16, 4), [(6, 16)] * 3, {}),
    "and without weights": (partial(nn.MultiheadAttention, 16, 4), [(6, 16)] * 3, {"need_weights": False}),
    "a layer alone": (make_layer, [(2, 6, 16)], {}),
    "a layer inside a model": (lambda: nn.Sequential(make_layer(), nn.Flatten()), [(2, 6, 16)], {}),
    "frozen": (lambda: make_encoder().requires_grad_(False), [(2, 6, 16)], {}),
    "decoder": (partial(make_decoder, False), [(6, 6, 16), (6, 8, 16)], MEMORY_MASK),
    "decoder, pre": (partial(make_decoder, True), [(6, 6, 16), (6, 8, 16)], MEMORY_MASK),
    # Both stacks of one length: what is cross-attention does not show in the lengths.
    "transformer": (partial(nn.Transformer, 16, 4, 2, 2, 20, 0.0), [(6, 6, 16)] * 2, {"tgt_mask": CAUSAL_FLOAT}),
}


@grid(name=MODULES, mode=MODES)
def test_other_modules_of_pytorch(name, mode):
    make, sizes, kwargs = MODULES[name]
    model, args = sharpen(make()), [torch.randn(size) for size in sizes]
    with mode():
        recording, _ = record(model, *args, **kwargs)
        assert name != "frozen" or assert_same_operators(model, ENCODER_LAYER, *args, **kwargs)
    expected = module_weights(model, *args, **kwargs)
    assert_maps(recording, expected)
    # A module alone, path "", gets three different inputs.
    cross = [path for path in expected if path.endswith("multihead_attn") or not path]
    assert [path for path in recording if recording.entry(path).kind == "cross"] == cross
    assert len(cross) == (2 if name.startswith(("decoder", "transformer")) else int(len(sizes) == 3))


# Modules that call the kernel themselves


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


@pytest.mark.parametrize("known", [{}, {"allowed": lower_triangle(5, 7)}, {"bias": NOISE[0, :5, :1]}], ids=",".join)
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


# FlexAttention. PyTorch traces each call anew, for seconds.


def flex_model(**options):
    return FunctionModel(partial(flex.flex_attention, **options))


LENGTHS = torch.tensor([9, 4])
FLEX_MASKS = {
    "none": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 3),
    "of each text": lambda b, h, i, j: j < LENGTHS[b],
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=() if n % 4 == m else pytest.mark.slow)
        for n, name in enumerate(FLEX_MASKS)
        for m, mode in enumerate(MODES)
    ],
)
def test_flex_attention_with_every_mask(name, mode):
    q, k, v = random_qkv(queries=9, keys=9, kv_heads=2)
    allows, mask, expected = FLEX_MASKS[name], None, None
    if allows is not None:
        mask = flex.create_block_mask(allows, 2 if name == "of each text" else None, None, 9, 9, device="cpu")
        expected = allows(torch.arange(2)[:, None, None, None], 0, torch.arange(9)[:, None], torch.arange(9))
    with mode():
        recording, _ = record(flex_model(block_mask=mask, enable_gqa=True, scale=0.3), q, k, v)
    assert_maps(recording, {"attn": definition(q, k, allowed=expected, scale=0.3)})


def test_flex_attention_with_a_score_function_is_refused_by_its_name():
    """Never a map without it."""

    def nearer_is_better(score, b, h, i, j):
        return score - 0.5 * (i - j).abs()

    with regard.watch(model := flex_model(score_mod=nearer_is_better)) as recording:
        model(*random_qkv())
    assert not recording
    with pytest.raises(KeyError, match=r"attn.*score_mod \(.*nearer_is_better\)"):
        recording["attn"]


def test_flex_attention_that_returns_its_lse_and_keeps_a_tensor_for_its_mask():
    q, k, v = random_qkv(queries=9, keys=9)
    lengths = torch.tensor([9, 4])
    mask = flex.create_block_mask(lambda b, h, i, j: j < lengths[b], 2, None, 9, 9, device="cpu")
    with regard.watch(model := flex_model(block_mask=mask, return_aux=flex.AuxRequest(lse=True))) as recording:
        model(q, k, v)
    assert_map(recording["attn"], definition(q, k, allowed=torch.arange(9) < lengths[:, None, None, None]))
    lengths[0] = 3
    with pytest.raises(RuntimeError, match="changed in place"):
        recording["attn"].entropy()


# x-transformers


def x_transformers(name, **options):
    with warnings.catch_warnings(action="ignore"):
        import x_transformers as x
    return sharpen(getattr(x, name)(dim=32, depth=2, heads=4, attn_dim_head=8, **options))


X_OPTIONS = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "grouped": {"attn_kv_heads": 2},
    "qk norm": {"attn_qk_norm": True},
}


@grid(name=["Encoder", "Decoder"], options=X_OPTIONS, lengths=[None, [9, 5]], mode=MODES)
def test_x_transformers_with_flash(name, options, lengths, mode):
    """Against the maps that the same weights give out without it."""
    fused = x_transformers(name, attn_flash=True, **X_OPTIONS[options])
    eager = x_transformers(name, **X_OPTIONS[options])
    eager.load_state_dict(fused.state_dict())
    x = torch.randn(2, 9, 32)
    mask = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    with mode():
        recording, _ = record(fused, x, mask=mask)
        expected = eager(x, mask=mask, return_hiddens=True)[1].attn_intermediates
    for n, (path, own) in enumerate(zip(recording, expected, strict=True)):
        assert path.startswith(f"layers.{2 * n}.1")
        assert_map(recording[path], own.post_softmax_attn, mask)


# Calls that PyTorch broadcasts, and masks and tensors of other kinds


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
    """Two axes of the batch become one."""
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
def test_rows_of_padding_do_not_count_against_a_map(hidden):
    """Left padding and a causal mask in one sum: the first rows have the same great number on every key."""
    q, k, v = random_qkv(queries=7)
    allowed = torch.ones(7, 7).tril().bool() & (torch.arange(7) >= 3)
    bias = torch.zeros(7, 7).masked_fill(~allowed, hidden)
    recording, _ = record(FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=bias)), q, k, v)
    assert_map(recording["attn"], definition(q, k, allowed=allowed), (torch.arange(7) >= 3).expand(2, 7))


def test_a_map_that_is_wrong_beside_such_rows_is_not_trusted():
    q, k, v = random_qkv(queries=7)
    allowed = torch.ones(7, 7).tril().bool() & (torch.arange(7) >= 3)
    bias = torch.zeros(7, 7).masked_fill(~allowed, -1e9)
    recording, _ = record(FunctionModel(lambda q, k, v: sdpa(q, k, v, attn_mask=bias)), q, k, v)
    m = recording["attn"]
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
