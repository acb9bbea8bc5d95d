"""Images to pixel values: resized, rescaled and normalized, as preprocessor_config.json says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, import_optional
from regard.pretrained.checkpoint import read_json_object
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.hub import HubUnreachableError, ModelFiles
from regard.transformer import Patches

PREPROCESSOR_FILE = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"
"""transformers 5 writes an image processor into this, under ``image_processor``, where it saves a tokenizer with it."""


@runtime_checkable
class PILImage(Protocol):
    """A ``PIL.Image.Image``; PIL itself is imported only when an image is read."""

    @property
    def mode(self) -> str: ...  # noqa: D102

    @property
    def size(self) -> tuple[int, int]: ...  # noqa: D102

    def convert(self, mode: str) -> Any: ...  # noqa: D102


ImageInput = str | Path | npt.NDArray[Any] | PILImage
"""The path of an image file, an array of uint8 ``(height, width)`` or ``(height, width, channels)``, or a PIL image."""

DEFAULTS = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": 0.5,
    "image_std": 0.5,
    "size": 224,
}
"""ViT's own values for missing keys."""

SUPPORTED_VALUES: dict[str, tuple[object, ...]] = {
    "image_processor_type": ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor", None),
    "feature_extractor_type": ("ViTImageProcessor", "ViTFeatureExtractor", None),
    "do_center_crop": (False, None),
    "do_pad": (False, None),
    "data_format": ("channels_first", None),
    "input_data_format": (None,),
}
"""Keys that change the pixels, with the values that regard supports."""

IGNORED_KEYS = {
    *("crop_size", "pad_size", "default_to_square"),  # sizes of steps that are not done
    *("do_convert_rgb", "device", "disable_grouping", "return_tensors", "processor_class", "auto_map"),
    *("image_seq_length", "transformers_version"),
}

PIL_MODES = {1: "L", 3: "RGB"}
"""PIL's mode for a number of channels."""

EIGHT_BIT_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""The modes that PIL converts to grey or colour; it would clip images of other modes, such as 16 bits."""


@dataclass(frozen=True)
class ImageProcessor:
    """Turns images into the pixel values that a model reads."""

    patches: Patches
    """The model's image size and number of channels."""
    resample: int | None
    """PIL's number of the filter that images are resized with; None: images must have the model's size."""
    rescale_factor: float | int | None
    """Each number is first multiplied by this; None: nothing is multiplied."""
    mean_and_std: tuple[tuple[float | int, ...], tuple[float | int, ...]] | None
    """Mean and standard deviation of each channel, to normalize by; None: nothing is normalized."""

    @classmethod
    def from_config(cls, values: Mapping[str, Any], path: Path, patches: Patches) -> ImageProcessor:
        """The image processor that a ``preprocessor_config.json`` describes.

        Raises:
            InputError: a key is unknown, or has a value that is not supported or does not fit the model.
        """
        config_json = ConfigJSON(values, path, DEFAULTS)
        for key, value in values.items():
            if key in SUPPORTED_VALUES and value not in SUPPORTED_VALUES[key]:
                config_json.refuse(key, f"regard supports {' or '.join(repr(v) for v in SUPPORTED_VALUES[key])}")
            if key not in {*DEFAULTS, *SUPPORTED_VALUES, *IGNORED_KEYS}:
                raise InputError(
                    f"{path}: regard does not know the setting {key!r} (here {value!r}), so it cannot tell whether "
                    "images would be right without it. If it does not matter, take it out of the file"
                )
        do_resize, do_rescale, do_normalize = map(config_json.boolean, ("do_resize", "do_rescale", "do_normalize"))
        if patches.channels not in PIL_MODES:
            raise InputError(f"{path}: the model has {patches.channels} channels; regard makes images of 1 or 3")
        resample = rescale_factor = mean_and_std = None
        if do_resize:
            _check_size(config_json, patches)
            resample = 2 if config_json["resample"] is None else config_json["resample"]
            if type(resample) is not int or not 0 <= resample <= 5:
                config_json.refuse("resample", "PIL's filters are 0 to 5")
        if do_rescale:
            (rescale_factor,) = config_json.numbers("rescale_factor", 1)
        if do_normalize:
            mean, std = (config_json.numbers(key, patches.channels) for key in ("image_mean", "image_std"))
            mean_and_std = mean, std
            if 0 in std:
                config_json.refuse("image_std", "nothing is divided by 0")
        return cls(patches, resample, rescale_factor, mean_and_std)

    def __call__(self, images: ImageInput | Sequence[ImageInput]) -> Float[Tensor, "images channels height width"]:
        """The pixel values of one image, or of several of any sizes.

        Raises:
            InputError: no image; a file that cannot be read; an image that cannot be converted.
            TypeError: an argument that is no image.
        """
        inputs = list(images) if isinstance(images, list | tuple) else [images]
        if not inputs:
            raise InputError("there is no image: the list is empty")
        return torch.stack([self._pixel_values(each) for each in inputs])

    def _pixel_values(self, image_input: Any) -> Tensor:
        mode, (height, width) = PIL_MODES[self.patches.channels], self.patches.image_size
        image = _open_image(image_input)
        name = repr(str(image_input)) if isinstance(image_input, str | Path) else "the image"
        if image.mode not in EIGHT_BIT_MODES:
            raise InputError(f"{name} is of PIL's mode {image.mode!r}; convert it to {mode!r}, with 8 bits a channel")
        if 0 in image.size:
            raise InputError(f"{name} is of size {image.size} and holds no pixel")
        image = image if image.mode == mode else image.convert(mode)
        if self.resample is not None:
            image = image.resize((width, height), resample=self.resample)
        elif image.size != (width, height):
            raise InputError(
                f"{name} is {image.size[0]} wide and {image.size[1]} high; the model reads {width} by {height}, and "
                f"its {PREPROCESSOR_FILE} says that images are not resized (do_resize)"
            )
        pixels = np.array(image).reshape(height, width, self.patches.channels)
        # The product in float64, then float32, as in the reference: the last bits depend on it.
        rescaled = pixels if self.rescale_factor is None else pixels.astype(np.float64) * self.rescale_factor
        values = rescaled.astype(np.float32)
        if self.mean_and_std is not None:
            mean, std = (np.array(each, dtype=np.float32) for each in self.mean_and_std)
            values = (values - mean) / std
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


def read_image_processor(files: ModelFiles, patches: Patches) -> ImageProcessor | None:
    """The image processor that a checkpoint describes; None without one, and if the Hub was not reachable.

    As in transformers, ``processor_config.json`` goes before ``preprocessor_config.json``.

    Raises:
        InputError: as `ImageProcessor.from_config` does.
    """
    with suppress(HubUnreachableError):
        path = files.find(PROCESSOR_FILE)
        values = None if path is None else read_json_object(path).get("image_processor")
        if path is not None and values is not None:
            if not isinstance(values, dict):
                raise InputError(f"{path}: image_processor is {values!r}; it must be an object with its settings")
            return ImageProcessor.from_config(values, path, patches)
    with suppress(HubUnreachableError):
        path = files.find(PREPROCESSOR_FILE)
        if path is not None:
            return ImageProcessor.from_config(read_json_object(path), path, patches)
    return None


def _check_size(config_json: ConfigJSON, patches: Patches) -> None:
    """Refuse a size that is not the model's."""
    size = config_json["size"]
    height_and_width = (size, size)
    if isinstance(size, dict):
        is_complete = size.keys() == {"height", "width"}
        height_and_width = (size.get("height"), size.get("width")) if is_complete else (None, None)
    if height_and_width != patches.image_size:
        height, width = patches.image_size
        config_json.refuse("size", f"the model reads images of {{'height': {height}, 'width': {width}}}")


def _open_image(image_input: Any) -> Any:
    """The PIL image of a path, an array or a PIL image."""
    pil = import_optional("PIL.Image", "train")
    if isinstance(image_input, pil.Image):
        return image_input
    if isinstance(image_input, np.ndarray):
        shape = image_input.shape
        if image_input.dtype != np.uint8 or len(shape) not in (2, 3) or shape[2:] not in ((), (1,), (3,), (4,)):
            raise InputError(
                f"an image of numbers is uint8 (height, width) or (height, width, 1, 3 or 4); got {image_input.dtype} "
                f"{shape}"
            )
        if 0 in shape:
            raise InputError(f"an image of shape {shape} holds no pixel")
        return pil.fromarray(image_input[..., 0] if shape[2:] == (1,) else image_input)
    if not isinstance(image_input, str | Path):
        raise TypeError(f"an image is a path, an array of uint8 or a PIL image; got {type(image_input).__name__}")
    exif_transpose = import_optional("PIL.ImageOps", "train").exif_transpose
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.DecompressionBombWarning)
            with pil.open(image_input) as image:
                # Upright: a camera stores how it was held, and not a turned image.
                return exif_transpose(image)
    except FileNotFoundError:
        raise InputError(f"{str(image_input)!r} is no file; the model reads images, and this should be one") from None
    except Exception as error:  # each of PIL's formats raises exceptions of its own
        why = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{str(image_input)!r} cannot be read as an image: {why}") from error
