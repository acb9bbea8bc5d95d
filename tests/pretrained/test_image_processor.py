"""Images to pixels, bit for bit as transformers' ViTImageProcessor makes them."""

import shutil

import numpy as np
import pytest
import torch
from damage import change_json
from PIL import Image
from transformers import AutoTokenizer, TrOCRProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import regard
from captioners import image, random_captioner
from regard.pretrained.image_processor import PREPROCESSOR_FILE
from weights import random_checkpoint

SETTINGS = {
    "as it is": {},
    "nearest": {"resample": 0, "rescale_factor": 0.01},
    "bicubic": {"resample": 3, "image_mean": 0.3, "image_std": 0.7},
    "as numbers": {"do_rescale": False, "do_normalize": False},
    "not normalized": {"do_normalize": False},
    "not rescaled": {"do_rescale": False},
    "of old": {"image_processor_type": ..., "feature_extractor_type": "ViTFeatureExtractor", "do_center_crop": False},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of colours (8 by 12) and one of grey (8 by 8)."""
    made = {}
    for name, encoder in (("RGB", {}), ("L", {"num_channels": 1, "image_size": 8, "patch_size": 4})):
        made[name] = tmp_path_factory.mktemp(name)
        random_captioner(made[name], encoder=encoder)
    return made


def with_settings(folder, tmp_path, **changes):
    """A copy of a model with other settings for its images."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    change_json(tmp_path, PREPROCESSOR_FILE, **changes)
    return tmp_path


@pytest.mark.parametrize(("mode", "name"), [("RGB" if i % 3 else "L", name) for i, name in enumerate(SETTINGS)])
def test_every_bit_equals_transformers(folders, tmp_path, name, mode):
    folder = with_settings(folders[mode], tmp_path, **SETTINGS[name])
    theirs = ViTImageProcessorPil.from_pretrained(folder)
    pretrained = regard.load(folder)
    images = [image(seed, size, mode) for seed, size in enumerate([(31, 17), (5, 3), (12, 8), (8, 8)])]
    expected = torch.stack([theirs(each, return_tensors="pt").pixel_values[0].float() for each in images])
    assert torch.equal(pretrained.pixel_values(images), expected)
    assert torch.equal(pretrained.pixel_values([np.asarray(each) for each in images]), expected)
    assert expected.std() > 0.1


def test_files_arrays_and_pil_images_give_the_same_pixels(folders, tmp_path):
    pretrained, picture = regard.load(folders["RGB"]), image()
    picture.save(tmp_path / "one.png")
    numbers = np.asarray(picture)
    alpha = np.dstack([numbers, np.full(numbers.shape[:2], 7, np.uint8)])
    pixels = pretrained.pixel_values(picture)
    assert pixels.shape == (1, 3, 8, 12)
    for other in (tmp_path / "one.png", str(tmp_path / "one.png"), numbers, alpha, [picture], (numbers,)):
        assert torch.equal(pretrained.pixel_values(other), pixels)
    assert torch.equal(pretrained.pixel_values([picture, image(1)])[1:], pretrained.pixel_values(image(1)))


def test_grey_and_colour_images_are_converted(folders):
    colours, greys = (regard.load(folders[mode]) for mode in ("RGB", "L"))
    grey = image(3, mode="L")
    assert torch.equal(colours.pixel_values(grey), colours.pixel_values(grey.convert("RGB")))
    assert torch.equal(greys.pixel_values(image()), greys.pixel_values(image().convert("L")))
    assert torch.equal(greys.pixel_values(np.asarray(grey)[..., None]), greys.pixel_values(grey))
    assert torch.equal(colours.pixel_values(grey.convert("P")), colours.pixel_values(grey))


def test_files_are_turned_upright(folders, tmp_path):
    pretrained, picture = regard.load(folders["RGB"]), image()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    picture.save(tmp_path / "lying.png", exif=exif)
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    assert torch.equal(pretrained.pixel_values(tmp_path / "lying.png"), pretrained.pixel_values(upright))


def test_without_resizing_the_size_must_be_the_models(folders, tmp_path):
    pretrained = regard.load(with_settings(folders["RGB"], tmp_path, do_resize=False, size=999))
    assert pretrained.pixel_values(image(size=(12, 8))).shape == (1, 3, 8, 12)
    with pytest.raises(regard.InputError, match="the image is 8 wide and 12 high; the model reads 12 by 8"):
        pretrained.pixel_values(image(size=(8, 12)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 224}, r"size is 224; the model reads images of \{'height': 8, 'width': 12\}"),
        ({"size": {"height": 12, "width": 8}}, r"the model reads images of \{'height': 8, 'width': 12\}"),
        ({"image_mean": [0.5]}, r"image_mean is \[0\.5\]; it must be a finite number, or a list of 3"),
        ({"image_std": [0.5, 0.0, 0.5]}, "nothing is divided by 0"),
        ({"rescale_factor": float("nan")}, "rescale_factor is nan; it must be a finite number"),
        ({"image_mean": [0.5, float("inf"), 0.5]}, "it must be a finite number, or a list of 3"),
        ({"resample": 9}, "resample is 9; PIL's filters are 0 to 5"),
        ({"do_normalize": 1}, "do_normalize is 1; it must be true or false"),
        ({"rescale_factor": "1/255"}, "rescale_factor is '1/255'; it must be a finite number"),
        ({"do_center_crop": True}, "do_center_crop is True; regard supports False or None"),
        ({"image_processor_type": "CLIPImageProcessor"}, "regard supports 'ViTImageProcessor'"),
    ],
)
def test_unknown_values_are_refused(folders, tmp_path, changes, message):
    with pytest.raises(regard.InputError, match=message):
        regard.load(with_settings(folders["RGB"], tmp_path, **changes))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_an_argument_that_is_no_image_is_refused(folders, tmp_path):
    pretrained = regard.load(folders["RGB"])
    (tmp_path / "text.png").write_text("the river bank")
    image(size=(64, 64)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8))
    for given, message in (
        (tmp_path / "none.png", "none.png' is no file; the model reads images"),
        (tmp_path, "cannot be read as an image: Is a directory"),
        (tmp_path / "text.png", "text.png' cannot be read as an image: cannot identify"),
        (tmp_path / "half.png", "half.png' cannot be read as an image"),
        ("a\0b.png", "cannot be read as an image: embedded null"),
        ([], "there is no image: the list is empty"),
        (np.zeros((8, 8)), r"uint8 \(height, width\).* got float64 \(8, 8\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"got uint8 \(2, 8, 8, 3\)"),
        (np.zeros((8, 8, 2), np.uint8), r"got uint8 \(8, 8, 2\)"),
        (np.zeros((0, 8), np.uint8), r"shape \(0, 8\) holds no pixel"),
        (Image.new("RGB", (0, 4)), "holds no pixel"),
        (deep, "PIL's mode 'I;16'; convert it to 'RGB', with 8 bits"),
    ):
        with pytest.raises(regard.InputError, match=message):
            pretrained.pixel_values(given)
    for given in (3, [image(), 3]):
        with pytest.raises(TypeError, match="an image is a path, an array of uint8 or a PIL image; got int"):
            pretrained.pixel_values(given)


def test_an_image_processor_inside_a_processor_is_read_and_saved(folders, tmp_path):
    folder = with_settings(folders["RGB"], tmp_path / "made", resample=3)
    theirs = ViTImageProcessorPil.from_pretrained(folder)
    TrOCRProcessor(theirs, AutoTokenizer.from_pretrained(folder)).save_pretrained(folder)
    expected = theirs(image(), return_tensors="pt").pixel_values
    change_json(folder, PREPROCESSOR_FILE, resample=0)  # an older file, which transformers does not read then
    assert torch.equal(regard.load(folder).pixel_values(image()), expected)
    (folder / PREPROCESSOR_FILE).unlink()
    regard.load(folder).save(tmp_path / "saved")
    assert torch.equal(regard.load(tmp_path / "saved").pixel_values(image()), expected)
    change_json(folder, "processor_config.json", image_processor=[3])
    with pytest.raises(regard.InputError, match=r"image_processor is \[3\]; it must be an object"):
        regard.load(folder)


def test_a_model_without_an_image_processor_is_refused(folders, tmp_path):
    folder = with_settings(folders["RGB"], tmp_path)
    (folder / PREPROCESSOR_FILE).unlink()
    with pytest.raises(regard.InputError, match=r"it has no preprocessor_config\.json"):
        regard.load(folder).pixel_values(image())
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    with pytest.raises(regard.InputError, match="reads texts, not images"):
        regard.load(tmp_path / "gpt2").pixel_values(image())
