"""vision-encoder-decoder against transformers itself: states, caches, its config, and what is refused."""

import pytest
import torch
from damage import change_json, change_weights, refused, weights_of

import regard
from captioners import DECODER, image, random_captioner

GREY = {"num_channels": 1, "image_size": 8, "patch_size": 2, "qkv_bias": False, "hidden_act": "relu"}
VARIANTS = {
    "like": {},
    "projected": {"decoder": {"n_embd": 32}},
    "untied": {"decoder": {"tie_word_embeddings": False, "n_inner": 70, "scale_attn_weights": False}},
    "grey": {"encoder": GREY, "decoder": {"n_embd": 24, "activation_function": "relu"}},
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """One model, theirs and ours."""
    folder = tmp_path_factory.mktemp("captioner")
    return random_captioner(folder, **VARIANTS[request.param]), regard.load(folder)


@torch.inference_mode()
def test_hidden_states_and_cached_logits_equal_transformers(pair):
    theirs, pretrained = pair
    model, patches = pretrained.model, pretrained.config.patches
    assert (pretrained.kind, pretrained.modality) == ("encoder-decoder", "images")
    pixels, ids = torch.randn(3, patches.channels, *patches.image_size), torch.randint(61, (3, 9))
    expected = theirs(pixel_values=pixels, decoder_input_ids=ids, output_hidden_states=True)
    (*encoded, last), context = model.encoder.hidden_states(pixels), model.encoder(pixels)
    decoded = list(model.decoder.hidden_states(ids, context=context))
    caches = model.caches()
    parts = [
        model.decoder(ids[:, start:end], caches=caches, context=context if start == 0 else None)
        for start, end in ((0, 5), (5, 6), (6, 9))
    ]
    for ours, others in (
        *zip(encoded, expected.encoder_hidden_states[:-1], strict=True),  # the last of theirs is before the norm
        (last, expected.encoder_last_hidden_state),
        *zip(decoded, expected.decoder_hidden_states, strict=True),
        (model(pixels, ids), expected.logits),
        (torch.cat(parts, dim=1), expected.logits),
    ):
        assert others.std() > 0.01
        torch.testing.assert_close(ours, others, atol=2e-5, rtol=0)


@pytest.fixture
def folder(tmp_path):
    random_captioner(tmp_path)
    return tmp_path


def test_the_masks_of_older_files_are_checked_and_saved(folder, tmp_path):
    causal, masks = torch.ones(40, 40, dtype=torch.uint8).tril().view(1, 1, 40, 40), {}
    for layer in range(2):
        for attention in ("attn", "crossattention"):
            name = f"decoder.transformer.h.{layer}.{attention}."
            masks |= {name + "bias": causal.clone(), name + "masked_bias": torch.tensor(-1e4)}
    change_weights(folder, lambda tensors: masks)
    regard.load(folder).save(tmp_path / "copy")
    assert weights_of(tmp_path / "copy").keys() == weights_of(folder).keys() > masks.keys()
    masks["decoder.transformer.h.1.crossattention.bias"][..., 0, 1] = 1
    change_weights(folder, lambda tensors: masks)
    refused(folder, r"h\.1\.crossattention\.bias is not the causal mask")


def test_special_tokens_of_the_whole_config_go_before_the_decoders(folder):
    (folder / "generation_config.json").unlink()
    config = regard.load(folder).config
    assert config.special_tokens == config.decoder.special_tokens
    change_json(folder, eos_token_id=..., pad_token_id=None, decoder__eos_token_id=7, decoder__pad_token_id=5)
    special = regard.load(folder).config.special_tokens
    assert (special.decoder_start, special.eos, special.pad) == (1, (7,), 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder__model_type": "swin"}, r"the encoder is of the model_type 'swin'; .* supports 'vit' there"),
        ({"decoder__model_type": "bert"}, r"the decoder is of the model_type 'bert'; .* supports 'gpt2' there"),
        ({"encoder": ...}, "lacks the setting 'encoder'"),
        ({"decoder": 3}, "the decoder is of the model_type 3"),
        ({"encoder__head_dim": 4}, r"config\.json \(encoder\): regard does not know the setting 'head_dim' \(here 4\)"),
        ({"something": 1}, "regard does not know the setting 'something'"),
        ({"decoder__add_cross_attention": False}, r"\(decoder\): add_cross_attention is False; .* supports True"),
        ({"decoder__reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is True"),
        ({"decoder__cross_attention_hidden_size": 36}, "cross_attention_hidden_size is 36"),
        ({"encoder__hidden_act": "quick_gelu"}, r"\(encoder\): hidden_act is 'quick_gelu'; supported are gelu"),
        ({"encoder__image_size": [8, 13]}, r"image_size=\(8, 13\) does not divide into patches"),
        ({"encoder__image_size": "8"}, r"image_size is '8'; it must be a whole number, or two: height and width"),
        ({"encoder__num_channels": 0}, "num_channels is 0; it must be a whole number from 1"),
        ({"encoder__num_hidden_layers": 4}, r"lacks encoder\.encoder\.layer\.3\.output\.dense\.weight"),
        ({"encoder__patch_size": [4, 4]}, r"patch_embeddings\.projection\.weight has shape .*, the config wants"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False"),
    ],
)
def test_unknown_values_are_refused(folder, changes, message):
    change_json(folder, **changes)
    refused(folder, message)


def test_a_model_that_reads_images_says_so(folder):
    pretrained = regard.load(folder)
    for use in (
        lambda: pretrained.encode("the river"),
        lambda: pretrained.embed("the river"),
        lambda: regard.explain("the river", model=folder),
        lambda: list(regard.translate(pretrained, "the river")),
    ):
        with pytest.raises(regard.InputError, match=r"reads images|of the kind encoder-decoder"):
            use()
    assert pretrained.decode(pretrained.encode("the river", target=True).ids) == "the river"
    assert pretrained.config.vocab_size == DECODER["vocab_size"]
    half = regard.load(folder, dtype=torch.bfloat16)
    assert half.pixel_values(image()).dtype == torch.bfloat16
