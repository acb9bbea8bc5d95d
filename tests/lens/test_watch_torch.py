"""PyTorch's own modules, FlexAttention and x-transformers."""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

import regard
from grids import grid
from lens.watching import (
    MODES,
    FunctionModel,
    assert_map,
    assert_maps,
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


@pytest.mark.more
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
