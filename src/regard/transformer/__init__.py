"""Whole transformers, built from the parts in `regard.attention`."""

from regard.transformer.caches import Caches
from regard.transformer.config import Config, Special
from regard.transformer.decoder import Decoder
from regard.transformer.encoder import Encoder
from regard.transformer.encoder_decoder import EncoderDecoder
from regard.transformer.image_encoder import ImageEncoder
from regard.transformer.patches import Patches

__all__ = ["Caches", "Config", "Decoder", "Encoder", "EncoderDecoder", "ImageEncoder", "Patches", "Special"]
