"""A model is the same after generating as before: its mode, its hooks, its gradients; also where it was cut short."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import tiny, tiny_translator
from torch import nn

import regard
from regard import Beam, Greedy, Sample

STRATEGIES = [Greedy(), Sample(seed=1), Beam(num_beams=3)]
MODELS = {"decoder": tiny, "encoder-decoder": tiny_translator}


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_in_training_writes_without_dropout_and_goes_on_training(kind, strategy):
    model = MODELS[kind](11, dropout=0.5, attention_dropout=0.5)
    expected = regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    model.train()
    (model if kind == "decoder" else model.decoder).blocks[1].eval()  # frozen by hand: it stays so
    before = modes(model)
    assert regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy) == expected
    assert modes(model) == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_part_in_training_of_a_model_in_evaluation_has_no_dropout(strategy):
    model = tiny(11, dropout=0.5)
    expected = regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    model.blocks[0].train()
    before = modes(model)
    assert regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy) == expected
    assert modes(model) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interrupt_leaves_nothing_broken(strategy, error):
    model = tiny(11, dropout=0.5)
    expected = regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    model.train()
    calls = 0

    def interrupt(*_):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error

    hook = model.blocks[1].register_forward_hook(interrupt)
    with pytest.raises(error):
        regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    hook.remove()
    assert all(modes(model).values())
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy) == expected


def test_a_stream_that_is_left_halfway():
    """Between two tokens the model is as it was, and so are PyTorch's modes."""
    model = tiny(11, dropout=0.5).train()
    expected = regard.generate(model, [1, 2], max_new_tokens=9)
    stream = regard.stream(model, [1, 2], max_new_tokens=9)
    first = [next(stream), next(stream)]
    assert all(modes(model).values())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert regard.generate(model, [1, 2], max_new_tokens=9) == expected
    other = regard.stream(model, [1, 2], max_new_tokens=9)
    assert [next(other), next(other)] == first
    assert [1, 2, *first, *stream] == expected  # two streams do not meet
    other.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_returned_is_a_plain_tensor(strategy):
    """Of int64, on the CPU, writable, and usable in training."""
    model, ids = tiny(11), torch.tensor([[1, 2], [3, 4]])
    copy_of_ids = ids.clone()
    generated = regard.generate(model, ids, max_new_tokens=5, strategy=strategy)
    assert generated.dtype == torch.int64
    assert generated.shape == (2, 7)
    assert not generated.is_inference()
    generated[0, 0] = 0
    assert torch.equal(ids, copy_of_ids)
    model(generated).sum().backward()
    assert all(p.requires_grad and not p.is_inference() for p in model.parameters())
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_whatever_mode_the_caller_is_in(mode):
    model = tiny(11)
    expected = regard.generate(model, [1, 2], max_new_tokens=5, strategy=Beam())
    with mode():
        assert regard.generate(model, [1, 2], max_new_tokens=5, strategy=Beam()) == expected
    assert all(p.grad is None for p in model.parameters())


def test_training_goes_on_after_it():
    """Weights that change between two texts are the weights of the second one."""
    model = tiny(11, seed=2)
    before = regard.generate(model, [1, 2], max_new_tokens=30, strategy=Beam())
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p))
    fresh = copy.deepcopy(model)
    after = regard.generate(model, [1, 2], max_new_tokens=30, strategy=Beam())
    assert after == regard.generate(fresh, [1, 2], max_new_tokens=30, strategy=Beam())
    assert after != before


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", MODELS)
def test_every_dtype(kind, dtype, strategy):
    """Long enough, and with beams enough, for packed weights; greedy is what the model's own forward says."""
    model = MODELS[kind](11, seed=3).to(dtype)
    ids = [[1, 2], [3, 4, 5], [6, 7], [8]]
    generated = regard.generate(model, ids, max_new_tokens=26, strategy=strategy)
    assert all(
        len(text) == 26 + (1 if kind == "encoder-decoder" else len(prompt))
        for text, prompt in zip(generated, ids, strict=True)
    )
    if dtype == torch.float32 and isinstance(strategy, Greedy):
        for text, prompt in zip(generated, ids, strict=True):
            with torch.no_grad():
                if kind == "decoder":
                    best = model(torch.tensor(text[:-1])).argmax(-1)[len(prompt) - 1 :]
                    assert best.tolist() == text[len(prompt) :]
                else:
                    best = model(torch.tensor(prompt), torch.tensor(text[:-1])).argmax(-1)
                    assert best.tolist() == text[1:]


def test_the_model_holds_no_new_module_hook_or_buffer():
    model = tiny(11)
    state, names = copy.deepcopy(model.state_dict()), [name for name, _ in model.named_modules()]
    attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
    for strategy in STRATEGIES:
        regard.generate(model, [[1, 2], [3]], max_new_tokens=30, strategy=strategy)
    assert names == [name for name, _ in model.named_modules()]
    assert attributes == {name: sorted(vars(module)) for name, module in model.named_modules()}
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())
    assert isinstance(model, nn.Module)
