"""The encoder-decoder: the paper's own sizes, PyTorch's layers as the oracle, and caches."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grids import some_examples
from models import MODES, SMALL, assert_every_parameter_learns, assert_same_gradients, randomized
from regard import mask
from regard.transformer import Config, EncoderDecoder


def both(decoder=None, **changes):
    other = None if decoder is None else Config(**{**SMALL, **decoder})
    return randomized(EncoderDecoder(Config(**{**SMALL, **changes}, decoder=other)))


def texts(model, rows=2, source=6, target=5):
    vocab = (model.config.decoder or model.config).vocab_size
    return torch.randint(model.config.vocab_size, (rows, source)), torch.randint(vocab, (rows, target))


# The paper.


def test_the_base_model_of_table_3_has_the_parameters_of_its_sizes():
    """Table 3, "base": N = 6, d_model = 512, d_ff = 2048, h = 8; a shared vocabulary of 37,000 (section 5.1).

    An attention has four matrices of d_model x d_model and no bias (section 3.2.2). A feed-forward network has two
    matrices and two biases (equation 2). Every sub-layer ends in a LayerNorm with a gain and a bias. One embedding
    serves encoder, decoder and output (section 3.4). Table 3 says 65 million.
    """
    d, d_ff, layers, vocab = 512, 2048, 6, 37_000
    attention, feed_forward, norm = 4 * d * d, 2 * d * d_ff + d_ff + d, 2 * d
    encoder = layers * (attention + feed_forward + 2 * norm)
    decoder = layers * (2 * attention + feed_forward + 3 * norm)
    with torch.device("meta"):
        model = EncoderDecoder(Config(vocab_size=vocab, d_model=d, num_layers=layers, num_heads=8, d_ff=d_ff))
    count = sum(p.numel() for p in model.parameters())
    assert count == encoder + decoder + vocab * d == 63_045_632


# Padding.


# Caches.


CHANGES = {
    "the paper's": {},
    "grouped heads, T5": {"num_kv_heads": 1, "positions": "t5", "norm": "rms", "norm_position": "pre", "qk_norm": True},
    "rotary, windows": {"positions": "rotary", "windows": (2, None), "sinks": True, "softcap": 5.0},
    "another decoder": {
        "shared_embedding": False,
        "decoder": {"d_model": 12, "num_layers": 3, "vocab_size": 7, "positions": "learned", "max_positions": 40},
    },
}
every_change = pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)


@some_examples(0.7)
@given(
    st.sampled_from([*CHANGES.values()]),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from([*MODES]),
    st.none() | st.integers(1, 3),
    st.sampled_from([None, 40]),
)
def test_cached_equals_uncached(changes, cuts, mode, beams, length):
    """Steps of any size, with beams that fork: their sources stay where they are."""
    model, lengths = both(**changes), torch.tensor([6, 3])
    source, target = texts(model, target=sum(cuts))
    steps = target.split(cuts, dim=1)
    ids, caches = steps[0], model.caches(length=length)
    padding = mask.padding(lengths)
    with MODES[mode]():
        context = model.encoder(source, mask=padding)
        ours = model.decoder(steps[0], context=context, context_mask=padding, caches=caches)
        torch.testing.assert_close(ours, model(source, ids, source_mask=padding), rtol=1e-9, atol=1e-9)
        if beams is not None:
            rows = torch.arange(2).repeat_interleave(beams)
            caches.reorder(rows)
            ids, source, lengths = ids[rows], source[rows], lengths[rows]
        for step in steps[1:]:
            new = step if beams is None else torch.randint(int(target.max()) + 1, (2 * beams, step.shape[1]))
            ids = torch.cat([ids, new], dim=1)
            ours = model.decoder(new, context_mask=padding, caches=caches)
            truth = model(source, ids, source_mask=mask.padding(lengths))[:, -new.shape[1] :]
            torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
            if beams is not None:  # a beam continues another of the same source
                rows = torch.cat([torch.randint(beams, (beams,)) + beams * i for i in range(2)])
                caches.reorder(rows)
                ids = ids[rows]


def test_gradients_through_a_shared_context():
    model = both()
    source, target = texts(model)
    caches, context = model.caches(), model.encoder(source)
    logits = [model.decoder(step, context=context, caches=caches) for step in target.split(1, dim=1)]
    assert_same_gradients(model, torch.cat(logits, dim=1), model(source, target))


def test_cross_keys_are_not_moved_when_beams_are__fairseq2_258():
    model = both()
    source, target = texts(model, target=1)
    caches = model.caches()
    assert not caches.has_context
    with torch.no_grad():
        model.decoder(target, context=model.encoder(source), caches=caches)
        assert caches.has_context
        places = [(s.k.data_ptr(), s.v.data_ptr()) for s in caches.cross_attention]
        for rows in ([0, 0, 0, 1, 1, 1], [2, 0, 1, 3, 5, 5]):
            caches.reorder(torch.tensor(rows))
            model.decoder(torch.randint(13, (6, 1)), caches=caches)
            assert [(s.k.data_ptr(), s.v.data_ptr()) for s in caches.cross_attention] == places


def test_a_finished_sentence_leaves_with_its_source__fairseq2_307():
    """As many rows as before, but of other sources: nothing may be concluded from the number of rows."""
    model = both()
    source, target = texts(model, rows=3, target=3)
    caches = model.caches()
    model.decoder(target, context=model.encoder(source), caches=caches)
    rows = torch.tensor([0, 2, 2])
    caches.reorder(rows, sources=rows)
    new = torch.randint(13, (3, 1))
    truth = model(source[rows], torch.cat([target[rows], new], dim=1))[:, -1:]
    torch.testing.assert_close(model.decoder(new, caches=caches), truth)


# One model.


def test_token_vectors_are_one_tensor_after_copies_too():
    model = both()
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).bfloat16()):
        weight = other.encoder.embeddings.token.weight
        assert weight is other.decoder.embeddings.token.weight
        assert len([p for p in other.parameters() if p.shape == (13, 8)]) == 1
    with torch.device("meta"):
        meta = EncoderDecoder(model.config)
    meta.to_empty(device="cpu")
    assert meta.encoder.embeddings.token.weight is meta.decoder.embeddings.token.weight


@every_change
def test_a_gradient_reaches_every_parameter(changes):
    model = both(**changes)
    assert_every_parameter_learns(model, model(*texts(model)))


def test_a_new_model_begins_with_logits_of_about_one():
    torch.manual_seed(0)
    config = Config(vocab_size=500, d_model=64, num_layers=2, num_heads=4, d_ff=128)
    model = EncoderDecoder(config).eval()
    source, target = texts(model, rows=4, source=20, target=20)
    assert 0.5 < model(source, target).std() < 2
    assert 0.5 < next(model.encoder.hidden_states(source)).std() < 2


# What is refused.


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ((2, 7), (2, 5), "7 tokens, but this model has positions for 6"),
        ((2, 6), (2, 7), "7 tokens, but this model has positions for 6"),
        ((2, 0), (2, 5), r"ids of shape \(2, 0\) hold no token"),
        ((2, 6), (2, 0), r"ids of shape \(2, 0\) hold no token"),
        ((2, 6), (3, 5), r"context must be \(\.\.\., tokens, 8\) with the batch of x \(3, 5, 8\)"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_invalid_inputs_are_named(source, target, message):
    with pytest.raises(ValueError, match=message):
        both(max_positions=6, positions="learned")(torch.zeros(source).long(), torch.zeros(target).long())
