"""The recording that effects keep for their page: of the first text, with its tokens, and only a small one."""

import pytest
import torch
from torch.nn import functional

import regard
from lens.watching import FunctionModule
from weights import minilm

TEXTS = ["a river bank", "a loan in a bank of a town"]


@pytest.mark.parametrize("over", ["layers", "tokens"])
def test_it_is_that_of_the_first_text_with_its_tokens(over):
    effects = regard.effect(minilm(), TEXTS, regard.metrics.cosine(), over)
    assert effects.recording is not None
    assert tuple(effects.recording) == effects.paths
    m = effects.recording[effects.paths[0]]
    assert m.tokens is not None
    assert tuple(m.tokens[1]) == effects.tokens[0]


@pytest.mark.more
def test_a_recording_that_takes_much_memory_is_not_kept():
    model = FunctionModule(lambda x: functional.scaled_dot_product_attention(*[x[:, None]] * 3))
    effects = regard.effect(model.eval(), torch.ones(1, 1, 12 * 2**20), lambda output: output[0, 0, 0, 0], "layers")
    assert effects.recording is None
