"""Whole transformers, built from the parts in `regard.attention`.

- `config`: the sizes and choices of a transformer, and its special tokens
- `embeddings`: the input: token vectors, positions and token types
- `feed_forward`: the feed-forward network and its activations
- `block`: one layer: attention, feed-forward network and norms
- `stack`: embeddings and blocks, the common base of encoder and decoder
- `encoder`, `decoder`, `encoder_decoder`: the three transformers
- `image_encoder`: the Vision Transformer; `patches`: the sizes of an image and its patches
- `kv_caches`: the keys and values that a decoder keeps between calls
- `decode_step`: the decoder's forward pass for one token, faster
"""

from regard.transformer.config import Config, SpecialTokens
from regard.transformer.decoder import Decoder
from regard.transformer.encoder import Encoder
from regard.transformer.encoder_decoder import EncoderDecoder
from regard.transformer.image_encoder import ImageEncoder
from regard.transformer.kv_caches import KVCaches
from regard.transformer.patches import Patches

__all__ = ["Config", "Decoder", "Encoder", "EncoderDecoder", "ImageEncoder", "KVCaches", "Patches", "SpecialTokens"]
