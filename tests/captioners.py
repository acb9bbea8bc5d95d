"""Small random image captioning models, and images for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from weights import write_byte_tokenizer

ENCODER: dict[str, Any] = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 3,
}
DECODER: dict[str, Any] = {
    "vocab_size": 61,
    "n_positions": 40,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def random_captioner(
    folder: Path,
    *,
    encoder: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
    seed: int = 0,
    **changes: Any,
) -> transformers.PreTrainedModel:
    """A small random checkpoint that transformers writes, with a tokenizer and an image processor's config.

    Every number is random, those of norms and biases too, so that nothing hides behind a one or a zero.

    Args:
        folder: where to write.
        encoder: values of the ViT's config that differ from `ENCODER`.
        decoder: values of the GPT-2's config that differ from `DECODER`.
        seed: of the numbers.
        changes: values of the whole model's config.
    """
    encoder_config = transformers.ViTConfig(**{**ENCODER, **(encoder or {})})
    decoder_config = transformers.GPT2Config(**{**DECODER, **(decoder or {})})
    values = {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 1, **changes}
    combined = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs
    config = combined(encoder_config, decoder_config, **values)
    theirs = transformers.VisionEncoderDecoderModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + drawn if is_gain else drawn)
    theirs.save_pretrained(folder)
    write_byte_tokenizer(folder, config.decoder, "$A")
    size = encoder_config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": height, "width": width},
        "image_mean": [0.5, 0.4, 0.45][: encoder_config.num_channels],
        "image_std": [0.2, 0.25, 0.3][: encoder_config.num_channels],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return theirs


def image(seed: int = 0, size: tuple[int, int] = (31, 17), mode: str = "RGB") -> Image.Image:
    """An image of noise, of a width and a height."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    numbers = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    return Image.fromarray(numbers)
