"""Positions: how a transformer knows the order of its tokens, which attention alone does not use.

- ``absolute``: vectors added to the token vectors before the first layer: `Sinusoidal` (the paper), `Learned` (BERT,
  GPT-2)
- ``rotary``: a rotation of queries and keys in every layer: `Rotary` (RoFormer; Llama and most later models)
- ``scaling``: changes of the rotation for texts longer than in training: `Linear`, `DynamicNTK`, `Llama3`, `YaRN`
- ``relative``: biases added to the scores: `ALiBi` (BLOOM, MPT; nothing learned, made for lengths beyond training),
  `T5Relative` (T5)

A checkpoint works only with the positions of its training. For a new model, begin with `Rotary`.
"""

from regard.attention.positions.absolute import Learned, Sinusoidal, sinusoidal
from regard.attention.positions.relative import ALiBi, T5Relative
from regard.attention.positions.rotary import Rotary
from regard.attention.positions.scaling import DynamicNTK, Linear, Llama3, YaRN

__all__ = [
    "ALiBi",
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "Rotary",
    "Sinusoidal",
    "T5Relative",
    "YaRN",
    "sinusoidal",
]
