"""Positions: what tells a transformer the order of its tokens.

Attention itself does not know any order. Three ways to tell it, by where they come in:

- added to the token vectors before the first layer: `Sinusoidal` (the paper), `Learned` (BERT, GPT-2);
- turning queries and keys in every layer: `Rotary` (RoFormer; Llama and most models since). For texts longer than in
  training it takes a scaling: `Linear`, `DynamicNTK`, `Llama3`, `YaRN`;
- added to the scores: `ALiBi` (BLOOM, MPT; nothing learned, made for lengths beyond training), `T5Relative` (T5).

A checkpoint works with the positions it was trained with. For a model of your own begin with `Rotary`.
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
