"""Whole transformers, built from the parts in `regard.attention`."""

from regard.transformer.config import Config
from regard.transformer.encoder import Encoder

__all__ = ["Config", "Encoder"]
