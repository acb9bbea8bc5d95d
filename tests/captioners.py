"""Small random image captioning models, and images for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image

from weights import randomize, token_ids, write_byte_tokenizer, written_once

ENCODER: dict[str, Any] = {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 50}
ENCODER |= {"image_size": [8, 12], "patch_size": [4, 3], "num_channels": 3}
DECODER: dict[str, Any] = {"vocab_size": 61, "n_positions": 40, "n_embd": 36, "n_layer": 2, "n_head": 4}
DECODER |= token_ids(bos=1, eos=1, pad=None)


@written_once
def random_captioner(folder: Path, *, encoder: Any = (), decoder: Any = (), seed: int = 0, **changes: Any) -> Any:
    """A small random checkpoint that transformers writes, with a tokenizer and an image processor's config.

    `encoder` and `decoder` are other values than those above, `changes` those of the whole model's config.
    """
    encoder_config = transformers.ViTConfig(**{**ENCODER, **dict(encoder)})
    decoder_config = transformers.GPT2Config(**{**DECODER, **dict(decoder)})
    values = {**token_ids(decoder_start=1, pad=0, eos=1), **changes}
    combined = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs
    config = combined(encoder_config, decoder_config, **values)
    theirs = transformers.VisionEncoderDecoderModel(config).eval()
    randomize(theirs, seed)
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
