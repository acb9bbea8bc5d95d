"""Small random models that write about images, and images to write about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from weights import write_byte_tokenizer

READER: dict[str, Any] = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 3,
}
WRITER: dict[str, Any] = {
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
    reader: dict[str, Any] | None = None,
    writer: dict[str, Any] | None = None,
    seed: int = 0,
    **changes: Any,
) -> transformers.PreTrainedModel:
    """A small random checkpoint that transformers writes, with a tokenizer and the settings of its images.

    Every number is random, those of norms and biases too, so that nothing hides behind a one or a zero.

    Args:
        folder: where to.
        reader: settings of the ViT, other than `READER`.
        writer: settings of the GPT-2, other than `WRITER`.
        seed: of the numbers.
        changes: settings of the whole.
    """
    encoder = transformers.ViTConfig(**{**READER, **(reader or {})})
    decoder = transformers.GPT2Config(**{**WRITER, **(writer or {})})
    told = {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 1, **changes}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder, **told)
    theirs = transformers.VisionEncoderDecoderModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + drawn if is_gain else drawn)
    theirs.save_pretrained(folder)
    write_byte_tokenizer(folder, config.decoder, "$A")
    heights = encoder.image_size if isinstance(encoder.image_size, list | tuple) else [encoder.image_size] * 2
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": heights[0], "width": heights[1]},
        "image_mean": [0.5, 0.4, 0.45][: encoder.num_channels],
        "image_std": [0.2, 0.25, 0.3][: encoder.num_channels],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return theirs


def image(seed: int = 0, size: tuple[int, int] = (31, 17), mode: str = "RGB") -> Image.Image:
    """A picture of noise, of a width and a height."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    numbers = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    return Image.fromarray(numbers)
