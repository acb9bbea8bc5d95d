"""The encoder: BERT's setting of the config, and what every setting shares."""

from __future__ import annotations

import pytest
import torch

from models import assert_every_parameter_learns
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


def test_windows_reach_to_both_sides():
    near, far = encoder(windows=(2, 2, 1)).double(), encoder(windows=(2, None, 1)).double()
    ids = ids_of(7)
    changed = ids.clone()
    changed[3] = (ids[3] + 1) % 30
    differs = (near(ids) != near(changed)).any(dim=-1)
    assert differs.tolist() == [False, True, True, True, True, True, False]  # one further with each window of 2
    assert (far(ids) != far(changed)).any(dim=-1).all()


# The embedding.


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
