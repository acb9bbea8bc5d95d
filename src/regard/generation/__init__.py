"""Decoding: from a model and a prompt to a text."""

from regard.generation.beam import Hypothesis
from regard.generation.generate import generate, hypotheses, stream
from regard.generation.strategy import Beam, Greedy, Sample

__all__ = ["Beam", "Greedy", "Hypothesis", "Sample", "generate", "hypotheses", "stream"]
