"""Hidden states of a text and of a word in it: at the input of the first layer and after each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError
from regard.lens.text.streams import token_type_ids_of
from regard.lens.text.words import Words
from regard.transformer.stack import Stack

NOT_FINITE = "the model computes numbers that are not finite: its weights are damaged or out of range"


def text_hidden_states(stack: Stack, words: Words) -> list[Float[Tensor, "tokens d_model"]]:
    """The num_layers + 1 hidden states of a text: at the input of the first layer and after each layer.

    The stack reads the text without a cache and without an encoder's output.
    """
    ids = torch.tensor(words.ids, device=stack.embeddings.token.weight.device)
    return list(stack.hidden_states(ids, token_type_ids_of(stack, words)))


def word_hidden_states(
    hidden_states: Iterable[Float[Tensor, "tokens d_model"]], positions: list[int]
) -> Float[Tensor, "states d_model"]:
    """One float64 vector per hidden state: the mean over the tokens of a word."""
    return torch.stack([state[positions].double().mean(0) for state in hidden_states])


def cosine_similarities(a: Float[Tensor, "states d_model"], b: Float[Tensor, "states d_model"]) -> list[float]:
    """The cosine similarity of two words in each hidden state.

    Raises:
        InputError: the model computes NaN or infinities.
    """
    cosines: list[float] = torch.cosine_similarity(a, b, dim=-1).tolist()
    if not all(map(math.isfinite, cosines)):
        raise InputError(NOT_FINITE)
    return cosines
