"""PyTorch's own layers, FlexAttention and models of `regard.transformer`, and their forward passes written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import embedding, layer_norm, linear, relu, rms_norm, silu

import regard
from lens.interventions.by_hand import Attended, Calls, Edit
from lens.interventions.edits import Site, first_sites
from lens.watching import sharpen
from regard import mask
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

WIDTH, HEADS, TOKENS, SOURCE = 32, 4, 7, 9
LENGTHS = torch.tensor([9, 7, 4])
"""Of the source, where it is padded."""
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class WrittenOut:
    """A model, what it reads, and its forward pass by hand."""

    model: nn.Module
    make_inputs: Callable[[int], dict[str, Any]]
    """For a seed."""
    compute: Callable[..., Tensor]
    """Takes a `Calls` and the inputs."""

    def by_hand(self, *edits: Edit, **inputs: Any) -> tuple[Tensor, dict[str, Attended]]:
        """The model's output under edits, and the tensors of each attention."""
        done = Calls(edits)
        output = self.compute(done, **inputs)
        return output, {path: call for path, (call,) in done.calls.items()}


def _split(t: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads * width) as (batch, heads, tokens, width)."""
    return t.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(t: Tensor) -> Tensor:
    return t.transpose(1, 2).flatten(2)


def _below(weights: Weights, prefix: str) -> Weights:
    return {key.removeprefix(prefix): t for key, t in weights.items() if key.startswith(prefix)}


def _norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    """LayerNorm, or RMSNorm where there is no bias."""
    if f"{name}.bias" in weights:
        return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])
    return rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps=1e-5)


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _ids(seed: int, tokens: int) -> Tensor:
    return torch.randint(1, 40, (3, tokens), generator=torch.Generator().manual_seed(seed))


# nn.MultiheadAttention and the layers that are made of it


def _multihead(
    done: Calls, path: str, weights: Weights, q: Tensor, kv: Tensor, allowed: Tensor | None = None, causal: bool = False
) -> Tensor:
    """`nn.MultiheadAttention`, batch first."""
    projections = zip(weights["in_proj_weight"].chunk(3), weights["in_proj_bias"].chunk(3), strict=True)
    q, k, v = (_split(linear(x, *w), HEADS) for x, w in zip((q, kv, kv), projections, strict=True))
    output = done.compute(path, q, k, v, mask=allowed, causal=causal)
    return linear(_join(output), weights["out_proj.weight"], weights["out_proj.bias"])


def _torch_layer(
    done: Calls,
    weights: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    path: str = "",
    norm_first: bool = False,
    allowed: Tensor | None = None,
    causal: bool = False,
    memory_allowed: Tensor | None = None,
) -> Tensor:
    """`nn.TransformerEncoderLayer`, and with a memory `nn.TransformerDecoderLayer`."""

    def attend_self(y: Tensor) -> Tensor:
        return _multihead(done, f"{path}self_attn", _below(weights, "self_attn."), y, y, allowed, causal)

    def attend_memory(y: Tensor) -> Tensor:
        own = _below(weights, "multihead_attn.")
        return _multihead(done, f"{path}multihead_attn", own, y, memory, memory_allowed)

    def feed_forward(y: Tensor) -> Tensor:
        y = relu(linear(y, weights["linear1.weight"], weights["linear1.bias"]))
        return linear(y, weights["linear2.weight"], weights["linear2.bias"])

    sublayers = [attend_self, *([] if memory is None else [attend_memory]), feed_forward]
    for n, sublayer in enumerate(sublayers, 1):
        norm = partial(_norm, weights=weights, name=f"norm{n}")
        x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    return x


class _Attention(nn.Module):
    """One `nn.MultiheadAttention`, over another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.attn(x, context, context, need_weights=False)[0]


SIZES: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 40, "batch_first": True}


def _drawn(model: nn.Module) -> nn.Module:
    """Random weights; biases too, so that no output is zero, and norms that are not all the same."""
    model = sharpen(model, 0.3).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
    return model


def _multihead_model() -> WrittenOut:
    model = _drawn(_Attention())
    weights = _below(dict(model.named_parameters()), "attn.")
    return WrittenOut(
        model,
        lambda seed: {"x": _randn(seed, 3, TOKENS, WIDTH), "context": _randn(seed + 9, 3, SOURCE, WIDTH)},
        lambda done, x, context: _multihead(done, "attn", weights, x, context),
    )


def _encoder_layer(norm_first: bool) -> WrittenOut:
    model = _drawn(nn.TransformerEncoderLayer(**SIZES, norm_first=norm_first))
    weights = dict(model.named_parameters())
    return WrittenOut(
        model,
        lambda seed: {"src": _randn(seed, 3, SOURCE, WIDTH)},
        lambda done, src: _torch_layer(done, weights, src, norm_first=norm_first),
    )


def _encoder() -> WrittenOut:
    """Two layers and a padding mask."""
    model = _drawn(nn.TransformerEncoder(nn.TransformerEncoderLayer(**SIZES), 2, enable_nested_tensor=False))
    weights = dict(model.named_parameters())

    def compute(done: Calls, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        allowed = ~src_key_padding_mask[:, None, None, :]
        for n in range(2):
            path = f"layers.{n}."
            src = _torch_layer(done, _below(weights, path), src, path=path, allowed=allowed)
        return src

    padding = torch.arange(SOURCE) >= LENGTHS[:, None]
    return WrittenOut(
        model, lambda seed: {"src": _randn(seed, 3, SOURCE, WIDTH), "src_key_padding_mask": padding}, compute
    )


def _decoder_layer() -> WrittenOut:
    """A causal mask for its own tokens, a padding mask for the memory."""
    model = _drawn(nn.TransformerDecoderLayer(**SIZES))
    weights = dict(model.named_parameters())
    padding = torch.arange(SOURCE) >= LENGTHS[:, None]
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)

    def inputs(seed: int) -> dict[str, Any]:
        masks = {"tgt_mask": later, "memory_key_padding_mask": padding}
        return {"tgt": _randn(seed, 3, TOKENS, WIDTH), "memory": _randn(seed + 9, 3, SOURCE, WIDTH), **masks}

    def compute(done: Calls, tgt: Tensor, memory: Tensor, tgt_mask: Tensor, memory_key_padding_mask: Tensor) -> Tensor:
        allowed = ~memory_key_padding_mask[:, None, None, :]
        return _torch_layer(done, weights, tgt, memory, allowed=~tgt_mask, memory_allowed=allowed)

    return WrittenOut(model, inputs, compute)


# FlexAttention


class _Flex(nn.Module):
    """Two heads of keys for four of queries, over the last four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        block_mask = create_block_mask(_last_four, None, None, x.shape[1], x.shape[1], device="cpu")
        q, k, v = _split(q, HEADS), _split(k, HEADS // 2), _split(v, HEADS // 2)
        return self.out(_join(flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)))


def _last_four(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 4)


def _flex() -> WrittenOut:
    model = _drawn(nn.Sequential(_Flex(), _Flex()))

    def compute(done: Calls, input: Tensor) -> Tensor:
        distance = torch.arange(SOURCE)[:, None] - torch.arange(SOURCE)
        allowed, x = (distance >= 0) & (distance < 4), input
        for n, layer in enumerate(model):
            q, k, v = layer.qkv(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
            output = done.compute(str(n), _split(q, HEADS), _split(k, HEADS // 2), _split(v, HEADS // 2), mask=allowed)
            x = layer.out(_join(output))
        return x

    return WrittenOut(model, lambda seed: {"input": _randn(seed, 3, SOURCE, WIDTH)}, compute)


# regard.transformer, on regard.attend

PAPER = Config(vocab_size=40, d_model=WIDTH, num_layers=2, num_heads=HEADS, d_ff=40)
MODERN = Config(
    vocab_size=40,
    d_model=WIDTH,
    num_layers=2,
    num_heads=HEADS,
    d_ff=40,
    num_kv_heads=2,
    positions="rotary",
    norm="rms",
    norm_position="pre",
    activation="silu",
    gated=True,
    feed_forward_bias=False,
    scale_embedding=False,
    windows=(None, 4),
)


def _angles(tokens: int, width: int) -> Tensor:
    """position / 10000^(2i / width), (tokens, width / 2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies


def _sinusoidal(ids: Tensor, token: Tensor) -> Tensor:
    """Vaswani et al. 2017, sections 3.4 and 3.5."""
    angles = _angles(ids.shape[1], WIDTH)
    return embedding(ids, token) * WIDTH**0.5 + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _rotated(t: Tensor) -> Tensor:
    """Su et al. 2021, with the halves of a vector as pairs."""
    angles = _angles(t.shape[2], t.shape[3])
    (a, b), cos, sin = t.chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _paper_block(
    done: Calls,
    path: str,
    weights: Weights,
    x: Tensor,
    allowed: Tensor | None,
    context: Tensor | None = None,
    context_allowed: Tensor | None = None,
) -> Tensor:
    """A layer of the paper's figure 1."""

    def attend(name: str, source: Tensor, mask: Tensor | None) -> Tensor:
        matrices = weights[f"{name}.qkv.weight"].chunk(3)
        q, k, v = (_split(linear(y, w), HEADS) for y, w in zip((x, source, source), matrices, strict=True))
        output = done.compute(path + name, q, k, v, mask=mask)
        return linear(_join(output), weights[f"{name}.out_proj.weight"])

    x = _norm(x + attend("attention", x, allowed), weights, "attention_norm")
    if context is not None:
        x = _norm(x + attend("cross_attention", context, context_allowed), weights, "cross_norm")
    hidden = relu(linear(x, weights["feed_forward.up.weight"], weights["feed_forward.up.bias"]))
    hidden = linear(hidden, weights["feed_forward.down.weight"], weights["feed_forward.down.bias"])
    return _norm(x + hidden, weights, "feed_forward_norm")


def _paper_stack(done: Calls, prefix: str, weights: Weights, x: Tensor, *masks_and_context: Any) -> Tensor:
    for n in range(2):
        path = f"{prefix}blocks.{n}."
        x = _paper_block(done, path, _below(weights, path), x, *masks_and_context)
    return x


def _padded_encoder() -> WrittenOut:
    model = _drawn(Encoder(PAPER))
    weights = dict(model.named_parameters())

    def compute(done: Calls, ids: Tensor, mask: Any) -> Tensor:
        allowed = (torch.arange(SOURCE) < LENGTHS[:, None])[:, None, None]
        return _paper_stack(done, "", weights, _sinusoidal(ids, weights["embeddings.token.weight"]), allowed)

    return WrittenOut(model, lambda seed: {"ids": _ids(seed, SOURCE), "mask": mask.padding(LENGTHS)}, compute)


def _encoder_decoder() -> WrittenOut:
    model = _drawn(EncoderDecoder(PAPER))
    weights = dict(model.named_parameters())
    token = weights["encoder.embeddings.token.weight"]

    def inputs(seed: int) -> dict[str, Any]:
        return {"source": _ids(seed, SOURCE), "target": _ids(seed + 9, TOKENS), "source_mask": mask.padding(LENGTHS)}

    def compute(done: Calls, source: Tensor, target: Tensor, source_mask: Any) -> Tensor:
        real = (torch.arange(SOURCE) < LENGTHS[:, None])[:, None, None]
        before = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        context = _paper_stack(done, "encoder.", weights, _sinusoidal(source, token), real)
        x = _paper_stack(done, "decoder.", weights, _sinusoidal(target, token), before, context, real)
        return linear(x, token)

    return WrittenOut(model, inputs, compute)


def _modern_decoder() -> WrittenOut:
    model = _drawn(Decoder(MODERN))
    weights = dict(model.named_parameters())

    def compute(done: Calls, ids: Tensor) -> Tensor:
        x = embedding(ids, weights["embeddings.token.weight"])
        distance = torch.arange(SOURCE)[:, None] - torch.arange(SOURCE)
        for n, window in enumerate((SOURCE, 4)):
            path = f"blocks.{n}."
            own = _below(weights, path)
            qkv = linear(_norm(x, own, "attention_norm"), own["attention.qkv.weight"])
            q, k, v = (_split(t, t.shape[-1] // 8) for t in qkv.split([WIDTH, WIDTH // 2, WIDTH // 2], -1))
            allowed = (distance >= 0) & (distance < window)
            output = done.compute(f"{path}attention", _rotated(q), _rotated(k), v, mask=allowed)
            x = x + linear(_join(output), own["attention.out_proj.weight"])
            gate, up = linear(_norm(x, own, "feed_forward_norm"), own["feed_forward.up.weight"]).chunk(2, -1)
            x = x + linear(silu(gate) * up, own["feed_forward.down.weight"])
        return linear(_norm(x, weights, "norm"), weights["embeddings.token.weight"])

    return WrittenOut(model, lambda seed: {"ids": _ids(seed, SOURCE)}, compute)


MODELS: dict[str, Callable[[], WrittenOut]] = {
    "nn.MultiheadAttention": _multihead_model,
    "nn.TransformerEncoderLayer": partial(_encoder_layer, False),
    "nn.TransformerEncoderLayer, norm first": partial(_encoder_layer, True),
    "nn.TransformerEncoder": _encoder,
    "nn.TransformerDecoderLayer": _decoder_layer,
    "FlexAttention": _flex,
    "regard Encoder": _padded_encoder,
    "regard EncoderDecoder": _encoder_decoder,
    "regard Decoder": _modern_decoder,
}
CHEAP_LAYERS = ("nn.TransformerDecoderLayer", "regard Decoder")
"""Those of the fast tier."""


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def written_out(name: str) -> WrittenOut:
    """A model and its forward pass by hand, to be left as they are."""
    torch.manual_seed(0)
    return MODELS[name]()


@cache
@torch.inference_mode(False)
def layer_sites(name: str) -> list[Site]:
    """The first attention of each kind in each half of such a model, with two other passes."""
    this = written_out(name)
    recordings, attended = [], []
    for seed in (1, 2):
        inputs = this.make_inputs(seed)
        with torch.no_grad(), regard.watch(this.model) as recording:
            this.model(**inputs)
            attended.append(this.by_hand(**inputs)[1])
        recordings.append(recording)
    return first_sites(recordings, attended)
