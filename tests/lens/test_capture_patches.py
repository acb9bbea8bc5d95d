"""Which queries and keys are patches of an image: small random models of transformers, and a UNet's block."""

from functools import partial

import pytest
import torch
import transformers

import regard
from captioners import random_captioner
from regard.lens.maps.patches import AttentionPatches, ImagePatches
from vision_models import (
    IMAGE,
    TEXT,
    VISION,
    A,
    B,
    UNetBlock,
    blip2,
    clip,
    gemma3,
    llava,
    mistral3,
    pixels,
    plain_llava,
    prompt,
    qwen2_vl,
    run,
    tower,
    unet,
    words,
)


def grid(*numbers):
    """(first, rows, columns) and the stride, if it is another, of image 0."""
    first, rows, columns, stride = (*numbers, numbers[2])[:4]
    return (ImagePatches(0, 0, first, rows, columns, stride),)


NONE = ()
DEAR = {"registers", "LLaVA with a class token", "Gemma 3", "Mistral 3", "BLIP-2"}
CASES = {
    "ViT": (partial(tower, "ViT"), {"layers.0": [grid(1, 4, 4)] * 2}),
    "registers": (
        partial(tower, "Dinov2WithRegisters", num_register_tokens=4),
        {"encoder.layer.0": [grid(5, 4, 4)] * 2},
    ),
    "SigLIP": (
        partial(tower, "SiglipVision"),
        {"encoder.layers.0": [grid(0, 4, 4)] * 2, "head": [NONE, grid(0, 4, 4)]},
    ),
    "CLIP": (partial(clip, 77), {"vision_model": [grid(1, 4, 4)] * 2, "text_model": [NONE] * 2}),
    "CLIP, as many words": (partial(clip, 17), {"vision_model": [grid(1, 4, 4)] * 2, "text_model": [NONE] * 2}),
    "LLaVA": (
        lambda: run(plain_llava(), input_ids=[prompt(B, 16, A)], pixel_values=pixels()),
        {"vision_tower": [grid(1, 4, 4)] * 2, "language_model": [grid(2, 4, 4)] * 2},
    ),
    "LLaVA with a class token": (
        lambda: run(llava(vision_feature_select_strategy="full"), input_ids=[prompt(A, 17, A)], pixel_values=pixels()),
        {"language_model": [grid(2, 4, 4)] * 2},
    ),
    "LLaVA without an image": (
        lambda: run(plain_llava(), input_ids=[[5] * 17]),
        {"language_model": [NONE] * 2},
    ),
    "Gemma 3": (gemma3, {"language_model": [grid(2, 2, 2)] * 2}),
    "Mistral 3": (mistral3, {"vision_tower": [grid(0, 3, 4)] * 2, "language_model": [grid(1, 3, 4, 5)] * 2}),
    "BLIP-2": (
        blip2,
        {"vision_model": [grid(1, 4, 4)] * 2, "crossattention": [NONE, grid(1, 4, 4)], "language_model": [NONE] * 2},
    ),
    "UNet": (partial(unet, 77), {"own": [grid(0, 6, 4)] * 2, "cross": [grid(0, 6, 4), NONE]}),
    "UNet, as many words": (partial(unet, 24), {"cross": [grid(0, 6, 4), NONE]}),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.more] * (name in DEAR)) for name in CASES])
def test_patches_are_where_the_model_puts_them(name):
    record, expected = CASES[name]
    seen = record()
    for part, (queries, keys) in expected.items():
        for path in seen.subset(part) if part not in seen else [part]:
            assert seen.entry(path).patches == AttentionPatches(queries, keys), path


def test_each_row_of_a_batch_has_its_own_images():
    ids = [prompt(A, 16, B, 16), prompt(B, 16, words("x" * 17))]
    seen = run(plain_llava(), input_ids=ids, pixel_values=pixels(3))
    (path,), (tower_path,) = seen.subset("language_model"), seen.subset("vision_tower")
    found = [(each.batch, each.image, each.first) for each in seen.entry(path).patches.keys]
    assert found == [(0, 0, 1), (0, 1, 19), (1, 2, 2)]
    assert [(each.batch, each.image) for each in seen.entry(tower_path).patches.keys] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.more
def test_images_of_different_sizes_have_grids_of_their_own():
    seen = qwen2_vl()
    (path,) = seen.subset("language_model")
    found = [(each.image, each.first, each.rows, each.columns) for each in seen.entry(path).patches.keys]
    assert found == [(0, 2, 2, 3), (1, 10, 2, 2)]
    assert all(seen.entry(name).patches == AttentionPatches() for name in seen if "visual" in name)


@pytest.mark.parametrize("beams", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_generation_keeps_the_patches_of_its_prompt(beams):
    options = {"num_beams": beams, "max_new_tokens": 2, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad(), regard.watch(plain_llava().eval(), layers=[0]) as seen:
        plain_llava().generate(input_ids=torch.tensor([prompt(B, 16, A)]), pixel_values=pixels(), **options)
    (path,) = seen.subset("language_model")
    expected = [(row, 0, 2) for row in range(beams)]
    assert [(each.batch, each.image, each.first) for each in seen.entry(path).patches.keys] == expected


@pytest.mark.more
def test_what_a_captioner_writes_attends_to_the_patches(tmp_path):
    """Also where the layers of the encoder are not recorded."""
    random_captioner(tmp_path, encoder={"image_size": 8, "patch_size": 2}, decoder={"n_layer": 4})
    pretrained = regard.load(tmp_path)
    with torch.no_grad(), regard.watch(pretrained.model, layers=[3]) as seen:
        # As many words as the image has tokens.
        pretrained.model(torch.randn(1, 3, 8, 8), torch.arange(17)[None])
    assert {seen.entry(path).kind: seen.entry(path).patches for path in seen} == {
        "self": AttentionPatches(),
        "cross": AttentionPatches((), grid(1, 4, 4)),
    }


@pytest.mark.more
def test_crops_of_an_image_are_not_taken_for_it():
    config = transformers.Idefics3Config(
        vision_config=VISION, text_config=transformers.LlamaConfig(**TEXT), scale_factor=2, image_token_id=IMAGE
    )
    model = transformers.Idefics3ForConditionalGeneration(config)
    for crops, known in ((1, True), (2, False)):
        ids = prompt(A, *(part for _ in range(crops) for part in (4, A)))
        seen = run(model, input_ids=[ids], pixel_values=pixels(crops)[None])
        assert {bool(seen.entry(path).patches.keys) for path in seen} == {known}


@pytest.mark.parametrize("keep", ["maps", pytest.param("summary", marks=pytest.mark.more)])
def test_a_saved_recording_keeps_them(tmp_path, keep):
    block = UNetBlock()
    with torch.no_grad(), regard.watch(block, keep=keep) as seen:
        block(torch.randn(1, 8, 6, 4), torch.randn(1, 5, 8))
    seen.save(tmp_path / "seen.safetensors")
    loaded = regard.Recording.load(tmp_path / "seen.safetensors")
    assert seen.entry("cross").patches == AttentionPatches(grid(0, 6, 4))
    assert {path: loaded.entry(path).patches for path in loaded} == {path: seen.entry(path).patches for path in seen}
