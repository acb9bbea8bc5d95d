"""The encoder of images: the Vision Transformer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard._shapes import Float
from regard.attention.mask import Mask
from regard.attention.positions import Learned
from regard.transformer.block import Block, BlockInputs, make_norm
from regard.transformer.config import Config
from regard.transformer.patches import Patches

INIT_STD = 0.02
"""The standard deviation of the initial class token and positions, as in the paper's code."""


class ImageEncoder(nn.Module):
    """A stack of blocks whose tokens are an image's patches (Dosovitskiy et al. 2021, section 3.1).

    The pixels of each patch are projected to d_model; a learned class token goes first; learned positions are added
    (equation 1). Then every token may attend to every other, as in any `Encoder`.

    Args:
        config: sizes and choices, with ``config.patches`` and one learned position for each token; the fields about
            token vectors and logits have no meaning here.
        d_out: width of the result, if a projection after the last norm changes it from d_model.

    Raises:
        ValueError: a config without patches, or with a choice that is for texts.
    """

    def __init__(self, config: Config, *, d_out: int | None = None) -> None:
        super().__init__()
        patches = _patches_of(config)
        self.config = config
        self.embeddings = PatchEmbeddings(config, patches)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = None if config.norm_position == "post" else make_norm(config)
        self.projection = None if d_out in (None, config.d_model) else nn.Linear(config.d_model, d_out or 0)

    def hidden_states(
        self, pixels: Float[Tensor, "*batch channels height width"], mask: Mask | None = None
    ) -> Iterator[Float[Tensor, "*batch tokens d_model"]]:
        """The input of each block, then the result before its projection: num_layers + 1 tensors, one at a time.

        Args:
            pixels: ``(batch, channels, height, width)`` or ``(channels, height, width)``, from
                `Pretrained.pixel_values`.
            mask: who may attend to whom; None lets every token attend to every token.

        Raises:
            TypeError: pixels that are not floating-point numbers.
            ValueError: images of another size.
        """
        x = self.embeddings(pixels)
        for block in self.blocks:
            yield x
            x = block(x, BlockInputs(mask=mask))
        yield x if self.norm is None else self.norm(x)

    def forward(
        self, pixels: Float[Tensor, "*batch channels height width"], mask: Mask | None = None
    ) -> Float[Tensor, "*batch tokens d_out"]:
        """The token vectors after the last block, the class token's first; arguments as in `hidden_states`."""
        for x in self.hidden_states(pixels, mask):
            last = x
        return last if self.projection is None else self.projection(last)


class PatchEmbeddings(nn.Module):
    """[class; patch_1 E; ...; patch_N E] + positions (equation 1).

    The product with E is a convolution whose stride is its kernel size.
    """

    def __init__(self, config: Config, patches: Patches) -> None:
        super().__init__()
        self.patches = patches
        self.patch = nn.Conv2d(patches.channels, config.d_model, patches.patch_size, stride=patches.patch_size)
        self.class_token = nn.Parameter(torch.empty(1, config.d_model))
        self.position = Learned(patches.num_tokens, config.d_model)
        for parameter in (self.class_token, self.position.weight):
            nn.init.normal_(parameter, std=INIT_STD)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, pixels: Float[Tensor, "*batch channels height width"]) -> Float[Tensor, "*batch tokens d_model"]:
        """The input of the first block."""
        patches = self.patches
        if not pixels.is_floating_point():
            raise TypeError(
                f"pixels are floating-point numbers, as Pretrained.pixel_values makes them; got {pixels.dtype}"
            )
        expected = (patches.channels, *patches.image_size)
        if pixels.ndim not in (3, 4) or pixels.shape[-3:] != expected:
            raise ValueError(
                f"this model reads images of (channels, height, width) = {expected}, one or a batch of them; got "
                f"{tuple(pixels.shape)}"
            )
        x = self.patch(pixels.to(self.patch.weight.dtype)).flatten(-2).transpose(-2, -1)
        class_token = self.class_token.expand(*x.shape[:-2], -1, -1)
        total: Tensor = self.position(torch.cat([class_token, x], dim=-2))
        return self.dropout(total) if self.training else total


def _patches_of(config: Config) -> Patches:
    """The patches of a config whose other fields fit an image encoder."""
    patches = config.patches
    if patches is None:
        raise ValueError("an ImageEncoder needs config.patches: the sizes of an image and its patches")
    required = {
        "positions": "learned",
        "max_positions": patches.num_tokens,
        "first_position": 0,
        "num_token_types": 0,
        "embedding_norm": False,
        "windows": None,
        "mlm_head": False,
    }
    for name, value in required.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{name}={getattr(config, name)!r}: with these patches an ImageEncoder has {name}={value!r}"
            )
    return patches
