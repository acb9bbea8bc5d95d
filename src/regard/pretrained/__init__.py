"""From a name to real weights and their tokenizer."""

from regard.pretrained.load import Pretrained, load
from regard.pretrained.locate import DEFAULT

__all__ = ["DEFAULT", "Pretrained", "load"]
