"""Where training data comes from: files of one's own, or what is always there."""

from regard.training.data.datasets import images, pairs, texts
from regard.training.data.split import HELD_OUT, Data

__all__ = ["HELD_OUT", "Data", "images", "pairs", "texts"]
