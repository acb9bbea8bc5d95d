"""Scores: their formula, scale and bias, and the vectors of distances that are added to them."""
