"""Where training data comes from: files of one's own, or what is always there."""

from regard.training.data.kept import HELD_OUT, Data
from regard.training.data.sources import images, pairs, texts

__all__ = ["HELD_OUT", "Data", "images", "pairs", "texts"]
