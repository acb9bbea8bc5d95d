"""The step without modules: the numbers of `Decoder.forward`, and where it does not speak for a decoder."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import randomized, tiny
from torch import nn

import regard
from regard import mask, positions
from regard.transformer import Config, Decoder
from regard.transformer.decode_step import MIN_PACKED_BATCH, MIN_PACKED_STEPS, FastDecodeStep

FLAGS = (
    "gated",
    "attention_bias",
    "out_bias",
    "feed_forward_bias",
    "qk_norm",
    "sinks",
    "tie_word_embeddings",
    "lm_head_bias",
)
SCALINGS = {"linear": positions.Linear(3.0), "yarn": positions.YaRN(factor=4.0, original_max_positions=16)}


@st.composite
def configs(draw):
    """Any decoder, as the plain facts that make its config."""
    layers, heads = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4]))
    norm = draw(st.sampled_from(["layer", "rms"]))
    kind = draw(st.sampled_from(["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]))
    return {
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "d_key": draw(st.sampled_from([4, 6])),
        "positions": kind,
        "max_positions": 60 if kind == "learned" else None,
        "rotary_scaling": draw(st.sampled_from([None, *SCALINGS])) if kind == "rotary" else None,
        "norm": norm,
        "norm_plus_one": norm == "rms" and draw(st.booleans()),
        "norm_position": draw(st.sampled_from(["post", "pre", "both"])),
        "softcap": draw(st.sampled_from([None, 4.0])),
        "logit_softcap": draw(st.sampled_from([None, 9.0])),
        "logit_scale": draw(st.sampled_from([None, 0.4])),
        "attention_scale": draw(st.sampled_from([None, 1, 0.0])),
        "embedding_norm": draw(st.booleans()),
        "activation": draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        "windows": draw(st.none() | st.tuples(*[st.sampled_from([None, 1, 2, 5])] * layers)),
        **{flag: draw(st.booleans()) for flag in FLAGS},
    }


@settings(deadline=None, max_examples=40)
@given(
    facts=configs(),
    d_context=st.sampled_from([None, None, 8, 12]),
    each=st.integers(1, 2),
    ragged=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    many=st.booleans(),
)
def test_the_step_equals_the_decoders_forward(facts, d_context, each, ragged, dtype, many):
    """Token by token, from a prompt, with rows that share a source; by packed weights and by plain ones."""
    sources, tokens = 2, 4
    scaling = facts["rotary_scaling"]
    facts = {**facts, "rotary_scaling": SCALINGS[scaling] if scaling else None}
    model = Decoder(
        Config(vocab_size=11, d_model=8, d_ff=10, **facts),
        d_context=d_context,
    )
    model = randomized(model, 3).to(dtype)
    rows = torch.arange(sources).repeat_interleave(each)
    prompt = torch.randint(11, (sources, 4))
    left_padding = torch.tensor([0, 3]) if ragged else None
    lengths = torch.tensor([5, 2]) if ragged else torch.tensor([5, 5])
    context = None if d_context is None else torch.randn(sources, 5, d_context, dtype=dtype)
    context_mask = None if d_context is None else mask.padding(lengths)
    with torch.inference_mode():
        caches, known = model.caches(), model.caches()
        model(prompt, left_padding=left_padding, caches=caches, context=context, context_mask=context_mask)
        caches.reorder(rows)
        row_context = None if context is None else context[rows]
        row_mask = None if context is None else mask.padding(lengths[rows])
        row_padding = None if left_padding is None else left_padding[rows]
        text = prompt[rows]
        model(text, left_padding=row_padding, caches=known, context=row_context, context_mask=row_mask)
        step = FastDecodeStep(
            model, batch_size=MIN_PACKED_BATCH if many else 1, max_steps=MIN_PACKED_STEPS if many else 1
        )
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
        for _ in range(tokens):
            new = torch.randint(11, (len(rows), 1))
            text = torch.cat([text, new], dim=1)
            ours = step(new, caches, context_mask)
            cached = model(new, caches=known, context_mask=row_mask)[:, -1]
            scale = cached.abs().max().clamp(min=1)
            torch.testing.assert_close(ours / scale, cached / scale, **close)
        full = model(text, left_padding=row_padding, context=row_context, context_mask=row_mask)[:, -1]
        torch.testing.assert_close(ours / scale, full / scale, **close)
    assert caches.num_tokens == known.num_tokens == text.shape[1]


def test_weights_are_packed_only_for_enough_rows_and_steps():
    model = tiny().float()
    plain = FastDecodeStep(model, batch_size=MIN_PACKED_BATCH - 1, max_steps=MIN_PACKED_STEPS).lm_head
    packed = FastDecodeStep(model, batch_size=MIN_PACKED_BATCH, max_steps=MIN_PACKED_STEPS).lm_head
    assert plain.__code__ != packed.__code__
    for less in (
        {"batch_size": MIN_PACKED_BATCH - 1, "max_steps": MIN_PACKED_STEPS},
        {"batch_size": MIN_PACKED_BATCH, "max_steps": MIN_PACKED_STEPS - 1},
        {},
    ):
        assert FastDecodeStep(model, **less).lm_head.__code__ == plain.__code__
    assert (
        FastDecodeStep(model.double(), batch_size=MIN_PACKED_BATCH, max_steps=MIN_PACKED_STEPS).lm_head.__code__
        == plain.__code__
    )


def test_generate_uses_the_step():
    """The same ids from a model that must be run by its modules, and from one that need not."""
    model = tiny(11, seed=4, positions="rotary").float()
    ids = torch.randint(11, (4, 5))
    by_step = regard.generate(model, ids, max_new_tokens=30)
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(regard.generate(model, ids, max_new_tokens=30), by_step)
    assert len(calls) == 30


class DoubledLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def _hook(model):
    model.blocks[1].feed_forward.register_forward_hook(lambda *_: None)


def _pre_hook(model):
    model.blocks[0].attention.register_forward_pre_hook(lambda *_: None)


def _training(model):
    model.blocks[0].attention.train()


def _subclass(model):
    up = model.blocks[0].feed_forward.up
    model.blocks[0].feed_forward.up = DoubledLinear(up.in_features, up.out_features).double().eval()


def _parametrized(model):
    nn.utils.parametrize.register_parametrization(model.blocks[0].attention.qkv, "weight", Doubled())


def _forward_replaced(model):
    down = model.blocks[0].feed_forward.down
    forward = down.forward
    down.forward = lambda x: 2 * forward(x)  # what accelerate does


def _wrapped_in_sequential(model):
    model.blocks[0].feed_forward.up = nn.Sequential(model.blocks[0].feed_forward.up)


@pytest.mark.parametrize(
    "change", [_hook, _pre_hook, _training, _subclass, _parametrized, _forward_replaced, _wrapped_in_sequential]
)
def test_a_changed_decoder_runs_its_modules(change):
    """And writes what its own forward says."""
    model = tiny(11, seed=5)
    assert FastDecodeStep.supports(model)
    change(model)
    assert not FastDecodeStep.supports(model)
    model.blocks[0].attention.eval()
    ids = torch.randint(11, (3, 4))
    generated = regard.generate(model, ids, max_new_tokens=8)
    for length in range(4, 12):
        with torch.no_grad():
            assert torch.equal(model(generated[:, :length])[:, -1].argmax(-1), generated[:, length])


def test_with_autocast_or_global_hooks_the_modules_run():
    model = Decoder(Config(vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=8)).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not FastDecodeStep.supports(model)
        assert len(regard.generate(model, [1, 2], max_new_tokens=3)) == 5
    calls = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(module))
    try:
        regard.generate(model, [1, 2], max_new_tokens=3)
    finally:
        hook.remove()
    assert calls.count(model.blocks[0].attention) == 3
    assert FastDecodeStep.supports(model)
