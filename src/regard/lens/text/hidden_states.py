"""A word's vector as it goes through a model: at the input and after each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError
from regard.lens.text.streams import segments_of
from regard.lens.text.words import Words
from regard.transformer.stack import Stack

__all__ = ["cosines", "states_of", "vectors"]


def states_of(stack: Stack, words: Words) -> list[Float[Tensor, "tokens d_model"]]:
    """The vectors of a text's tokens at the input and after each layer of a stack: num_layers + 1 tensors.

    The text is the first thing that the stack reads: nothing is cached, and there is no other text to attend to.
    """
    ids = torch.tensor(words.ids, device=stack.embeddings.token.weight.device)
    return list(stack.hidden_states(ids, segments_of(stack, words)))


def vectors(states: Iterable[Float[Tensor, "tokens d_model"]], pieces: list[int]) -> Float[Tensor, "states d_model"]:
    """One vector of a word in each state, in float64: the mean of its tokens'."""
    return torch.stack([state[pieces].double().mean(0) for state in states])


def cosines(here: Float[Tensor, "states d_model"], there: Float[Tensor, "states d_model"]) -> list[float]:
    """The cosine between a word's vectors in two texts, in each state.

    Raises:
        InputError: the model computes NaN or infinities.
    """
    found: list[float] = torch.cosine_similarity(here, there, dim=-1).tolist()
    if not all(map(math.isfinite, found)):
        raise InputError("the model computes numbers that are not finite: its weights are damaged or out of range")
    return found
