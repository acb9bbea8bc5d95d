"""The encoder: what it promises beside the parity of BERT and RoBERTa with transformers."""

from __future__ import annotations

import pytest
import torch

from models import assert_every_parameter_learns
from regard.transformer import Config, Encoder

SMALL = {"vocab_size": 30, "d_model": 12, "num_layers": 3, "num_heads": 4, "d_ff": 20}
BERT = {"max_positions": 9, "positions": "learned", "num_token_types": 2, "scale_embedding": False}
BERT |= {"embedding_norm": True, "attention_bias": True, "out_bias": True, "activation": "gelu"}


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


def test_dropout_acts_in_training_only():
    model, ids = encoder(dropout=0.5), ids_of(5)
    for part in (model, model.embeddings):
        assert torch.equal(part.eval()(ids), part(ids))
        assert not torch.equal(part.train()(ids), part(ids))


@pytest.mark.parametrize("tied", [True, False])
def test_a_gradient_reaches_every_parameter(tied):
    model = encoder(**BERT, mlm_head=True, tie_word_embeddings=tied)
    assert_every_parameter_learns(model, model.logits(model(ids_of(3, 7), torch.randint(2, (3, 7)))))


def test_an_untied_head_begins_as_small_as_its_width_asks_for():
    """Logits of unit vectors vary by about 1."""
    model = encoder(**{**BERT, "d_model": 64}, mlm_head=True, tie_word_embeddings=False)
    assert model.mlm_head.weight.std().item() == pytest.approx(1 / 8, rel=0.1)


def test_what_does_not_fit_is_named():
    model, ids = encoder(), ids_of(5)
    with pytest.raises(ValueError, match=r"token_type_ids were given, but this model has none \(num_token_types=0\)"):
        model(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match=r"no masked-language-model head \(mlm_head=False\)"):
        model.logits(model(ids))
    with pytest.raises(IndexError, match="every token type must be 0 to 1; got 0 to 2"):
        encoder(**BERT)(ids, torch.tensor([0, 1, 2, 0, 1]))
