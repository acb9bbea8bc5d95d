"""Images as a model was trained to see them: resized, rescaled, normalized, as preprocessor_config.json says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, needed
from regard.pretrained.config_json import Settings
from regard.transformer import Patches

__all__ = ["PREPROCESSOR", "Drawn", "Picture", "Pixels"]

PREPROCESSOR = "preprocessor_config.json"


@runtime_checkable
class Drawn(Protocol):
    """A ``PIL.Image.Image``; PIL itself is imported where an image is read, and not before."""

    @property
    def mode(self) -> str: ...  # noqa: D102

    @property
    def size(self) -> tuple[int, int]: ...  # noqa: D102

    def convert(self, mode: str) -> Any: ...  # noqa: D102


Picture = str | Path | npt.NDArray[Any] | Drawn
"""An image file, whole numbers of 8 bits ``(height, width)`` or ``(height, width, channels)``, or a PIL image."""

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
"""What ViT's own preprocessing takes where the file says nothing."""

ONLY: dict[str, tuple[object, ...]] = {
    "image_processor_type": ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor", None),
    "feature_extractor_type": ("ViTImageProcessor", "ViTFeatureExtractor", None),
    "do_center_crop": (False, None),
    "do_pad": (False, None),
    "data_format": ("channels_first", None),
    "input_data_format": (None,),
}
"""Settings that would change the pixels: no other value is supported."""

WITHOUT_EFFECT = {
    *("crop_size", "pad_size", "default_to_square"),  # of what is not done
    *("do_convert_rgb", "device", "disable_grouping", "return_tensors", "processor_class", "auto_map"),
    *("image_seq_length", "transformers_version"),
}

MODES = {1: "L", 3: "RGB"}
"""PIL's name for so many channels."""

EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Images of these modes become grey or coloured by PIL's own rules; of others, as of 16 bits, they would be cut off."""


@dataclass(frozen=True)
class Pixels:
    """What is done to images before a model reads them."""

    patches: Patches
    """The model's: images of one size, with so many channels."""
    resample: int | None
    """PIL's number of the filter that images are resized with; None where they must have the size."""
    factor: float | int | None
    """What each number is multiplied by first; None for nothing."""
    normal: tuple[tuple[float | int, ...], tuple[float | int, ...]] | None
    """Mean and spread of each channel: the first is taken off, by the second is divided; None for neither."""

    @classmethod
    def of(cls, values: Mapping[str, Any], path: Path, patches: Patches) -> Pixels:
        """What a ``preprocessor_config.json`` says.

        Raises:
            InputError: a setting that is unknown, or has a value that is not supported or does not fit the model.
        """
        settings = Settings(values, path, DEFAULTS)
        for name, value in values.items():
            if name in ONLY and value not in ONLY[name]:
                settings.refuse(name, f"regard supports {' or '.join(repr(v) for v in ONLY[name])}")
            if name not in {*DEFAULTS, *ONLY, *WITHOUT_EFFECT}:
                raise InputError(
                    f"{path}: regard does not know the setting {name!r} (here {value!r}), so it cannot tell whether "
                    "images would be right without it. If it does not matter, take it out of the file"
                )
        does = {name: settings[name] for name in ("do_resize", "do_rescale", "do_normalize")}
        for name, value in does.items():
            if not isinstance(value, bool):
                settings.refuse(name, "it must be true or false")
        if patches.channels not in MODES:
            raise InputError(f"{path}: the model has {patches.channels} channels; regard makes images of 1 or 3")
        resample = factor = normal = None
        if does["do_resize"]:
            _fits(settings, patches)
            resample = 2 if settings["resample"] is None else settings["resample"]
            if type(resample) is not int or not 0 <= resample <= 5:
                settings.refuse("resample", "PIL's filters are 0 to 5")
        if does["do_rescale"]:
            factor = settings["rescale_factor"]
            if type(factor) not in (int, float):
                settings.refuse("rescale_factor", "it must be a number")
        if does["do_normalize"]:
            normal = (_by_channel(settings, "image_mean", patches), _by_channel(settings, "image_std", patches))
            if 0 in normal[1]:
                settings.refuse("image_std", "nothing is divided by 0")
        return cls(patches, resample, factor, normal)

    def __call__(self, images: Picture | Sequence[Picture]) -> Float[Tensor, "images channels height width"]:
        """The pixels of one image, or of several of any sizes.

        Raises:
            InputError: no image; a file that cannot be read; an image that cannot be brought to the model's form.
            TypeError: something else.
        """
        pictures = list(images) if isinstance(images, list | tuple) else [images]
        if not pictures:
            raise InputError("there is no image: the list is empty")
        return torch.stack([self._one(picture) for picture in pictures])

    def _one(self, picture: Any) -> Tensor:
        mode, (height, width) = MODES[self.patches.channels], self.patches.image_size
        image = _opened(picture)
        what = repr(str(picture)) if isinstance(picture, str | Path) else "the image"
        if image.mode not in EIGHT_BITS:
            raise InputError(f"{what} is of PIL's mode {image.mode!r}; convert it to {mode!r}, with 8 bits a channel")
        if 0 in image.size:
            raise InputError(f"{what} is of size {image.size} and holds no pixel")
        image = image if image.mode == mode else image.convert(mode)
        if self.resample is not None:
            image = image.resize((width, height), resample=self.resample)
        elif image.size != (width, height):
            raise InputError(
                f"{what} is {image.size[0]} wide and {image.size[1]} high; the model reads {width} by {height}, and "
                f"its {PREPROCESSOR} says that images are not resized (do_resize)"
            )
        numbers = np.array(image).reshape(height, width, self.patches.channels)
        # First in float64, then to float32, as the reference does: the bits depend on it.
        exact = numbers if self.factor is None else numbers.astype(np.float64) * self.factor
        rescaled = exact.astype(np.float32)
        if self.normal is not None:
            mean, spread = (np.array(each, dtype=np.float32) for each in self.normal)
            rescaled = (rescaled - mean) / spread
        return torch.from_numpy(np.ascontiguousarray(rescaled.transpose(2, 0, 1)))


def _fits(settings: Settings, patches: Patches) -> None:
    """Refuse a size that is not the model's."""
    size = settings["size"]
    said = (size, size)
    if isinstance(size, dict):
        said = (size.get("height"), size.get("width")) if size.keys() == {"height", "width"} else (None, None)
    if said != patches.image_size:
        height, width = patches.image_size
        settings.refuse("size", f"the model reads images of {{'height': {height}, 'width': {width}}}")


def _by_channel(settings: Settings, name: str, patches: Patches) -> tuple[float | int, ...]:
    """One number for each channel; one alone stands for all."""
    value = settings[name]
    numbers = value if isinstance(value, list) else [value] * patches.channels
    if len(numbers) != patches.channels or any(type(number) not in (int, float) for number in numbers):
        settings.refuse(name, f"it must be a number for each channel, and the model has {patches.channels}")
    return tuple(numbers)


def _opened(picture: Any) -> Any:
    """A PIL image of a file or of numbers."""
    pil = needed("PIL.Image", "train")
    if isinstance(picture, pil.Image):
        return picture
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (1,), (3,), (4,)):
            raise InputError(
                f"an image of numbers is uint8 (height, width) or (height, width, 1, 3 or 4); got {picture.dtype} "
                f"{picture.shape}"
            )
        if 0 in picture.shape:
            raise InputError(f"an image of shape {picture.shape} holds no pixel")
        return pil.fromarray(picture[..., 0] if picture.shape[2:] == (1,) else picture)
    if not isinstance(picture, str | Path):
        raise TypeError(f"an image is a path, an array of uint8 or a PIL image; got {type(picture).__name__}")
    turned = needed("PIL.ImageOps", "train").exif_transpose
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.DecompressionBombWarning)
            with pil.open(picture) as image:
                # As it is meant to be looked at: cameras write down how they were held.
                return turned(image)
    except FileNotFoundError:
        raise InputError(f"{str(picture)!r} is no file; the model reads images, and this should be one") from None
    except Exception as error:  # each of PIL's formats raises what it likes
        why = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{str(picture)!r} cannot be read as an image: {why}") from error
