"""From a name to real weights and their tokenizer."""

from regard.pretrained.hub import DEFAULT_MODEL
from regard.pretrained.load import Pretrained, load

__all__ = ["DEFAULT_MODEL", "Pretrained", "load"]
