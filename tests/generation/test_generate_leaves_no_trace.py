"""A model is the same after generating as before: its mode, its hooks, its gradients; also where it was cut short."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import tiny, tiny_translator

import regard
from grids import grid
from regard import Beam, Greedy, Sample
from regard.transformer import SpecialTokens

STRATEGIES = [Greedy(), Sample(seed=1), Beam(num_beams=3)]
MODELS = [tiny, tiny_translator]


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


@grid(make=MODELS, strategy=STRATEGIES, frozen=[True, False])
def test_a_model_in_training_writes_without_dropout_and_goes_on_training(make, strategy, frozen):
    """Also one with a part that is frozen by hand; and one in evaluation with a part that trains."""
    model = make(11, dropout=0.5, attention_dropout=0.5)
    part = getattr(model, "decoder", model).blocks[1]
    expected = regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    model.train(frozen)
    part.train(not frozen)
    before = modes(model)
    assert regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy) == expected
    assert modes(model) == before


@grid(strategy=STRATEGIES, error=[KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing_broken(strategy, error):
    model = tiny(11, dropout=0.5)
    expected = regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    model.train()
    steps = iter(range(4))

    def interrupt(*_):
        if next(steps, None) is None:
            raise error

    hook = model.blocks[1].register_forward_hook(interrupt)
    with pytest.raises(error):
        regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy)
    hook.remove()
    assert all(modes(model).values())
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
    assert regard.generate(model, [1, 2], max_new_tokens=9, strategy=strategy) == expected


def test_a_stream_that_is_left_halfway():
    """Between two tokens the model is as it was, and so are PyTorch's modes."""
    model = tiny(11, dropout=0.5).train()
    expected = regard.generate(model, [1, 2], max_new_tokens=9)
    stream = regard.stream(model, [1, 2], max_new_tokens=9)
    first = [next(stream), next(stream)]
    assert all(modes(model).values())
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
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
    assert (generated.dtype, generated.shape, generated.is_inference()) == (torch.int64, (2, 7), False)
    generated[0, 0] = 0
    assert torch.equal(ids, copy_of_ids)
    model(generated).sum().backward()
    assert all(p.grad is not None and not p.is_inference() for p in model.parameters())


@pytest.mark.parametrize(("pad", "own", "expected"), [(0, 5, 0), (None, 5, 5), (None, 0, 0), (None, None, 4)])
def test_shorter_rows_are_filled_with_padding_else_with_the_first_stop_token(pad, own, expected):
    model = tiny(9, seed=4, special_tokens=SpecialTokens(eos=(4, 6), pad=own))
    rows = regard.generate(model, torch.tensor([[2, 0], [5, 3]]), max_new_tokens=6, pad=pad)
    assert rows[0, 2] in (4, 6)
    assert rows[0, 3:].tolist() == [expected] * 5


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
    after = regard.generate(model, [1, 2], max_new_tokens=30, strategy=Beam())
    assert after == regard.generate(copy.deepcopy(model), [1, 2], max_new_tokens=30, strategy=Beam())
    assert after != before


@grid(make=MODELS, dtype=[torch.bfloat16, torch.float16, torch.float32], strategy=STRATEGIES)
def test_every_dtype(make, dtype, strategy):
    """Long enough, and with beams enough, for packed weights."""
    model, prompts = make(11, seed=3).to(dtype), [[1, 2], [3, 4, 5], [6, 7], [8]]
    texts = regard.generate(model, prompts, max_new_tokens=26, strategy=strategy)
    read = [1 if make is tiny_translator else len(prompt) for prompt in prompts]
    assert [len(text) - 26 for text in texts] == read


def test_the_model_holds_no_new_module_hook_or_buffer():
    def facts(model):
        return [(name, sorted(vars(module)), len(module._forward_hooks)) for name, module in model.named_modules()]

    model = tiny(11)
    state, before = copy.deepcopy(model.state_dict()), facts(model)
    for strategy in STRATEGIES:
        regard.generate(model, [[1, 2], [3]], max_new_tokens=30, strategy=strategy)
    assert facts(model) == before
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
