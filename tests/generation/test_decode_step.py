"""The step without modules: the numbers of `Decoder.forward`, and where it does not speak for a decoder."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import randomized, tiny
from torch import nn

import regard
from grids import some_examples
from models import decoder_configs
from regard import mask
from regard.transformer import Config, Decoder, decode_step
from regard.transformer.decode_step import MIN_PACKED_STEPS, FastDecodeStep


@pytest.fixture(scope="module", autouse=True)
def small_weights_by_onednn():
    """The kernels of large weights, here in small models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_step, "MIN_ONEDNN_SIZE", 1)
        yield


@some_examples(1 / 2)
@given(
    options=decoder_configs(),
    attention_scale=st.sampled_from([None, 1, 0.0]),
    d_context=st.sampled_from([None, None, 8, 12]),
    each=st.integers(1, 2),
    ragged=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    many=st.booleans(),
)
def test_the_step_equals_the_decoders_forward(options, attention_scale, d_context, each, ragged, dtype, many):
    """Token by token, from a prompt, with rows that share a source; by packed weights and by plain ones."""
    config = Config(**{**options, "attention_scale": attention_scale})
    model = randomized(Decoder(config, d_context=d_context), 3).to(dtype)
    rows = torch.arange(2).repeat_interleave(each)
    prompt, left_padding = torch.randint(13, (2, 4)), torch.tensor([0, 3]) if ragged else None
    lengths = torch.tensor([5, 2]) if ragged else torch.tensor([5, 5])
    context = None if d_context is None else torch.randn(2, 5, d_context, dtype=dtype)
    context_mask = None if d_context is None else mask.padding(lengths)

    def inputs(rows):
        """What these rows read beside their text."""
        padding = {} if left_padding is None else {"left_padding": left_padding[rows]}
        source = {} if context is None else {"context": context[rows], "context_mask": mask.padding(lengths[rows])}
        return {**padding, **source}

    with torch.inference_mode():
        caches, known = model.caches(), model.caches()
        model(prompt, caches=caches, **inputs(torch.arange(2)))
        caches.reorder(rows)
        model(prompt[rows], caches=known, **inputs(rows))
        size = {"batch_size": len(rows), "max_steps": MIN_PACKED_STEPS} if many else {}
        step, tolerance = FastDecodeStep(model, **size), 1e-5 if dtype == torch.float32 else 1e-9
        for _ in range(4):
            new = torch.randint(13, (len(rows), 1))
            ours = step(new, caches, context_mask)
            cached = model(new, caches=known, context_mask=inputs(rows).get("context_mask"))[:, -1]
            scale = cached.abs().max().clamp(min=1)
            torch.testing.assert_close(ours / scale, cached / scale, rtol=tolerance, atol=tolerance)
    assert caches.num_tokens == known.num_tokens == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("max_steps", [1, MIN_PACKED_STEPS])
def test_in_half_precision_the_step_is_as_near_to_float32_as_the_modules(dtype, max_steps):
    model = tiny(97, seed=2, d_model=64, num_heads=4, num_kv_heads=2, positions="rotary").to(dtype)
    ids = torch.randint(97, (1, 40))
    with torch.inference_mode():
        caches, known = model.caches(), model.caches()
        model(ids[:, :-1], caches=caches)
        model(ids[:, :-1], caches=known)
        by_step = FastDecodeStep(model, max_steps=max_steps)(ids[:, -1:], caches).float()
        by_modules = model(ids[:, -1:], caches=known)[:, -1].float()
        exact = model.float()(ids)[:, -1]
    assert (by_step - exact).norm() < 1.5 * (by_modules - exact).norm()


def test_weights_are_packed_where_that_pays():
    """For enough steps, and for one row in bfloat16 only; of float64 oneDNN has no product."""

    def is_packed(model, *, rows=2, steps=MIN_PACKED_STEPS):
        projection = FastDecodeStep(model, batch_size=rows, max_steps=steps).lm_head
        return any(
            isinstance(part, torch.Tensor) and part.is_mkldnn for part in inspect.getclosurevars(projection)[0].values()
        )

    model = tiny().float()
    assert is_packed(model)
    assert not is_packed(model, steps=MIN_PACKED_STEPS - 1)
    assert not is_packed(model, rows=1)
    assert not is_packed(model.double())
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert is_packed(model.bfloat16(), rows=1)
        assert not is_packed(model.bfloat16(), rows=1, steps=MIN_PACKED_STEPS - 1)


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


def replaced(change):
    """A change of the first layer of the feed-forward network."""
    return lambda model: setattr(model.blocks[0].feed_forward, "up", change(model.blocks[0].feed_forward.up))


def with_another_forward(layer):
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)  # what accelerate does
    return layer


CHANGES = {
    "hook": lambda model: model.blocks[1].feed_forward.register_forward_hook(lambda *_: None),
    "pre-hook": lambda model: model.blocks[0].attention.register_forward_pre_hook(lambda *_: None),
    "training": lambda model: model.blocks[0].attention.train(),
    "subclass": replaced(lambda layer: DoubledLinear(layer.in_features, layer.out_features).double().eval()),
    "parametrized": replaced(nn.utils.parametrizations.weight_norm),
    "forward replaced": replaced(with_another_forward),
    "wrapped in Sequential": replaced(nn.Sequential),
    "interleaved rotary positions": lambda model: setattr(model.rotary, "interleaved", True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_decoder_runs_its_modules(change):
    """And writes what its own forward says."""
    model = tiny(11, seed=5, positions="rotary")
    assert FastDecodeStep.supports(model)
    change(model)
    assert not FastDecodeStep.supports(model)
    model.blocks[0].attention.eval()
    ids = torch.randint(11, (3, 4))
    generated = regard.generate(model, ids, max_new_tokens=8)
    with torch.no_grad():  # causal: what the whole text says at each place is what its beginning says there
        assert torch.equal(model(generated[:, :-1])[:, 3:].argmax(-1), generated[:, 4:])


def test_the_step_knows_a_norm_without_weights():
    model = tiny(11, seed=5, norm="rms", norm_position="pre")
    model.norm = nn.RMSNorm(8, elementwise_affine=False).eval()
    assert FastDecodeStep.supports(model)
    generated = regard.generate(model, [[1, 2, 3]], max_new_tokens=8)[0]
    with torch.no_grad():
        assert model(torch.tensor(generated[:-1]))[2:].argmax(-1).tolist() == generated[3:]


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
