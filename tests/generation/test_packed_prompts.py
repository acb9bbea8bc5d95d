"""Prompts of an encoder, packed into one row where padding would be many tokens."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_translator
from torch.nn.utils.rnn import pad_sequence

import regard
from regard import mask
from regard.generation.session import DecodeSession

PROMPTS = [[5, 2, 3, 7, 7, 1, 9], [1], [8, 8, 3], [2, 9], [7]]


def encode(model, prompts):
    """The encoder's output in a session, and the ids that the encoder was given."""
    given, session = [], DecodeSession(model, prompts, 1, batch_size=len(prompts), max_steps=1)
    forward = type(model.encoder).forward

    def recorded(encoder, ids, *arguments, **options):
        given.append(ids.shape)
        return forward(encoder, ids, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(type(model.encoder), "forward", recorded)
        session._context_mask = mask.padding(session._lengths)
        return session._encode(model.encoder), given


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "t5"])
def test_packed_prompts_are_encoded_as_padded_ones(positions):
    model = tiny_translator(11, seed=3, positions=positions, max_positions=7)
    packed, given = encode(model, PROMPTS)
    assert given == [(1, sum(map(len, PROMPTS)))]
    lengths = torch.tensor([len(prompt) for prompt in PROMPTS])
    ids = pad_sequence([torch.tensor(prompt) for prompt in PROMPTS], batch_first=True)
    with torch.no_grad():
        padded = model.encoder(ids, mask=mask.padding(lengths))
    for row, expected, length in zip(packed, padded, lengths, strict=True):
        torch.testing.assert_close(row[:length], expected[:length])


def test_prompts_of_like_lengths_are_padded():
    assert encode(tiny_translator(11), [[5, 2, 3, 7], [1, 4, 6, 2], [8, 8, 3, 3]])[1] == [(3, 4)]
    assert encode(tiny_translator(11), [[1] * 20, [2] * 19])[1] == [(2, 20)]


def test_who_watches_the_encoder_gets_one_row_per_prompt():
    """By a hook of torch, and by `regard.watch`."""
    model, shapes = tiny_translator(11), []
    by_packing = regard.generate(model, PROMPTS, max_new_tokens=3)
    hook = model.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape[:2]))
    assert regard.generate(model, PROMPTS, max_new_tokens=3) == by_packing
    assert shapes == [(5, 7)]
    hook.remove()
    with regard.watch(model):
        assert encode(model, PROMPTS)[1] == [(5, 7)]
