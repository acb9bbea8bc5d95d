"""PyTorch's own modules, x-transformers, and modules that call the fused kernels themselves."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from model_cases import MODES, each_mode, output_tensors, sharpen
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

import regard

LAYER = "aten::_transformer_encoder_layer_fwd"
NATIVE = "aten::_native_multi_head_attention"


class Own(nn.Module):
    """A model with one part, whose forward pass is any function."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.attn = Part(forward)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.attn(*args)


class Part(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.call = forward

    def forward(self, *args):
        return self.call(*args)


def record(model, *args, **kwargs):
    """The recording and the output, which has the bits of an unwatched run."""
    state = torch.get_rng_state()
    expected = list(output_tensors(model(*args, **kwargs)))
    torch.set_rng_state(state)
    with regard.watch(model) as recording:
        got = list(output_tensors(model(*args, **kwargs)))
    assert len(expected) == len(got) >= 1
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    return recording, got[0]


def definition(q: Tensor, k: Tensor, *, scale=None, allowed=None, bias=None) -> Tensor:
    """softmax(q kT * scale + bias) in float64, written out; grouped heads are repeated one beside the other."""
    q, k = q.detach().double(), k.detach().double()
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0)


def agrees(m, expected: Tensor, tolerance: float = 1e-5) -> None:
    got = m.dense()
    assert got.dim() == 4
    torch.testing.assert_close(got.double().reshape(expected.shape), expected.double(), atol=tolerance, rtol=0)
    assert m.error < 1e-4
    assert m.verified


def kernels(call) -> set[str]:
    """The names of all operators that ran."""
    with torch.autograd.profiler.profile() as profile:
        call()
    return {event.name for event in profile.function_events}


def own_weights(model, run) -> dict[str, Tensor]:
    """What every `nn.MultiheadAttention` in a model says its weights are, by path: its inputs once more, slowly."""
    model = copy.deepcopy(model).eval()
    arguments, hooks = {}, []
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):

            def keep(_, args, kwargs, path=path):
                arguments[path] = (args, kwargs)

            hooks.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.enable_grad():
        run(model)
    for hook in hooks:
        hook.remove()
    found = {}
    for path, (args, kwargs) in arguments.items():
        asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
        found[path] = model.get_submodule(path)(*args, **asked)[1].detach()
    return found


# nn.MultiheadAttention


MULTIHEAD = {
    "plain": {},
    "batch first": {"batch_first": True},
    "other widths": {"kdim": 12, "vdim": 20},
    "zero attention": {"add_zero_attn": True},
    "bias of keys and values": {"add_bias_kv": True},
    "both": {"add_zero_attn": True, "add_bias_kv": True, "batch_first": True},
    "no bias": {"bias": False},
}


@each_mode(name=list(MULTIHEAD), asked=["none", "mean", "each head"])
def test_multihead_attention_of_another_sequence(name, asked, mode):
    options = MULTIHEAD[name]
    model = sharpen(nn.MultiheadAttention(16, 4, **options))
    x = torch.randn(2, 5, 16)
    k, v = torch.randn(2, 7, options.get("kdim", 16)), torch.randn(2, 7, options.get("vdim", 16))
    if not options.get("batch_first"):
        x, k, v = x.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    need, average = asked != "none", asked != "each head"
    with mode():
        recording, _ = record(model, x, k, v, need_weights=need, average_attn_weights=average)
        expected = model(x, k, v, average_attn_weights=False)[1]
    assert len(recording) == 1
    (path,) = recording
    assert model.get_submodule(path) is model
    agrees(recording[path], expected)
    assert recording[path].shape == expected.shape


def masks(name, heads=4, batch=2, tokens=6):
    causal = torch.ones(tokens, tokens).triu(1).bool()
    padded = torch.arange(tokens) >= torch.tensor([[tokens], [tokens - 2]])
    floating = torch.zeros(tokens, tokens).masked_fill(causal, -math.inf)
    return {
        "none": {},
        "causal": {"attn_mask": causal},
        "causal float": {"attn_mask": floating},
        "causal, said so": {"attn_mask": causal, "is_causal": True},
        "bias": {"attn_mask": torch.randn(tokens, tokens)},
        "one for each head": {"attn_mask": torch.rand(batch * heads, tokens, tokens) > 0.8},
        "a bias for each head": {"attn_mask": torch.randn(batch * heads, tokens, tokens)},
        "padding": {"key_padding_mask": padded},
        "padding float": {"key_padding_mask": torch.zeros(batch, tokens).masked_fill(padded, -math.inf)},
        "both": {"attn_mask": causal, "key_padding_mask": padded},
        "both float": {"attn_mask": floating, "key_padding_mask": torch.randn(batch, tokens)},
    }[name]


MASKS = [
    "none",
    "causal",
    "causal float",
    "causal, said so",
    "bias",
    "one for each head",
    "a bias for each head",
    "padding",
    "padding float",
    "both",
    "both float",
]


@each_mode(name=MASKS, need=[False, True])
def test_multihead_attention_of_itself_with_masks(name, need, mode):
    """Under `no_grad` and `inference_mode` this is PyTorch's fast path, where it takes the mask."""
    model = sharpen(nn.MultiheadAttention(16, 4, batch_first=True))
    x, arguments = torch.randn(2, 6, 16), masks(name)
    expected = own_weights(model, lambda m: m(x, x, x, **arguments))[""]
    fast = (
        NATIVE in kernels(lambda: model(x, x, x, need_weights=need, **arguments))
        if mode != torch.enable_grad
        else False
    )
    with mode():
        recording, _ = record(model, x, x, x, need_weights=need, **arguments)
        with regard.watch(model):
            ran = kernels(lambda: model(x, x, x, need_weights=need, **arguments))
        fast = NATIVE in kernels(lambda: model(x, x, x, need_weights=need, **arguments))
    assert (NATIVE in ran) == fast
    (m,) = recording.values()
    agrees(m, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("need", [False, True])
def test_multihead_attention_without_a_batch(need, mode):
    model = sharpen(nn.MultiheadAttention(16, 4))
    x = torch.randn(6, 16)
    with mode():
        recording, _ = record(model, x, x, x, need_weights=need)
    (m,) = recording.values()
    assert m.shape == (1, 4, 6, 6)
    agrees(m, own_weights(model, lambda m: m(x, x, x))[""])


@pytest.mark.parametrize("need", [False, True])
def test_multihead_attention_in_training(need):
    """The weights before dropout; outputs and gradients of the same draw."""
    model = sharpen(nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)).train()
    x = torch.randn(2, 6, 16)

    def learn():
        torch.manual_seed(3)
        model.zero_grad()
        out = model(x, x, x, need_weights=need)[0]
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    expected = learn()
    with regard.watch(model) as recording:
        got = learn()
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    (m,) = recording.values()
    assert m.dropout == 0.5
    agrees(m, own_weights(model, lambda m: m(x, x, x))[""])


@pytest.mark.parametrize("need", [False, True])
def test_the_function_behind_it_called_directly(need):
    weight, bias, out = torch.randn(48, 16) / 2, torch.randn(48), torch.randn(16, 16)
    x = torch.randn(6, 2, 16)

    def forward(x):
        return functional.multi_head_attention_forward(
            x, x, x, 16, 4, weight, bias, None, None, False, 0.0, out, None, False, need_weights=need
        )[0]

    recording, _ = record(Own(forward), x)
    assert list(recording) == ["attn"]
    q, k, _ = (t.transpose(0, 1).unflatten(-1, (4, 4)).transpose(1, 2) for t in (x @ weight.T + bias).chunk(3, -1))
    agrees(recording["attn"], definition(q, k))


# Encoders and decoders


ENCODERS = {
    "post": ({}, True),
    "post, gelu": ({"activation": "gelu"}, True),
    "post, not nested": ({}, False),
    "pre": ({"norm_first": True}, False),
    "tokens first": ({"batch_first": False}, False),
}


def encoder(name, dropout=0.0):
    options, nested = ENCODERS[name]
    layer = nn.TransformerEncoderLayer(16, 4, 20, **{"batch_first": True, "dropout": dropout, **options})
    return sharpen(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@each_mode(name=list(ENCODERS), padding=["even", "ragged"])
def test_transformer_encoder(name, padding, mode):
    """Inference takes the fast path, nested tensors included, watched or not."""
    model = encoder(name)
    first = not ENCODERS[name][0].get("batch_first", True)
    x = torch.randn(3, 6, 16)
    x = x.transpose(0, 1) if first else x
    blocked = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    arguments = {"src_key_padding_mask": blocked} if padding == "ragged" else {}
    expected = own_weights(model, lambda m: m(x, **arguments))
    with mode():
        plain = kernels(lambda: model(x, **arguments))
        recording, _ = record(model, x, **arguments)
        with regard.watch(model):
            ran = kernels(lambda: model(x, **arguments))
    assert (LAYER in ran) == (LAYER in plain)
    if name in ("post", "post, gelu", "post, not nested", "pre") and mode != torch.enable_grad:
        assert LAYER in ran
    assert list(recording) == list(expected) == ["layers.0.self_attn", "layers.1.self_attn"]
    for path, dense in expected.items():
        m = recording[path]
        assert m.shape == dense.shape
        counted = ~blocked[:, None, :, None] if padding == "ragged" else torch.tensor(True)
        assert ((m.dense() - dense) * counted).abs().max() <= 1e-5, path
        assert m.error < 1e-4
        assert m.verified


@each_mode(name=list(ENCODERS), said=["a mask", "said to be causal"])
def test_transformer_encoder_with_a_causal_mask(name, said, mode):
    model = encoder(name)
    x = torch.randn(6, 6, 16)
    arguments = {
        "mask": nn.Transformer.generate_square_subsequent_mask(6),
        "is_causal": None if said == "a mask" else True,
    }
    expected = own_weights(model, lambda m: m(x, **arguments))
    with mode():
        recording, _ = record(model, x, **arguments)
    for path, dense in expected.items():
        agrees(recording[path], dense)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_texts_that_are_all_shorter_than_the_batch():
    """Nested tensors cut the output to the longest text."""
    model = encoder("post")
    x = torch.randn(2, 6, 16)
    blocked = torch.arange(6) >= torch.tensor([[4], [2]])
    with torch.inference_mode():
        recording, _ = record(model, x, src_key_padding_mask=blocked)
    for path, dense in own_weights(model, lambda m: m(x, src_key_padding_mask=blocked)).items():
        m = recording[path]
        assert ((m.dense()[:, :, :4, :4] - dense[:, :, :4, :4]) * ~blocked[:, None, :4, None]).abs().max() <= 1e-5
        assert m.error < 1e-4


@pytest.mark.parametrize("name", ENCODERS)
def test_transformer_encoder_in_training(name):
    model = encoder(name, dropout=0.3).train()
    x = torch.randn(3, 6, 16)

    def learn():
        torch.manual_seed(3)
        model.zero_grad()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    expected = learn()
    with regard.watch(model) as recording:
        got = learn()
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert list(recording) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(m.error < 1e-4 and m.verified and m.dropout == 0.3 for m in recording.values())
    first = own_weights(model, lambda m: m(x))["layers.0.self_attn"]
    agrees(recording["layers.0.self_attn"], first)


@each_mode(norm_first=[False, True])
def test_transformer_decoder(norm_first, mode):
    layer = nn.TransformerDecoderLayer(16, 4, 20, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = sharpen(nn.TransformerDecoder(layer, 2))
    x, memory = torch.randn(3, 6, 16), torch.randn(3, 8, 16)
    arguments = {
        "tgt_mask": torch.ones(6, 6).triu(1).bool(),
        "tgt_is_causal": True,
        "memory_key_padding_mask": torch.arange(8) >= torch.tensor([[8], [5], [2]]),
    }
    expected = own_weights(model, lambda m: m(x, memory, **arguments))
    with mode():
        recording, _ = record(model, x, memory, **arguments)
    assert list(recording) == list(expected)
    assert list(recording.subset("self")) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert list(recording.subset("cross")) == ["layers.0.multihead_attn", "layers.1.multihead_attn"]
    for path, dense in expected.items():
        agrees(recording[path], dense)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@each_mode(tokens_first=[True, False])
def test_transformer(tokens_first, mode):
    """Both stacks, of one length: what is cross-attention does not show in the lengths."""
    model = sharpen(nn.Transformer(16, 4, 2, 2, 20, dropout=0.0, batch_first=not tokens_first))
    x, y = torch.randn(6, 6, 16), torch.randn(6, 6, 16)
    arguments = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(6)}
    expected = own_weights(model, lambda m: m(x, y, **arguments))
    with mode():
        recording, _ = record(model, x, y, **arguments)
    assert list(recording) == list(expected)
    assert len(recording) == 6
    assert list(recording.subset("cross")) == [f"decoder.layers.{i}.multihead_attn" for i in range(2)]
    for path, dense in expected.items():
        agrees(recording[path], dense)


def test_a_model_in_evaluation_whose_weights_are_frozen():
    """The fast path under grad."""
    model = encoder("post").requires_grad_(False)
    x = torch.randn(2, 6, 16)
    recording, _ = record(model, x)
    with regard.watch(model):
        assert LAYER in kernels(lambda: model(x))
    expected = own_weights(copy.deepcopy(model).requires_grad_(), lambda m: m(x))
    for path, dense in expected.items():
        agrees(recording[path], dense)


def test_a_layer_alone_and_a_model_around_it():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleDict({"first": nn.TransformerEncoderLayer(16, 4, 20, batch_first=True)})

        def forward(self, x):
            return self.body["first"](x).mean(1)

    model, x = sharpen(Around()), torch.randn(2, 6, 16)
    for mode in MODES:
        with mode():
            recording, _ = record(model, x)
            assert list(recording) == ["body.first.self_attn"]
            agrees(recording["body.first.self_attn"], own_weights(model, lambda m: m(x))["body.first.self_attn"])
            layer = model.body["first"]
            recording, _ = record(layer, x)
            assert list(recording) == ["self_attn"]


# Modules that call the kernel themselves


def inputs(batch=2, heads=4, kv_heads=4, queries=5, keys=7, width=8, v_width=None, dtype=torch.float32):
    q = torch.randn(batch, heads, queries, width)
    k = torch.randn(batch, kv_heads, keys, width)
    v = torch.randn(batch, kv_heads, keys, v_width or width)
    return [2 * t.to(dtype) for t in (q, k, v)]


CALLS = {
    "positional": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m, 0.0, False),
    "by keyword": lambda q, k, v, m: functional.scaled_dot_product_attention(value=v, key=k, query=q, attn_mask=m),
    "imported by name": lambda q, k, v, m: sdpa(q, k, v, attn_mask=m),
    "of torch.nn.functional": lambda q, k, v, m: torch.nn.functional.scaled_dot_product_attention(q, k, v, m),
    "of torch._C._nn": lambda q, k, v, m: torch._C._nn.scaled_dot_product_attention(q, k, v, m),
}


@each_mode(call=list(CALLS))
def test_every_way_to_call_it(call, mode):
    q, k, v = inputs()
    allowed = torch.rand(2, 1, 5, 7) > 0.4
    allowed[..., 0] = True
    with mode():
        recording, _ = record(Own(CALLS[call]), q, k, v, allowed)
    assert list(recording) == ["attn"]
    agrees(recording["attn"], definition(q, k, allowed=allowed))


ARGUMENTS = {
    "nothing": ({}, {}, {}),
    "causal": ({}, {"is_causal": True}, {"allowed": torch.ones(5, 7).tril().bool()}),
    "causal, more queries": (
        {"queries": 7, "keys": 5},
        {"is_causal": True},
        {"allowed": torch.ones(7, 5).tril().bool()},
    ),
    "scale": ({}, {"scale": 0.1}, {"scale": 0.1}),
    "negative scale": ({}, {"scale": -0.7}, {"scale": -0.7}),
    "scale 0": ({}, {"scale": 0.0}, {"scale": 0.0}),
    "grouped": ({"kv_heads": 2}, {"enable_gqa": True}, {}),
    "one head of keys, causal": (
        {"kv_heads": 1},
        {"enable_gqa": True, "is_causal": True},
        {"allowed": torch.ones(5, 7).tril().bool()},
    ),
    "wider values": ({"v_width": 20}, {}, {}),
    "narrower values": ({"v_width": 3}, {}, {}),
    "one query": ({"queries": 1}, {}, {}),
    "one key": ({"keys": 1}, {}, {}),
    "odd width": ({"width": 5}, {}, {}),
}


@each_mode(name=list(ARGUMENTS), dtype=[torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_argument(name, dtype, mode):
    sizes, arguments, expected = ARGUMENTS[name]
    q, k, v = inputs(**sizes, dtype=dtype)
    model = Own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **arguments))
    with mode():
        recording, _ = record(model, q, k, v)
    m = recording["attn"]
    torch.testing.assert_close(m.dense().double(), definition(q, k, **expected), atol=1e-5, rtol=0)
    assert m.shape == (2, 4, q.shape[2], k.shape[2])
    assert m.verified
    assert m.error < {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 2e-2)


MASKED = {
    "(queries, keys)": (5, 7),
    "(batch, 1, 1, keys)": (2, 1, 1, 7),
    "(batch, heads, queries, keys)": (2, 4, 5, 7),
    "(heads, 1, keys)": (4, 1, 7),
    "(1, keys)": (1, 7),
    "(queries, 1)": (5, 1),
}


@each_mode(kind=["bool", "minus infinity", "lowest", "bias"], shape=list(MASKED))
def test_every_shape_of_mask(kind, shape, mode):
    q, k, v = inputs()
    allowed = torch.rand(MASKED[shape]) > 0.4
    if MASKED[shape][-1] > 1:
        allowed[..., 0] = True  # a row of nothing is another test
    if kind == "bias":
        mask, expected = (t := torch.randn(MASKED[shape])), definition(q, k, bias=t)
    elif kind == "bool":
        mask, expected = allowed, definition(q, k, allowed=allowed)
    else:
        low = -math.inf if kind == "minus infinity" else torch.finfo(torch.float32).min
        mask = torch.zeros(MASKED[shape]).masked_fill(~allowed, low)
        expected = definition(q, k, bias=mask)
    with mode():
        recording, out = record(
            Own(lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m)), q, k, v, mask
        )
    # What PyTorch makes of a row that may attend to nothing is its own affair: 0, NaN, or a mean.
    rows = allowed.expand(2, 4, 5, 7).any(-1) if kind != "bias" else torch.ones(2, 4, 5).bool()
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
    q, k, v = inputs()
    mask = torch.zeros(5, 7)
    mask[2] = torch.finfo(torch.float32).min
    with mode():
        recording, out = record(
            Own(lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m)), q, k, v, mask
        )
    torch.testing.assert_close(out[:, :, 2], v.mean(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(recording["attn"].dense()[:, :, 2], torch.full((2, 4, 7), 1 / 7), atol=1e-5, rtol=0)
    assert recording["attn"].verified


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)], ids=["3 axes", "5 axes"])
@pytest.mark.parametrize("mode", MODES)
def test_other_numbers_of_axes(shape, mode):
    q, k, v = torch.randn(*shape, 5, 8), torch.randn(*shape, 7, 8), torch.randn(*shape, 7, 8)
    with mode():
        recording, _ = record(Own(functional.scaled_dot_product_attention), q, k, v)
    m = recording["attn"]
    assert math.prod(m.shape[:2]) == math.prod(shape)
    assert m.shape[2:] == (5, 7)
    agrees(m, definition(q, k))


@pytest.mark.parametrize("mode", MODES)
def test_strided_inputs(mode):
    """As every projection makes them."""
    x = torch.randn(2, 5, 3, 4, 8)
    with mode():
        recording, _ = record(
            Own(lambda x: functional.scaled_dot_product_attention(*(x[:, :, i].transpose(1, 2) for i in range(3)))), x
        )
    agrees(recording["attn"], definition(x[:, :, 0].transpose(1, 2), x[:, :, 1].transpose(1, 2)))


@pytest.mark.parametrize("mask", [None, "bool", "bias"])
def test_dropout_of_the_call(mask):
    q, k, v = inputs()
    m = {None: None, "bool": torch.ones(5, 7).tril().bool(), "bias": torch.randn(5, 7)}[mask]
    model = Own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, m, dropout_p=0.4))
    recording, _ = record(model, q.requires_grad_(), k, v)
    known = {} if m is None else {"allowed" if mask == "bool" else "bias": m}
    assert recording["attn"].dropout == 0.4
    agrees(recording["attn"], definition(q, k, **known))


def test_a_mask_that_learns():
    """A bias with a gradient, as Swin has it."""
    q, k, v = inputs(queries=7)
    bias = torch.randn(4, 7, 7, requires_grad=True)
    model = Own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, bias))
    with regard.watch(model) as recording:
        model(q, k, v).sum().backward()
    watched_gradient, bias.grad = bias.grad, None
    model(q, k, v).sum().backward()
    assert torch.equal(bias.grad, watched_gradient)
    agrees(recording["attn"], definition(q, k, bias=bias.detach()))


def test_autocast():
    q, k, v = inputs()
    for mode in MODES:
        with mode(), torch.autocast("cpu", torch.bfloat16):
            recording, out = record(Own(functional.scaled_dot_product_attention), q, k, v)
        assert out.dtype == torch.bfloat16
        m = recording["attn"]
        assert m.verified
        torch.testing.assert_close(m.dense().double(), definition(q.bfloat16(), k.bfloat16()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_the_backward_pass(reentrant):
    """Checkpointing runs the forward pass twice; the map is there once."""
    part = Own(functional.scaled_dot_product_attention)

    class Frugal(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = part

        def forward(self, q, k, v):
            return checkpoint(self.part, q, k, v, use_reentrant=reentrant)

    q, k, v = inputs()
    model = Frugal()
    q.requires_grad_()
    with regard.watch(model) as recording:
        model(q, k, v).sum().backward()
    assert list(recording) == ["part.attn"]
    agrees(recording["part.attn"], definition(q, k))


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("mode", MODES)
def test_a_chosen_kernel(backend, mode):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = inputs(queries=7)

    def forward(q, k, v):
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with mode():
        recording, _ = record(Own(forward), q, k, v)
    agrees(recording["attn"], definition(q, k, allowed=torch.ones(7, 7).tril().bool()))


def test_several_calls_in_one_module():
    """As in an attention of two streams: both are kept, and neither is taken for the rest of the other."""
    q, k, v = inputs(queries=5, keys=7)
    other = [torch.randn_like(t) for t in (q, k, v)]

    def forward(q, k, v):
        attend = functional.scaled_dot_product_attention
        return attend(q, k, v) + attend(*other)

    recording, _ = record(Own(forward), q, k, v)
    assert len(recording) == 2
    for path, (a, b) in zip(recording, [(q, k), (other[0], other[1])], strict=True):
        assert path.startswith("attn")
        agrees(recording[path], definition(a, b))


def test_the_model_may_itself_be_the_attention():
    q, k, v = inputs()
    model = Part(functional.scaled_dot_product_attention)
    recording, _ = record(model, q, k, v)
    (path,) = recording
    assert model.get_submodule(path) is model
    agrees(recording[path], definition(q, k))


def test_a_call_outside_the_model_is_not_the_models():
    q, k, v = inputs()
    model = Own(functional.scaled_dot_product_attention)
    other = Own(functional.scaled_dot_product_attention)
    with regard.watch(model) as recording:
        model(q, k, v)
        functional.scaled_dot_product_attention(k, k, k)
        other(k, k, k)
    assert list(recording) == ["attn"]
    agrees(recording["attn"], definition(q, k))


def test_ours():
    """regard's own modules, on its own kernels, windows and all."""
    from regard import mask

    model = sharpen(regard.MultiHeadAttention(32, 4, num_kv_heads=2))
    x = torch.randn(2, 9, 32)
    for m in (None, mask.causal(), mask.window(3), mask.causal() & mask.padding(torch.tensor([9, 4]))):
        for mode in MODES:
            with mode():
                recording, _ = record(model, x, mask=m)
            (found,) = recording.values()
            steps = copy.deepcopy(model).double().steps(x.double(), mask=m)
            agrees(found, steps.weights.detach())


# FlexAttention


def flexed(**options):
    def forward(q, k, v):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return flex.flex_attention(q, k, v, **options)

    return Own(forward)


SLOWLY = pytest.mark.slow
"""PyTorch traces each call anew, for seconds."""


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        pytest.param(torch.no_grad, marks=SLOWLY),
        pytest.param(torch.inference_mode, marks=SLOWLY),
    ],
)
def test_flex_attention_without_a_mask(mode):
    q, k, v = inputs()
    with mode():
        recording, _ = record(flexed(), q, k, v)
    agrees(recording["attn"], definition(q, k))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("causal", torch.inference_mode),
        ("window", torch.no_grad),
        *(
            pytest.param(name, mode, marks=SLOWLY)
            for name, mode in [
                ("causal", torch.enable_grad),
                ("causal", torch.no_grad),
                ("window", torch.enable_grad),
                ("window", torch.inference_mode),
            ]
        ),
    ],
)
def test_flex_attention_with_a_block_mask(name, mode):
    def allowed(i, j):
        return (i >= j) & (i - j < (3 if name == "window" else 9))

    q, k, v = inputs(queries=9, keys=9, kv_heads=2)
    block = flex.create_block_mask(lambda b, h, i, j: allowed(i, j), None, None, 9, 9, device="cpu")
    with mode():
        recording, _ = record(flexed(block_mask=block, enable_gqa=True, scale=0.3), q, k, v)
    i = torch.arange(9)
    agrees(recording["attn"], definition(q, k, allowed=allowed(i[:, None], i), scale=0.3))


def test_flex_attention_with_a_mask_of_each_text():
    q, k, v = inputs(queries=9, keys=9)
    lengths = torch.tensor([9, 4])
    block = flex.create_block_mask(lambda b, h, i, j: j < lengths[b], 2, None, 9, 9, device="cpu")
    recording, _ = record(flexed(block_mask=block), q, k, v)
    agrees(recording["attn"], definition(q, k, allowed=(torch.arange(9) < lengths[:, None])[:, None, None, :]))


def test_flex_attention_with_a_score_function():
    """Honoured, or refused by its name; never a map without it."""
    q, k, v = inputs()

    def nearer_is_better(score, b, h, i, j):
        return score - 0.5 * (i - j).abs()

    model = flexed(score_mod=nearer_is_better)
    expected = model(q, k, v)
    with regard.watch(model) as recording:
        assert torch.equal(model(q, k, v), expected)
    if recording:
        bias = -0.5 * (torch.arange(5)[:, None] - torch.arange(7)).abs()
        agrees(recording["attn"], definition(q, k, bias=bias))
    else:
        assert "score_mod" in "\n".join(recording.notes)
        assert "attn" in "\n".join(recording.notes)
        with pytest.raises(KeyError, match="score_mod"):
            recording["attn"]


def test_flex_attention_that_returns_its_lse():
    q, k, v = inputs()

    def forward(q, k, v):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True))[0]

    recording, _ = record(Own(forward), q, k, v)
    agrees(recording["attn"], definition(q, k))


# x-transformers


def x_transformers(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import x_transformers as x

    torch.manual_seed(0)
    return sharpen(getattr(x, name)(dim=32, depth=2, heads=4, attn_dim_head=8, **options))


X_OPTIONS = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "grouped": {"attn_kv_heads": 2},
    "qk norm": {"attn_qk_norm": True},
}


@each_mode(name=["Encoder", "Decoder"], options=list(X_OPTIONS), texts=["even", "ragged"])
def test_x_transformers_with_flash(name, options, texts, mode):
    """Against the maps that the same weights give out without it."""
    fused = x_transformers(name, attn_flash=True, **X_OPTIONS[options])
    by_hand = x_transformers(name, **X_OPTIONS[options])
    by_hand.load_state_dict(fused.state_dict())
    x = torch.randn(2, 9, 32)
    mask = torch.arange(9) < torch.tensor([[9], [5]]) if texts == "ragged" else None
    with mode():
        recording, _ = record(fused, x, mask=mask)
        expected = by_hand(x, mask=mask, return_hiddens=True)[1].attn_intermediates
    assert len(recording) == len(expected) == 2
    for path, own in zip(recording, expected, strict=True):
        assert fused.get_submodule(path) is not None
        assert path.startswith(f"layers.{2 * list(recording).index(path)}.1")
        counted = mask[:, None, :, None] if texts == "ragged" else torch.tensor(True)
        assert ((recording[path].dense() - own.post_softmax_attn) * counted).abs().max() <= 1e-5
        assert recording[path].error < 1e-4
        assert recording[path].verified


@pytest.mark.parametrize("mode", MODES)
def test_x_transformers_by_default(mode):
    """It computes attention by hand, and that is said."""
    model, x = x_transformers("Encoder"), torch.randn(2, 9, 32)
    with mode():
        recording, _ = record(model, x)
    assert len(recording) == 0
    notes = "\n".join(recording.notes)
    assert "layers.0.1" in notes
    assert "layers.2.1" in notes
    assert "by hand" in notes


# By hand


HAND = {
    "torch.softmax": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v,
    "a method": lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ v,
    "F.softmax": lambda q, k, v: torch.matmul(functional.softmax(torch.matmul(q, k.mT), dim=-1), v),
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", functional.softmax(torch.einsum("bhid,bhjd->bhij", q, k), -1), v
    ),
    "masked": lambda q, k, v: torch.softmax((q @ k.mT / 3).masked_fill(torch.ones(5, 7).triu(1).bool(), -1e9), -1) @ v,
    "dropped": lambda q, k, v: functional.dropout(torch.softmax(q @ k.mT, -1), 0.1) @ v,
    "bmm": lambda q, k, v: torch.bmm(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)),
    "baddbmm": lambda q, k, v: torch.bmm(
        torch.baddbmm(torch.zeros(8, 5, 7), q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)
    ),
    "a module": lambda q, k, v: nn.Softmax(dim=-1)(q @ k.mT) @ v,
    "in place": lambda q, k, v: (q @ k.mT).div_(3).softmax(-1) @ v,
    "in float32": lambda q, k, v: torch.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
}


@each_mode(name=list(HAND))
def test_attention_by_hand_is_said(name, mode):
    q, k, v = inputs()
    with mode():
        recording, _ = record(Own(HAND[name]), q, k, v)
    assert len(recording) == 0
    (note,) = recording.notes
    assert "attn" in note
    assert "by hand" in note
    assert "scaled_dot_product_attention" in note  # what to change
    assert "by hand" in str(recording)
    with pytest.raises(KeyError, match="by hand"):
        recording["attn"]


def test_attention_by_hand_beside_one_that_is_seen():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fused = Part(functional.scaled_dot_product_attention)
            self.manual = Part(HAND["torch.softmax"])

        def forward(self, q, k, v):
            return self.fused(q, k, v) + self.manual(q, k, v)

    q, k, v = inputs()
    recording, _ = record(Two(), q, k, v)
    assert list(recording) == ["fused"]
    (note,) = recording.notes
    assert "manual" in note
    assert "fused" not in note.split("scaled_dot_product_attention")[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_softmax_that_is_no_attention_is_not_said(mode):
    """A classifier's, a router's; and the one inside PyTorch's own attention."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
            self.router = nn.Linear(16, 3)
            self.head = nn.Linear(16, 5)

        def forward(self, x):
            x = self.attn(x, x, x, need_weights=True)[0]
            gates = functional.softmax(self.router(x), -1)
            x = sum(gates[..., i : i + 1] * (x + i) for i in range(3))
            return torch.softmax(self.head(x.mean(1)), -1)

    with mode():
        recording, _ = record(sharpen(Classifier()), torch.randn(2, 6, 16))
    assert list(recording) == ["attn"]
    assert not recording.notes


def test_layers_of_the_fast_path_are_numbered():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3).eval()
    with torch.inference_mode(), regard.watch(model, layers=[0, 2]) as recording:
        model(torch.randn(1, 5, 16))
    assert list(recording) == ["layers.0.self_attn", "layers.2.self_attn"]
    assert [recording.entry(path).layer for path in recording] == [0, 2]
