"""The Vision Transformer: what it promises beside the parity with transformers, and what it refuses."""

import pytest
import torch

from models import assert_every_parameter_learns
from regard import mask
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder, ImageEncoder, Patches

PATCHES = Patches(image_size=(6, 8), patch_size=(3, 2), channels=2)
SIZES = {"vocab_size": 11, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 20, "dropout": 0.0}
VIT = {**SIZES, "patches": PATCHES, "positions": "learned", "max_positions": 9, "norm_position": "pre"}
VIT |= {"activation": "gelu", "attention_bias": True, "out_bias": True}


@pytest.fixture
def encoder():
    return ImageEncoder(Config(**VIT)).eval()


@pytest.fixture
def pixels():
    return torch.randn(3, 2, 6, 8)


def test_patches_count_and_are_named_row_by_row():
    assert (PATCHES.num_rows, PATCHES.num_columns, PATCHES.num_tokens) == (2, 4, 9)
    assert PATCHES.token_names == ["[class]", "0,0", "0,1", "0,2", "0,3", "1,0", "1,1", "1,2", "1,3"]


def test_one_image_alone_is_the_row_of_a_batch(encoder, pixels):
    torch.testing.assert_close(encoder(pixels[1]), encoder(pixels)[1], atol=1e-6, rtol=0)


def test_a_mask_hides_patches(encoder, pixels):
    changed, first_8 = pixels.clone(), mask.padding(torch.tensor([8] * 3))
    changed[..., 3:, 6:] += 1  # the last patch
    assert not torch.equal(encoder(changed), encoder(pixels))
    assert torch.equal(encoder(changed, first_8)[:, :8], encoder(pixels, first_8)[:, :8])


@pytest.mark.parametrize("width", [12, 8])
def test_an_encoder_decoder_reads_images_and_learns_from_them(pixels, width):
    writer = Config(**{**SIZES, "d_model": width, "num_heads": 2}, max_positions=9, positions="learned")
    model, ids = EncoderDecoder(Config(**VIT, decoder=writer)).eval(), torch.randint(11, (3, 4))
    assert (model.encoder.projection is None) == (width == 12)
    logits, context, caches = model(pixels, ids), model.encoder(pixels), model.caches()
    assert (logits.shape, context.shape) == ((3, 4, 11), (3, 9, width))
    steps = [model.decoder(ids[:, i : i + 1], caches=caches, context=context if i == 0 else None) for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, dim=1), logits, atol=1e-5, rtol=0)
    assert_every_parameter_learns(model, logits)
    with pytest.raises(ValueError, match="source_positions are for texts: the patches of an image have learned pos"):
        model(pixels, ids, source_positions=torch.arange(9))


def test_dropout_acts_on_patches_in_training_only(pixels):
    embeddings = ImageEncoder(Config(**{**VIT, "dropout": 0.5})).embeddings
    assert not torch.equal(embeddings(pixels), embeddings(pixels))
    assert torch.equal(embeddings.eval()(pixels), embeddings(pixels))


# What is refused.


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("pixels", "error", "message"),
    [
        (torch.zeros(1, 2, 8, 6), ValueError, r"\(channels, height, width\) = \(2, 6, 8\).* got \(1, 2, 8, 6\)"),
        (torch.zeros(2, 6), ValueError, r"got \(2, 6\)"),
        (torch.zeros(1, 1, 2, 6, 8), ValueError, r"got \(1, 1, 2, 6, 8\)"),
        (torch.zeros(1, 2, 6, 8).byte(), TypeError, "as Pretrained.pixel_values makes them; got torch.uint8"),
    ],
)
def test_other_pixels_are_refused(encoder, pixels, error, message):
    with pytest.raises(error, match=message):
        encoder(pixels)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": (6, 9)}, r"image_size=\(6, 9\) does not divide into patches of patch_size=\(3, 2\)"),
        ({"patch_size": (0, 2)}, r"patch_size=\(0, 2\): whole numbers, at least 1"),
        ({"image_size": (6,)}, r"image_size=\(6,\): whole numbers"),
        ({"channels": True}, "channels=True: whole numbers"),
    ],
)
def test_invalid_patches_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Patches(**{"image_size": (6, 8), "patch_size": (3, 2), "channels": 2, **changes})


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (ImageEncoder, {"patches": None}, "an ImageEncoder needs config.patches"),
        (ImageEncoder, {"positions": "sinusoidal"}, "positions='sinusoidal': with these .* positions='learned'"),
        (ImageEncoder, {"max_positions": 8}, "max_positions=8: with these patches .* has max_positions=9"),
        (ImageEncoder, {"first_position": 2}, "first_position=2"),
        (ImageEncoder, {"num_token_types": 2}, "num_token_types=2"),
        (ImageEncoder, {"embedding_norm": True}, "embedding_norm=True"),
        (ImageEncoder, {"windows": (2, None)}, r"windows=\(2, None\)"),
        (ImageEncoder, {"mlm_head": True}, "mlm_head=True"),
        (Encoder, {}, r"an Encoder reads texts: config\.patches"),
        (Decoder, {}, r"a Decoder reads texts: config\.patches"),
        (EncoderDecoder, {}, r"its decoder's sizes to config\.decoder"),
    ],
)
def test_texts_and_images_have_models_of_their_own(model, changes, message):
    with pytest.raises(ValueError, match=message):
        model(Config(**{**VIT, **changes}))
