"""A checkpoint of a vision encoder and a text decoder: what it may say, and what is refused by name."""

from functools import partial

import pytest
import torch
from damage import change_json, change_weights, refused

import regard
from captioners import DECODER, image, random_captioner
from regard import InputError
from weights import weights_of


class TestVisionEncoderDecoder:
    """Its numbers are in test_families.py."""

    @pytest.fixture
    def folder(self, tmp_path):
        random_captioner(tmp_path)
        return tmp_path

    def test_the_masks_of_older_files_are_checked_and_saved(self, folder, tmp_path):
        names = [f"decoder.transformer.h.{n}.{attention}." for n in (0, 1) for attention in ("attn", "crossattention")]
        masks = {name + "bias": torch.ones(1, 1, 40, 40, dtype=torch.uint8).tril() for name in names}
        masks |= {name + "masked_bias": torch.tensor(-1e4) for name in names}
        change_weights(folder, lambda tensors: masks)
        regard.load(folder).save(tmp_path / "copy")
        assert weights_of(tmp_path / "copy").keys() == weights_of(folder).keys() > masks.keys()
        masks["decoder.transformer.h.1.crossattention.bias"][..., 0, 1] = 1
        change_weights(folder, lambda tensors: masks)
        refused(folder, r"h\.1\.crossattention\.bias is not the causal mask")

    def test_special_tokens_of_the_whole_config_go_before_the_decoders(self, folder):
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
            ({"encoder__head_dim": 4}, r"json \(encoder\): regard does not know the setting 'head_dim' \(here 4\)"),
            ({"something": 1}, "regard does not know the setting 'something'"),
            ({"decoder__add_cross_attention": False}, r"\(decoder\): add_cross_attention is False; .* supports True"),
            ({"encoder__hidden_act": "quick_gelu"}, r"\(encoder\): hidden_act is 'quick_gelu'; supported are gelu"),
            ({"encoder__image_size": [8, 13]}, r"image_size=\(8, 13\) does not divide into patches"),
            ({"encoder__image_size": [8, "12"]}, r"image_size is \[8, '12'\]; it must be a whole number, or two"),
            ({"encoder__num_hidden_layers": 4}, r"lacks encoder\.encoder\.layer\.3\.output\.dense\.weight"),
            ({"encoder__patch_size": [4, 4]}, r"patch_embeddings\.projection\.weight has shape .*, the config wants"),
        ],
    )
    def test_unknown_values_are_refused(self, folder, changes, message):
        change_json(folder, **changes)
        refused(folder, message)

    def test_a_model_that_reads_images_says_so(self, folder):
        pretrained = regard.load(folder)
        uses = [pretrained.encode, pretrained.embed, partial(regard.explain, model=folder)]
        for use in (*uses, lambda text: list(regard.translate(pretrained, text))):
            with pytest.raises(InputError, match=r"reads images|of the kind encoder-decoder"):
                use("the river")
        assert pretrained.decode(pretrained.encode("the river", target=True).ids) == "the river"
        assert pretrained.config.vocab_size == DECODER["vocab_size"]
        half = regard.load(folder, dtype=torch.bfloat16)
        assert half.pixel_values(image()).dtype == torch.bfloat16
