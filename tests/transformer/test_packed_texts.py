"""Several texts in one row: each comes out as it does alone, whatever tells the model where a token stands."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grids import some_examples
from models import SMALL, assert_same_gradients, decoder_configs, randomized
from regard import mask
from regard.attention.positions import DynamicNTK
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder


def packed(lengths):
    """Texts of these lengths in one row: token ids, the document of each token, its place in that."""
    lengths = torch.tensor(lengths)
    places = torch.cat([torch.arange(n) for n in lengths])
    return torch.randint(13, (int(lengths.sum()),)), torch.arange(len(lengths)).repeat_interleave(lengths), places


lengths = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@some_examples(0.6)
@given(decoder_configs(), lengths, st.sampled_from([Encoder, Decoder]), st.sampled_from(["row", "batch"]))
def test_packed_texts_equal_single_texts(config, lengths, make, axes):
    model = randomized(make(Config(**config)))
    ids, documents, places = packed(lengths)
    if axes == "batch":  # the second row holds the same texts in reverse
        ids, documents, places = (torch.stack([t, t]) for t in (ids, documents, places))
        order = torch.arange(len(lengths)).flip(0)
        order = torch.cat([(documents[0] == n).nonzero()[:, 0] for n in order])
        ids[1], documents[1], places[1] = ids[0, order], documents[0, order], places[0, order]
    together = model(ids, mask=mask.documents(documents), positions=places)
    rows = zip(ids.view(-1, ids.shape[-1]), documents.view(-1, ids.shape[-1]), strict=True)
    alone = [torch.cat([model(row[of == n]) for n in of.unique_consecutive()]) for row, of in rows]
    assert_same_gradients(model, together, torch.stack(alone).view(together.shape))


@some_examples(0.35)
@given(decoder_configs(), st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=6), st.data())
def test_packed_pairs_equal_single_pairs(config, pairs, data):
    """The sources in another order than the targets; each target sees its own."""
    model = randomized(EncoderDecoder(Config(**config)))
    order = torch.tensor(data.draw(st.permutations(range(len(pairs)))))
    source, of_source, source_places = packed([pairs[n][0] for n in order])
    of_source = order[of_source]
    target, of_target, target_places = packed([n for _, n in pairs])
    together = model(
        source,
        target,
        mask.documents(of_source),
        mask.documents(of_target),
        context_mask=mask.documents(of_target, of_source),
        source_positions=source_places,
        target_positions=target_places,
    )
    alone = torch.cat([model(source[of_source == n], target[of_target == n]) for n in range(len(pairs))])
    assert_same_gradients(model, together, alone)


def test_the_context_mask_defaults_to_the_source_mask():
    model = randomized(EncoderDecoder(Config(**SMALL)))
    source, target, real = torch.randint(13, (2, 6)), torch.randint(13, (2, 5)), mask.padding([6, 3])
    torch.testing.assert_close(model(source, target, real), model(source, target, real, context_mask=real))
    assert not torch.equal(model(source, target, real), model(source, target, real, context_mask=mask.padding([2, 6])))


@some_examples(0.3)
@given(decoder_configs(), st.sampled_from([torch.int64, torch.int32, torch.int8]))
def test_positions_from_0_are_the_default(config, dtype):
    model, ids = randomized(Decoder(Config(**config))), torch.randint(13, (2, 7))
    places = torch.arange(7).to(dtype)
    expected = model(ids)
    assert torch.equal(model(ids, positions=places), expected)
    torch.testing.assert_close(model(ids, positions=places.expand(2, -1)), expected)


@pytest.mark.parametrize("tokens", [1, 6, 7, 8, 20])
def test_positions_from_0_are_the_default_also_where_angles_hang_on_the_length(tokens):
    """Dynamic NTK, made for seven tokens here."""
    model = randomized(Decoder(Config(**SMALL, positions="rotary", rotary_scaling=DynamicNTK(4.0, 7))))
    ids = torch.randint(13, (2, tokens))
    torch.testing.assert_close(model(ids, positions=torch.arange(tokens)), model(ids), rtol=0, atol=1e-12)


def test_a_row_may_be_longer_than_the_positions():
    model = randomized(Encoder(Config(**SMALL, positions="learned", max_positions=3)))
    ids, documents, places = packed([3] * 40)
    assert model(ids, mask=mask.documents(documents), positions=places).shape == (120, 8)
    with pytest.raises(ValueError, match="120 tokens, but this model has positions for 3"):
        model(ids, mask=mask.documents(documents))


@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        (torch.tensor([0, 1, 2, 3, 7]), ValueError, "positions are 0 to 6 in this model; got 0 to 7"),
        (torch.tensor([0, 1, -1, 3, 4]), ValueError, "positions are 0 to 6 in this model; got -1 to 4"),
        (torch.zeros(3, 5).long(), ValueError, r"positions of shape \(3, 5\) do not fit ids of shape \(2, 5\)"),
        (torch.zeros(5), TypeError, r"positions are whole numbers from 0; got torch\.float32"),
        (torch.zeros(5).bool(), TypeError, r"positions are whole numbers from 0; got torch\.bool"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_positions_that_do_not_fit(positions, error, message):
    ids = torch.zeros(2, 5).long()
    for make in (Encoder, Decoder):
        with pytest.raises(error, match=message):
            make(Config(**SMALL, positions="rotary", max_positions=7))(ids, positions=positions)


def test_positions_with_caches_or_padding_are_refused():
    model, ids, places = Decoder(Config(**SMALL)), torch.zeros(2, 5).long(), torch.arange(5)
    for other in ({"left_padding": torch.tensor([0, 2])}, {"caches": model.caches()}):
        with pytest.raises(ValueError, match="positions are for texts that are read at once: left_padding and caches"):
            model(ids, positions=places, **other)
