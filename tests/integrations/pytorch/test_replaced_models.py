"""PyTorch's transformers with regard's attention inside, against themselves before."""

import copy

import pytest
import torch
from torch import nn

import regard
from grids import grid

# PyTorch's own remarks about its layers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
CAUSAL = torch.ones(6, 6).bool().triu(1)
PADDED = torch.arange(6) >= torch.tensor([[6], [4]])


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, "dropout": 0.0, **options})
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8)).double().eval()


def tokens(batch_first=True, count=6):
    shape = (2, count, 8) if batch_first else (count, 2, 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()


@grid(
    batch_first=[False, True],
    norm_first=[False, True],
    activation=["gelu", nn.functional.silu],
    mask=["none", "causal", "hint"],
    padded=[False, True],
    mode=["training", "no_grad"],
)
def test_an_encoder_gives_what_it_gave(batch_first, norm_first, activation, mask, padded, mode):
    model = encoder(batch_first=batch_first, norm_first=norm_first, bias=norm_first, activation=activation)
    model.train(mode == "training")
    arguments = {
        "mask": None if mask == "none" else CAUSAL,
        "is_causal": True if mask == "hint" else None,
        "src_key_padding_mask": PADDED if padded else None,
    }
    with torch.set_grad_enabled(mode == "training"):
        expected = model(tokens(batch_first), **arguments)
        regard.replace(model)
        output = model(tokens(batch_first), **arguments)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-11)


def test_an_encoder_in_inference_leaves_out_the_padding_as_pytorch_does():
    """There PyTorch turns the padded texts into a nested tensor, and their padding into zeros."""
    model = encoder()
    with torch.no_grad():
        expected = model(tokens(), src_key_padding_mask=PADDED)
        assert (expected[1, 4:] == model.norm.bias).all()
        replaced = regard.replace(model, {"src": tokens(), "src_key_padding_mask": PADDED})
        output = model(tokens(), src_key_padding_mask=PADDED)
    assert {m.proved_on for m in replaced.modules} == {"example inputs"}
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_whole_transformer_gives_what_it_gave_with_its_gradients(batch_first):
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=batch_first).double()
    reference = copy.deepcopy(model)
    source, target = tokens(batch_first), tokens(batch_first, 6).flip(-1)
    arguments = {"tgt_mask": CAUSAL, "src_key_padding_mask": PADDED, "memory_key_padding_mask": PADDED}
    replaced = regard.replace(model, (source, target))
    assert len(replaced.modules) == 2 * 2 + 2 * 2
    outputs = [m(source, target, **arguments) for m in (model, reference)]
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-11)
    for output in outputs:
        output.square().sum().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9)


def test_a_window_is_not_computed_as_every_pair():
    """Of 1,200 x 1,200 pairs a window of 8 leaves 1 in 150: no tensor of every pair is made, forward or backward."""
    distance = torch.arange(1200)[:, None] - torch.arange(1200)
    blocked = (distance < 0) | (distance >= 8)
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    regard.replace(module)
    x = torch.randn(1, 1200, 8, requires_grad=True)
    largest = 0

    def pack(t):
        nonlocal largest
        largest = max(largest, t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x, x, x, attn_mask=blocked, need_weights=False)[0].sum().backward()
    assert largest < 1200 * 1200 / 10


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_watched_model_has_the_same_maps_under_the_same_paths(mode):
    model = encoder()
    maps = []
    with mode():
        for _ in range(2):
            with regard.watch(model) as seen:
                model(tokens(), mask=CAUSAL, is_causal=False)
            maps.append({path: seen[path].dense() for path in seen})
            if len(maps) == 1:
                regard.replace(model)
    before, after = maps
    assert list(before) == list(after) == ["layers.0.self_attn", "layers.1.self_attn"]
    for path, weights in before.items():
        torch.testing.assert_close(after[path], weights, rtol=1e-6, atol=1e-7)


def test_an_edited_model_is_edited_in_the_same_way():
    model, outputs = encoder(), []
    for _ in range(2):
        with torch.no_grad(), regard.intervene(model) as edit:
            edit["layers.1.self_attn"].heads[1].ablate("zero")
            outputs.append(model(tokens()))
        if len(outputs) == 1:
            plain = model(tokens())
            regard.replace(model)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-11)
    assert not torch.allclose(outputs[0], plain)
