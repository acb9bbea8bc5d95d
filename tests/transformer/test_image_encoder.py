"""The Vision Transformer: the paper's equation 1 by hand, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F

from regard import mask
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder, ImageEncoder, Patches

PATCHES = Patches(image_size=(6, 8), patch_size=(3, 2), channels=2)
SIZES = {"vocab_size": 11, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 20, "dropout": 0.0}
WRITER = Config(**{**SIZES, "d_model": 8, "num_heads": 2}, max_positions=9, positions="learned")
VIT = {
    **SIZES,
    "patches": PATCHES,
    "positions": "learned",
    "max_positions": 9,
    "norm_position": "pre",
    "activation": "gelu",
    "attention_bias": True,
    "out_bias": True,
}


@pytest.fixture
def encoder():
    return ImageEncoder(Config(**VIT)).eval()


def test_patches_count_and_are_named_row_by_row():
    assert (PATCHES.num_rows, PATCHES.num_columns, PATCHES.num_tokens) == (2, 4, 9)
    assert PATCHES.token_names == ["[class]", "0,0", "0,1", "0,2", "0,3", "1,0", "1,1", "1,2", "1,3"]


def test_the_first_block_reads_equation_1(encoder):
    """[class; x_1 E; ...; x_N E] + positions, each patch's pixels as one row."""
    pixels = torch.randn(5, 2, 6, 8)
    parts = encoder.embeddings
    rows = F.unfold(pixels, (3, 2), stride=(3, 2)).transpose(1, 2)  # (5, 8 patches, 2 x 3 x 2 numbers)
    assert torch.equal(rows[1, 6].view(2, 3, 2), pixels[1, :, 3:6, 4:6])
    product = rows @ parts.patch.weight.flatten(1).T + parts.patch.bias
    expected = torch.cat([parts.class_token.expand(5, 1, 12), product], dim=1) + parts.position.weight
    states = list(encoder.hidden_states(pixels))
    assert len(states) == 3
    torch.testing.assert_close(states[0], expected, atol=1e-6, rtol=0)
    assert states[0].std() > 0.1


def test_the_blocks_and_the_final_norm(encoder):
    pixels = torch.randn(2, 2, 6, 8)
    x = encoder.embeddings(pixels)
    for block in encoder.blocks:
        x = block(x)
    assert torch.equal(encoder(pixels), encoder.norm(x))
    assert torch.equal(list(encoder.hidden_states(pixels))[-1], encoder(pixels))


def test_one_image_alone_is_the_row_of_a_batch(encoder):
    pixels = torch.randn(3, 2, 6, 8)
    alone = encoder(pixels[1])
    assert alone.shape == (9, 12)
    torch.testing.assert_close(alone, encoder(pixels)[1], atol=1e-6, rtol=0)


def test_a_mask_hides_patches(encoder):
    pixels = torch.randn(1, 2, 6, 8)
    changed = pixels.clone()
    changed[..., 3:, 6:] += 1  # the last patch
    seen = mask.padding(torch.tensor([8]))
    assert not torch.equal(encoder(changed), encoder(pixels))
    assert torch.equal(encoder(changed, seen)[:, :8], encoder(pixels, seen)[:, :8])


@pytest.mark.parametrize("width", [12, 8])
def test_an_encoder_decoder_reads_images_and_learns_from_them(width):
    writer = Config(**{**SIZES, "d_model": width, "num_heads": 2}, max_positions=9, positions="learned")
    model = EncoderDecoder(Config(**VIT, decoder=writer)).eval()
    pixels, ids = torch.randn(2, 2, 6, 8), torch.randint(11, (2, 4))
    logits = model(pixels, ids)
    assert logits.shape == (2, 4, 11)
    assert (model.encoder.projection is None) == (width == 12)
    context = model.encoder(pixels)
    assert context.shape == (2, 9, width)
    caches = model.caches()
    steps = [model.decoder(ids[:, i : i + 1], caches=caches, context=context if i == 0 else None) for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, dim=1), logits, atol=1e-5, rtol=0)
    logits.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.encoder.parameters())


def test_dropout_acts_in_training_only():
    encoder = ImageEncoder(Config(**{**VIT, "dropout": 0.5}))
    pixels = torch.randn(1, 2, 6, 8)
    assert not torch.equal(encoder(pixels), encoder(pixels))
    assert torch.equal(encoder.eval()(pixels), encoder(pixels))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("pixels", "kind", "message"),
    [
        (torch.zeros(1, 2, 8, 6), ValueError, r"\(channels, height, width\) = \(2, 6, 8\).* got \(1, 2, 8, 6\)"),
        (torch.zeros(1, 3, 6, 8), ValueError, r"got \(1, 3, 6, 8\)"),
        (torch.zeros(2, 6), ValueError, r"got \(2, 6\)"),
        (torch.zeros(1, 1, 2, 6, 8), ValueError, r"got \(1, 1, 2, 6, 8\)"),
        (
            torch.zeros(1, 2, 6, 8, dtype=torch.uint8),
            TypeError,
            "as Pretrained.pixel_values makes them; got torch.uint8",
        ),
    ],
)
def test_other_pixels_are_refused(encoder, pixels, kind, message):
    with pytest.raises(kind, match=message):
        encoder(pixels)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": (6, 9)}, r"image_size=\(6, 9\) does not divide into patches of patch_size=\(3, 2\)"),
        ({"patch_size": (0, 2)}, r"patch_size=\(0, 2\): whole numbers, at least 1"),
        ({"image_size": (6, 8.0)}, r"image_size=\(6, 8\.0\): whole numbers"),
        ({"image_size": (6,)}, r"image_size=\(6,\): whole numbers"),
        ({"channels": True}, "channels=True: whole numbers"),
    ],
)
def test_invalid_patches_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Patches(**{"image_size": (6, 8), "patch_size": (3, 2), "channels": 2, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patches": None}, "an ImageEncoder needs config.patches"),
        ({"positions": "sinusoidal"}, "positions='sinusoidal': with these patches .* positions='learned'"),
        ({"max_positions": 8}, "max_positions=8: with these patches an ImageEncoder has max_positions=9"),
        ({"first_position": 2}, "first_position=2"),
        ({"num_token_types": 2}, "num_token_types=2"),
        ({"embedding_norm": True}, "embedding_norm=True"),
        ({"windows": (2, None)}, r"windows=\(2, None\)"),
        ({"mlm_head": True}, "mlm_head=True"),
    ],
)
def test_text_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ImageEncoder(Config(**{**VIT, **changes}))


def test_models_of_texts_refuse_patches():
    with pytest.raises(ValueError, match=r"an Encoder reads texts: config\.patches"):
        Encoder(Config(**VIT))
    with pytest.raises(ValueError, match=r"a Decoder reads texts: config\.patches"):
        Decoder(Config(**VIT))
    with pytest.raises(ValueError, match=r"its decoder's sizes to config\.decoder"):
        EncoderDecoder(Config(**VIT))
