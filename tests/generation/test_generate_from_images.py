"""Text about images: the ids of transformers' own generation, every strategy, streams, and the command."""

import shutil

import numpy as np
import pytest
import torch

import regard
from captioners import image, random_captioner
from regard.generation import max_new_tokens_left
from weights import random_checkpoint

IMAGES = [image(seed) for seed in range(4)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One model, theirs and ours, and the folder."""
    folder = tmp_path_factory.mktemp("captioner")
    theirs = random_captioner(folder, decoder={"n_embd": 32})
    return theirs, regard.load(folder), folder


@pytest.mark.parametrize("num_beams", [1, 3])
@torch.inference_mode()
def test_ids_equal_transformers(pair, num_beams):
    theirs, pretrained, _ = pair
    pixels, options = pretrained.pixel_values(IMAGES), {"max_new_tokens": 12, "pad": 0}
    if num_beams > 1:
        options["strategy"] = regard.Beam(num_beams=num_beams)
    ids = regard.generate(pretrained, pixels, **options)
    settings = {"max_new_tokens": 12, "pad_token_id": 0, "num_beams": num_beams, "do_sample": False}
    assert torch.equal(ids, theirs.generate(pixel_values=pixels, **settings))
    assert len({tuple(row) for row in ids.tolist()}) > 1, "the images must matter"
    single = regard.generate(pretrained, pixels[1], **options)
    assert torch.equal(single, ids[1][: len(single)])
    assert torch.equal(regard.generate(pretrained.model, pixels, **options), ids)


def test_images_give_texts(pair):
    _, pretrained, _ = pair
    texts = regard.generate(pretrained, IMAGES, max_new_tokens=12)
    pixels = pretrained.pixel_values(IMAGES)
    ids = regard.generate(pretrained, pixels, max_new_tokens=12)
    assert texts == [pretrained.decode(row[1:]) for row in ids]
    assert texts == [regard.generate(pretrained, each, max_new_tokens=12) for each in IMAGES]
    assert regard.generate(pretrained, np.asarray(IMAGES[2]), max_new_tokens=12) == texts[2]
    assert "".join(regard.stream(pretrained, IMAGES[1], max_new_tokens=12)) == texts[1]
    assert list(regard.stream(pretrained, pixels[1], max_new_tokens=12)) == ids[1, 1:].tolist()


def test_the_positions_of_the_decoder_limit_the_text(pair):
    assert max_new_tokens_left(pair[1], IMAGES[0]) == 40
    with pytest.raises(regard.InputError, match="max_new_tokens=40 at the most"):
        regard.generate(pair[1], IMAGES[0], max_new_tokens=41)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_invalid_images_are_refused(pair, tmp_path):
    _, pretrained, _ = pair
    random_checkpoint(tmp_path, "gpt2")
    for model, prompt, kind, message in (
        (pretrained, [1, 2], TypeError, "an image is a path, an array of uint8 or a PIL image; got int"),
        (pretrained, torch.tensor([[1, 2]]), TypeError, r"floating-point pixels .*; got torch.int64 \(1, 2\)"),
        (pretrained, torch.zeros(0, 3, 8, 12), regard.InputError, "there is no image in pixels of shape"),
        (pretrained, torch.zeros(1, 3, 8, 8), ValueError, r"\(3, 8, 12\).* got \(1, 3, 8, 8\)"),
        (pretrained, [], regard.InputError, "there is no image: the list is empty"),
        (pretrained, "a text", regard.InputError, "'a text' is no file; the model reads images"),
        (pretrained.model, IMAGES[0], TypeError, "a bare model reads pixels"),
        (regard.load(tmp_path), IMAGES[0], TypeError, "a list of token ids, a text or a list of messages .*; got Im"),
    ):
        with pytest.raises(kind, match=message):
            regard.generate(model, prompt, max_new_tokens=3)
    with pytest.raises(ValueError, match="stream writes one text; got 4 prompts"):
        regard.stream(pretrained, IMAGES, max_new_tokens=3)


def test_a_model_without_a_tokenizer_takes_pixels_only(pair, tmp_path):
    _, _, folder = pair
    shutil.copytree(folder, tmp_path, ignore=shutil.ignore_patterns("tokenizer.json"), dirs_exist_ok=True)
    bare = regard.load(tmp_path)
    with pytest.raises(regard.InputError, match="has no tokenizer"):
        regard.generate(bare, IMAGES[0], max_new_tokens=3)
    assert regard.generate(bare, bare.pixel_values(IMAGES[0]), max_new_tokens=3).shape[0] == 1


def test_the_command_reads_an_image_file(pair, tmp_path, command):
    _, pretrained, folder = pair
    path = tmp_path / "picture.png"
    IMAGES[0].save(path)
    expected = regard.generate(pretrained, IMAGES[0], max_new_tokens=40)
    assert command("generate", path, "--model", folder)[:2] == (0, f"{expected}\n")
    beam = regard.Beam(num_beams=3, num_return_sequences=2)
    best = regard.generate(pretrained, path, max_new_tokens=9, strategy=beam, return_hypotheses=True)
    code, out, _ = command("generate", path, "--model", folder, "-n", 9, "--num-beams", 3, "--num-return-sequences", 2)
    assert (code, out.splitlines()) == (0, [f"{each.score:.4f}\t{each.text}" for each in best])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "the river"], "'the river' is no file; the model reads images, and this should be one"),
        (["generate", __file__], "cannot be read as an image: cannot identify image file"),
        (["generate", __file__, "--chat"], "reads images and no messages: leave out --chat and --system"),
        (["generate", "-"], "reads images, and standard input is read as text: give the path of an image"),
        (["translate", "the river"], "reads images, not texts"),
        (["see", "the river", "--out", "page.html"], "reads images, and image patches are not words"),
        (["explain", "the river"], "reads images, and image patches are not words"),
    ],
)
def test_invalid_input_ends_with_exit_code_2(pair, command, arguments, message):
    code, out, err = command(*arguments, "--model", pair[2])
    assert (code, out) == (2, "")
    assert message in err
