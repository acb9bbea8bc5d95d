"""The encoder: BERT's setting of the config, and what every setting shares."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

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
    torch.manual_seed(0)
    return Encoder(Config(**{**SMALL, **changes})).eval()


@every_kind
def test_every_output_depends_on_every_token(kind):
    model, ids = encoder(**kind).double(), torch.tensor([4, 5, 6, 7])
    vectors = model.embeddings.token.weight[ids].detach()

    def output(chosen):
        model.embeddings.token.forward = lambda _: chosen
        return model(ids)

    jacobian = torch.autograd.functional.jacobian(output, vectors)
    assert (jacobian.abs().amax(dim=(1, 3)) > 0).all()


def test_windows_reach_to_both_sides():
    near, far = encoder(windows=(2, 2, 1)).double(), encoder(windows=(2, None, 1)).double()
    ids = torch.randint(30, (7,))
    changed = ids.clone()
    changed[3] = (ids[3] + 1) % 30
    differs = (near(ids) != near(changed)).any(dim=-1)
    assert differs.tolist() == [False, True, True, True, True, True, False]  # one further with each window of 2
    assert (far(ids) != far(changed)).any(dim=-1).all()


def test_hidden_states_are_the_input_and_each_layer():
    model, ids = encoder(), torch.randint(30, (2, 5))
    states = list(model.hidden_states(ids))
    assert [tuple(state.shape) for state in states] == [(2, 5, 12)] * 4
    assert torch.equal(states[0], model.embeddings(ids))
    assert torch.equal(states[-1], model(ids))


@every_kind
def test_a_batch_of_one_needs_no_batch_axis(kind):
    model, ids = encoder(**kind), torch.randint(30, (5,))
    torch.testing.assert_close(model(ids), model(ids[None])[0])


def test_the_embedding_is_the_normalized_sum_of_three_components():
    model, ids, token_type_ids = encoder(**BERT), torch.randint(30, (2, 5)), torch.randint(2, (2, 5))
    token, position, token_type = model.embeddings.components(ids, token_type_ids)
    assert (token.shape, position.shape, token_type.shape) == ((2, 5, 12), (5, 12), (2, 5, 12))
    torch.testing.assert_close(
        model.embeddings(ids, token_type_ids), model.embeddings.norm(token + position + token_type)
    )
    assert not torch.equal(model(ids, token_type_ids), model(ids, 1 - token_type_ids))
    assert torch.equal(model(ids), model(ids, torch.zeros_like(ids)))


def test_the_papers_embedding():
    model, ids = encoder(), torch.randint(30, (2, 5))
    token, position, token_type = model.embeddings.components(ids)
    torch.testing.assert_close(token, model.embeddings.token.weight[ids] * 12**0.5)
    torch.testing.assert_close(position, positions.sinusoidal(5, 12))
    assert token_type is None


def test_first_position():
    """RoBERTa and BART leave the first rows to other uses."""
    model, ids = encoder(**BERT, first_position=2), torch.randint(30, (2, 9))
    assert model.embeddings.position.weight.shape == (11, 12)
    _, position, _ = model.embeddings.components(ids)
    assert torch.equal(position, model.embeddings.position.weight[2:])


def test_sines_before_cosines():
    _, position, _ = encoder(sinusoidal_halves=True).embeddings.components(torch.randint(30, (5,)))
    assert torch.equal(position, positions.sinusoidal(5, 12, halves=True))


@every_kind
def test_padding_changes_nothing_for_the_real_tokens(kind):
    model, ids = encoder(**kind), torch.randint(30, (3, 7))
    lengths = [7, 4, 1]
    padded = model(ids, mask=mask.padding(lengths))
    left = torch.stack([row.roll(7 - length) for row, length in zip(ids, lengths, strict=True)])
    on_the_left = model(left, left_padding=torch.tensor([0, 3, 6]))
    for row, length in enumerate(lengths):
        alone = model(ids[row, :length])
        torch.testing.assert_close(padded[row, :length], alone)
        torch.testing.assert_close(on_the_left[row, 7 - length :], alone)


def test_dropout_acts_in_training_only():
    model, ids = encoder(dropout=0.5), torch.randint(30, (5,))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_a_post_norm_block_ends_in_a_norm():
    model, ids = encoder(**BERT), torch.randint(30, (5,))
    states = torch.stack(list(model.hidden_states(ids)))
    torch.testing.assert_close(states.mean(-1), torch.zeros(4, 5), atol=1e-6, rtol=0)
    torch.testing.assert_close(states.var(-1, unbiased=False), torch.ones(4, 5), atol=1e-4, rtol=0)


@every_kind
def test_a_gradient_reaches_every_parameter(kind):
    model = encoder(**kind, mlm_head=True)
    logits = model.logits(
        model(torch.randint(30, (3, 7)), torch.randint(2, (3, 7)) if "num_token_types" in kind else None)
    )
    (logits * torch.randn_like(logits)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("tied", [True, False])
def test_the_mlm_head_by_hand(tied):
    model = encoder(**BERT, mlm_head=True, tie_word_embeddings=tied)
    x, head = model(torch.randint(30, (2, 5))), model.mlm_head
    nn.init.normal_(head.bias)
    expected = head.norm(nn.functional.gelu(head.transform(x)))
    weight = model.embeddings.token.weight if tied else head.weight
    torch.testing.assert_close(model.logits(x), expected @ weight.T + head.bias)
    names = {name for name in model.state_dict() if name.startswith("mlm_head")}
    assert ("mlm_head.weight" in names) is not tied


@every_kind
def test_half_precision_stays_near(kind):
    model, ids = encoder(**kind), torch.randint(30, (2, 5))
    half = copy.deepcopy(model).bfloat16()(ids)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), model(ids), rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("ids", "token_type_ids", "error", "message"),
    [
        (torch.zeros(10, dtype=torch.long), None, ValueError, "10 tokens, but this model has positions for 9"),
        (torch.zeros(0, dtype=torch.long), None, ValueError, r"ids of shape \(0,\) hold no token"),
        (torch.tensor([3, 30]), None, IndexError, "every token id must be 0 to 29; got 3 to 30"),
        (torch.tensor([-1, 3]), None, IndexError, "every token id must be 0 to 29; got -1 to 3"),
        (torch.tensor([1, 3]), torch.tensor([0, 2]), IndexError, "every token type must be 0 to 1; got 0 to 2"),
    ],
)
def test_invalid_inputs_are_named(ids, token_type_ids, error, message):
    with pytest.raises(error, match=message):
        encoder(**BERT)(ids, token_type_ids)


def test_missing_parts_are_named():
    model, ids = encoder(), torch.randint(30, (5,))
    with pytest.raises(ValueError, match=r"token_type_ids were given, but this model has none \(num_token_types=0\)"):
        model(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match=r"no masked-language-model head \(mlm_head=False\)"):
        model.logits(model(ids))
