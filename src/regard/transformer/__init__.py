"""Whole transformers, built from the parts in `regard.attention`."""

from regard.transformer.config import Config, SpecialTokens
from regard.transformer.decoder import Decoder
from regard.transformer.encoder import Encoder
from regard.transformer.encoder_decoder import EncoderDecoder
from regard.transformer.image_encoder import ImageEncoder
from regard.transformer.kv_caches import KVCaches
from regard.transformer.patches import Patches

__all__ = ["Config", "Decoder", "Encoder", "EncoderDecoder", "ImageEncoder", "KVCaches", "Patches", "SpecialTokens"]
