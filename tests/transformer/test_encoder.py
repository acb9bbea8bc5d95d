import pytest
import torch

from regard import mask
from regard.transformer import Config, Encoder

SMALL = {
    "vocab_size": 30,
    "d_model": 12,
    "num_layers": 3,
    "num_heads": 4,
    "d_ff": 20,
    "max_positions": 9,
}


def encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    return Encoder(Config(**{**SMALL, **changes})).eval()


def test_every_output_depends_on_every_token():
    model, ids = encoder(), torch.tensor([4, 5, 6, 7])
    vectors = model.embeddings(ids).detach().requires_grad_()
    x = vectors
    for block in model.blocks:
        x = block(x)
    for row in x:
        # Not the plain sum: a layer norm fixes it.
        (gradient,) = torch.autograd.grad((row**3).sum(), vectors, retain_graph=True)
        assert (gradient.abs().sum(-1) > 0).all()


def test_states_are_the_input_and_each_layer():
    model, ids = encoder(), torch.randint(30, (2, 5))
    states = list(model.states(ids))
    assert [tuple(state.shape) for state in states] == [(2, 5, 12)] * 4
    assert torch.equal(states[0], model.embeddings(ids))
    assert torch.equal(states[-1], model(ids))


def test_a_batch_of_one_needs_no_batch_axis():
    model, ids = encoder(), torch.randint(30, (5,))
    torch.testing.assert_close(model(ids), model(ids[None])[0])


def test_the_embedding_is_normed_sum_of_three_parts():
    model, ids, segments = encoder(), torch.randint(30, (2, 5)), torch.randint(2, (2, 5))
    token, position, segment = model.embeddings.parts(ids, segments)
    assert (token.shape, position.shape, segment.shape) == ((2, 5, 12), (5, 12), (2, 5, 12))
    torch.testing.assert_close(model.embeddings(ids, segments), model.embeddings.norm(token + position + segment))
    assert not torch.equal(model(ids, segments), model(ids, 1 - segments))


def test_padding_changes_nothing_for_the_real_tokens():
    model, ids = encoder(), torch.randint(30, (3, 7))
    lengths = [7, 4, 1]
    padded = model(ids, mask=mask.padding(lengths))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], model(ids[row, :length]))


def test_dropout_acts_in_training_only():
    model, ids = encoder(dropout=0.5), torch.randint(30, (5,))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_a_post_norm_block_ends_in_a_norm():
    model, ids = encoder(), torch.randint(30, (5,))
    states = torch.stack(list(model.states(ids)))
    torch.testing.assert_close(states.mean(-1), torch.zeros(4, 5), atol=1e-6, rtol=0)
    torch.testing.assert_close(states.var(-1, unbiased=False), torch.ones(4, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("ids", "segments", "error", "message"),
    [
        (torch.zeros(10, dtype=torch.long), None, ValueError, "10 tokens, but only 9 learned positions"),
        (torch.tensor([3, 30]), None, IndexError, "every token id must be 0 to 29; got 3 to 30"),
        (torch.tensor([-1, 3]), None, IndexError, "every token id must be 0 to 29; got -1 to 3"),
        (torch.tensor([1, 3]), torch.tensor([0, 2]), IndexError, "every segment must be 0 to 1; got 0 to 2"),
    ],
)
def test_what_it_cannot_read_is_named(ids, segments, error, message):
    with pytest.raises(error, match=message):
        encoder()(ids, segments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 must be a whole number, at least 1 and below"),
        ({"d_model": 12.0}, r"d_model=12\.0 must be a whole number"),
        ({"d_model": 13}, "d_model=13 does not divide into num_heads=4"),
        ({"norm_eps": None}, "norm_eps=None must be a number from 0 to 1"),
        ({"dropout": 1.5}, r"dropout=1\.5 must be a number from 0 to 1"),
        ({"activation": "swish"}, "activation='swish' is not one of gelu, gelu_tanh, relu"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_config_that_makes_no_model_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **changes})
