"""The encoder: BERT's setting of the config, and what every setting shares."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from models import assert_every_parameter_learns
from regard import mask, positions
from regard.transformer import Config, Encoder

SMALL = {"vocab_size": 30, "d_model": 12, "num_layers": 3, "num_heads": 4, "d_ff": 20}
BERT = {
    "max_positions": 9,
    "positions": "learned",
    "num_token_types": 2,
    "scale_embedding": False,
    "embedding_norm": True,
    "norm_eps": 1e-12,
    "attention_bias": True,
    "out_bias": True,
    "activation": "gelu",
}
KINDS = {
    "the paper's": {},
    "BERT": BERT,
    "rotary": {"positions": "rotary", "d_key": 4, "norm": "rms", "norm_position": "pre", "gated": True},
    "T5": {"positions": "t5", "attention_scale": 1, "norm": "rms", "norm_position": "pre"},
    "ALiBi": {"positions": "alibi"},
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def encoder(**changes: object) -> Encoder:
    return Encoder(Config(**{**SMALL, **changes})).eval()


def ids_of(*shape):
    return torch.randint(30, shape)


@every_kind
def test_every_output_depends_on_every_token(kind):
    model, ids = encoder(**kind).double(), ids_of(4)
    before = model(ids)
    for i in range(4):
        changed = ids.clone()
        changed[i] = (ids[i] + 1) % 30
        assert (model(changed) != before).any(dim=-1).all()


def test_windows_reach_to_both_sides():
    near, far = encoder(windows=(2, 2, 1)).double(), encoder(windows=(2, None, 1)).double()
    ids = ids_of(7)
    changed = ids.clone()
    changed[3] = (ids[3] + 1) % 30
    differs = (near(ids) != near(changed)).any(dim=-1)
    assert differs.tolist() == [False, True, True, True, True, True, False]  # one further with each window of 2
    assert (far(ids) != far(changed)).any(dim=-1).all()


def test_hidden_states_are_the_input_and_each_layer():
    model, ids = encoder(**BERT), ids_of(2, 5)
    states = list(model.hidden_states(ids))
    assert [tuple(state.shape) for state in states] == [(2, 5, 12)] * 4
    assert torch.equal(states[0], model.embeddings(ids))
    assert torch.equal(states[-1], model(ids))
    for state in states:  # each post-norm block ends in a norm
        torch.testing.assert_close(state.mean(-1), torch.zeros(2, 5), atol=1e-6, rtol=0)
        torch.testing.assert_close(state.var(-1, unbiased=False), torch.ones(2, 5), atol=1e-4, rtol=0)


@every_kind
def test_padding_changes_nothing_for_the_real_tokens(kind):
    """Nor does a batch: a text alone, without a batch axis, comes out the same."""
    model, ids, lengths = encoder(**kind), ids_of(3, 7), [7, 4, 1]
    padded = model(ids, mask=mask.padding(lengths))
    left = torch.stack([row.roll(7 - length) for row, length in zip(ids, lengths, strict=True)])
    on_the_left = model(left, left_padding=torch.tensor([0, 3, 6]))
    for row, length in enumerate(lengths):
        alone = model(ids[row, :length])
        torch.testing.assert_close(padded[row, :length], alone)
        torch.testing.assert_close(on_the_left[row, 7 - length :], alone)


# The embedding.


def test_the_embedding_is_the_normalized_sum_of_three_components():
    model, ids, types = encoder(**BERT), ids_of(2, 5), torch.randint(2, (2, 5))
    token, position, token_type = model.embeddings.components(ids, types)
    assert (token.shape, position.shape, token_type.shape) == ((2, 5, 12), (5, 12), (2, 5, 12))
    torch.testing.assert_close(model.embeddings(ids, types), model.embeddings.norm(token + position + token_type))
    assert not torch.equal(model(ids, types), model(ids, 1 - types))
    assert torch.equal(model(ids), model(ids, torch.zeros_like(ids)))


@pytest.mark.parametrize("halves", [False, True])
def test_the_papers_embedding(halves):
    model, ids = encoder(sinusoidal_halves=halves), ids_of(2, 5)
    token, position, token_type = model.embeddings.components(ids)
    torch.testing.assert_close(token, model.embeddings.token.weight[ids] * 12**0.5)
    assert torch.equal(position, positions.sinusoidal(5, 12, halves=halves))
    assert token_type is None


def test_first_position():
    """RoBERTa and BART leave the first rows to other uses."""
    model = encoder(**BERT, first_position=2)
    assert model.embeddings.position.weight.shape == (11, 12)
    _, position, _ = model.embeddings.components(ids_of(2, 9))
    assert torch.equal(position, model.embeddings.position.weight[2:])


# Training.


def test_dropout_acts_in_training_only():
    model, ids = encoder(dropout=0.5), ids_of(5)
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


@every_kind
def test_a_gradient_reaches_every_parameter(kind):
    model = encoder(**kind, mlm_head=True)
    types = torch.randint(2, (3, 7)) if "num_token_types" in kind else None
    assert_every_parameter_learns(model, model.logits(model(ids_of(3, 7), types)))


@pytest.mark.parametrize("tied", [True, False])
def test_the_mlm_head_by_hand(tied):
    model = encoder(**BERT, mlm_head=True, tie_word_embeddings=tied)
    x, head = model(ids_of(2, 5)), model.mlm_head
    nn.init.normal_(head.bias)
    expected = head.norm(nn.functional.gelu(head.transform(x)))
    weight = model.embeddings.token.weight if tied else head.weight
    torch.testing.assert_close(model.logits(x), expected @ weight.T + head.bias)
    assert ("mlm_head.weight" in model.state_dict()) is not tied


@every_kind
def test_half_precision_stays_near(kind):
    model, ids = encoder(**kind), ids_of(2, 5)
    half = copy.deepcopy(model).bfloat16()(ids)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), model(ids), rtol=0, atol=0.15)


# What is refused.


@pytest.mark.parametrize(
    ("ids", "types", "error", "message"),
    [
        ([0] * 10, None, ValueError, "10 tokens, but this model has positions for 9"),
        ([], None, ValueError, r"ids of shape \(0,\) hold no token"),
        ([3, 30], None, IndexError, "every token id must be 0 to 29; got 3 to 30"),
        ([-1, 3], None, IndexError, "every token id must be 0 to 29; got -1 to 3"),
        ([1, 3], [0, 2], IndexError, "every token type must be 0 to 1; got 0 to 2"),
    ],
)
def test_invalid_inputs_are_named(ids, types, error, message):
    with pytest.raises(error, match=message):
        encoder(**BERT)(torch.tensor(ids, dtype=torch.long), None if types is None else torch.tensor(types))


def test_missing_parts_are_named():
    model, ids = encoder(), ids_of(5)
    with pytest.raises(ValueError, match=r"token_type_ids were given, but this model has none \(num_token_types=0\)"):
        model(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match=r"no masked-language-model head \(mlm_head=False\)"):
        model.logits(model(ids))
