"""Decoding: from a model and a prompt to a text."""

from regard.generation.beam import Hypothesis
from regard.generation.generate import generate, hypotheses, stream
from regard.generation.request import room
from regard.generation.strategy import Beam, Greedy, Sample
from regard.generation.translate import translate

__all__ = ["Beam", "Greedy", "Hypothesis", "Sample", "generate", "hypotheses", "room", "stream", "translate"]
