"""A text through a model of ours: the only part of the lens that loads models."""
