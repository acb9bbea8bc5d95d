"""vision-encoder-decoder against transformers itself: states, logits, caches, and the way back."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from captioners import DECODER, image, random_captioner
from regard.pretrained.families import FAMILIES
from regard.pretrained.family import MODEL_CLASSES, build_config

VARIANTS = {
    "like": {},
    "projected": {"decoder": {"n_embd": 32}},
    "untied": {"decoder": {"tie_word_embeddings": False, "n_inner": 70, "scale_attn_weights": False}},
    "grey": {
        "encoder": {"num_channels": 1, "image_size": 8, "patch_size": 2, "qkv_bias": False, "hidden_act": "relu"},
        "decoder": {"n_embd": 24, "activation_function": "relu"},
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """One model, theirs and ours, and the folder."""
    folder = tmp_path_factory.mktemp("captioner")
    theirs = random_captioner(folder, **VARIANTS[request.param])
    return theirs, regard.load(folder), folder


def inputs(pretrained):
    patches = pretrained.config.patches
    return torch.randn(3, patches.channels, *patches.image_size), torch.randint(61, (3, 9))


def max_error(ours, theirs):
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.01
    return (ours - theirs).abs().max().item()


@torch.inference_mode()
def test_hidden_states_and_logits_equal_transformers(pair):
    theirs, pretrained, _ = pair
    model = pretrained.model
    assert (pretrained.kind, pretrained.modality) == ("encoder-decoder", "images")
    pixels, ids = inputs(pretrained)
    read = list(model.encoder.hidden_states(pixels))
    context = model.encoder(pixels)
    wrote = list(model.decoder.hidden_states(ids, context=context))
    logits = model(pixels, ids)
    worst = 0.0
    for kind in ("sdpa", "eager"):
        theirs.set_attn_implementation(kind)
        expected = theirs(pixel_values=pixels, decoder_input_ids=ids, output_hidden_states=True)
        for ours, others in ((read, expected.encoder_hidden_states), (wrote, expected.decoder_hidden_states)):
            # The encoder's last state is theirs before the norm.
            assert len(ours) == len(others)
            last = 1 if ours is read else 0
            worst = max([worst, *(max_error(*both) for both in zip(ours[: len(ours) - last], others, strict=False))])
        worst = max(worst, max_error(read[-1], expected.encoder_last_hidden_state), max_error(logits, expected.logits))
    print(f"largest difference: {worst:.2e}")
    assert worst < 2e-5


@torch.inference_mode()
def test_cached_logits_equal_transformers(pair):
    theirs, pretrained, _ = pair
    pixels, ids = inputs(pretrained)
    expected = theirs(pixel_values=pixels, decoder_input_ids=ids).logits
    caches, context = pretrained.model.caches(), pretrained.model.encoder(pixels)
    parts = [
        pretrained.model.decoder(ids[:, start:end], caches=caches, context=context if start == 0 else None)
        for start, end in ((0, 5), (5, 6), (6, 9))
    ]
    assert max_error(torch.cat(parts, dim=1), expected) < 2e-5


@torch.inference_mode()
def test_a_saved_model_is_the_same_checkpoint(pair, tmp_path):
    theirs, pretrained, folder = pair
    pretrained.save(tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {path.name for path in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for file in ("config.json", "preprocessor_config.json"):
        assert json.loads((folder / file).read_text()) == json.loads((tmp_path / file).read_text())
    pixels, ids = inputs(pretrained)
    told = {"pixel_values": pixels, "decoder_input_ids": ids}
    again = type(theirs).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**told).logits, type(theirs).from_pretrained(folder).eval()(**told).logits)
    reloaded = regard.load(tmp_path)
    assert (reloaded.config, reloaded.image_processor) == (pretrained.config, pretrained.image_processor)
    ours = reloaded.model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in pretrained.model.state_dict().items())


@torch.inference_mode()
def test_changed_weights_are_saved(pair, tmp_path):
    theirs, _, folder = pair
    pretrained = regard.load(folder)
    generator = torch.Generator().manual_seed(1)
    for parameter in pretrained.model.parameters():
        parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    pretrained.save(tmp_path)
    again = type(theirs).from_pretrained(tmp_path).eval()
    pixels, ids = inputs(pretrained)
    expected = again(pixel_values=pixels, decoder_input_ids=ids).logits
    assert max_error(pretrained.model(pixels, ids), expected) < 2e-5
    assert max_error(expected, theirs(pixel_values=pixels, decoder_input_ids=ids).logits) > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_other_dtypes(pair, tmp_path, dtype):
    theirs, _, folder = pair
    pretrained = regard.load(folder, dtype=dtype)
    pretrained.save(tmp_path)
    loaded = type(theirs).from_pretrained(tmp_path).eval()
    assert loaded.dtype == dtype
    pixels, ids = inputs(pretrained)
    assert pretrained.pixel_values(image()).dtype == dtype
    ours, expected = pretrained.model(pixels, ids), loaded(pixel_values=pixels.to(dtype), decoder_input_ids=ids).logits
    assert ours.dtype == dtype
    assert max_error(ours.double(), expected.double()) < (0.3 if dtype is torch.bfloat16 else 1e-12)


def test_a_model_can_be_built_from_the_config_alone(pair):
    """Where training begins: no weights, the same parameters."""
    _, pretrained, folder = pair
    family = FAMILIES["vision-encoder-decoder"]
    settings = json.loads((folder / "config.json").read_text())
    config = build_config(family, settings, folder / "config.json")
    model = MODEL_CLASSES[family.kind](family.infer_config(config, {}))
    shapes = {name: tensor.shape for name, tensor in pretrained.model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes


@pytest.fixture
def folder(tmp_path):
    random_captioner(tmp_path)
    return tmp_path


def change_json(folder, file, **changes):
    """Change values of a JSON file, those of a part by `part__name`; ... removes a value."""
    settings = json.loads((folder / file).read_text())
    for name, value in changes.items():
        part, _, inner = name.rpartition("__")
        within = settings[part] if part else settings
        within[inner] = value
        if value is ...:
            del within[inner]
    (folder / file).write_text(json.dumps(settings))


def test_the_masks_of_older_files_are_checked_and_saved(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    causal = torch.ones(40, 40, dtype=torch.uint8).tril().view(1, 1, 40, 40)
    for layer in range(2):
        for attention in ("attn", "crossattention"):
            name = f"decoder.transformer.h.{layer}.{attention}."
            tensors |= {name + "bias": causal.clone(), name + "masked_bias": torch.tensor(-1e4)}
    save_file(tensors, folder / "model.safetensors")
    regard.load(folder).save(tmp_path / "copy")
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == tensors.keys()
    tensors["decoder.transformer.h.1.crossattention.bias"][..., 0, 1] = 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(regard.InputError, match=r"h\.1\.crossattention\.bias is not the causal mask"):
        regard.load(folder)


def test_special_tokens_of_the_whole_config_go_before_the_decoders(folder):
    (folder / "generation_config.json").unlink()
    assert regard.load(folder).config.special_tokens == regard.load(folder).config.decoder.special_tokens
    change_json(
        folder, "config.json", eos_token_id=..., pad_token_id=None, decoder__eos_token_id=7, decoder__pad_token_id=5
    )
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
    change_json(folder, "config.json", **changes)
    with pytest.raises(regard.InputError, match=message):
        regard.load(folder)


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
